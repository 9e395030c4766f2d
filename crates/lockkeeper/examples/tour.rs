//! What distributed locks do, in five seconds and without a server: workers contend for a lock, one dies with
//! it, one loses it and is notified in time, and a fencing token rejects a late writer.
//!
//! `cargo run -p tour` from the root of a clone. Every line is the result of calls to the public API, and every
//! claim is checked: one that does not hold ends the tour.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::{Client, Error, Fence, Kind, LeaseTime, Lock, LostReason, Result, Ttl};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Each of these has a client of its own, as if it were a process of its own.
const NAMES: [&str; 5] = ["ann", "bob", "cid", "dan", "eve"];

/// All clients of this process share this store. With `redis://HOST` they would share it with other hosts.
const STORE: &str = "memory:tour";

#[tokio::main]
async fn main() -> Result<()> {
    println!("lockkeeper in five seconds. Everything below runs now, on an embedded store.");
    // The store ends with its last client.
    let operator = Client::connect(STORE).await?;
    contention().await?;
    queue(&operator).await?;
    crash(&operator).await?;
    loss(&operator).await?;
    fencing().await?;
    operator.shutdown().await;
    Ok(())
}

/// Five workers change one counter.
async fn contention() -> Result<()> {
    act(1, "Contention: five workers read a counter, work, and write it back plus one");
    const ALL: u32 = ROUNDS * NAMES.len() as u32;
    let (total, _) = count(false).await?;
    check(total < ALL, format!("without a lock, {ALL} additions result in {total}"));
    let (total, turns) = count(true).await?;
    chart(&turns);
    check(total == ALL, format!("with a lock, {ALL} additions result in {total}"));
    check(one_at_a_time(&turns), "one holder at a time".to_owned());
    Ok(())
}

const ROUNDS: u32 = 4;

/// The final count, and all holds.
async fn count(locked: bool) -> Result<(u32, Vec<Turn>)> {
    let counter = Arc::new(AtomicU32::new(0));
    let mut workers = JoinSet::new();
    for who in NAMES {
        let lock = Client::connect(STORE).await?.lock("tour:counter");
        workers.spawn(add(who, locked.then_some(lock), Arc::clone(&counter)));
    }
    let turns: Vec<_> = workers.join_all().await.into_iter().collect::<Result<_>>()?;
    Ok((counter.load(SeqCst), turns.concat()))
}

async fn add(who: &'static str, lock: Option<Lock>, counter: Arc<AtomicU32>) -> Result<Vec<Turn>> {
    let mut turns = Vec::new();
    for _ in 0..ROUNDS {
        let asked = Instant::now();
        let guard = match &lock {
            Some(lock) => Some(lock.lock().await?),
            None => None,
        };
        let got = Instant::now();
        let read = counter.load(SeqCst);
        sleep(Duration::from_millis(15)).await;
        counter.store(read + 1, SeqCst);
        turns.push(Turn { who, asked, got, gone: Instant::now() });
        if let Some(guard) = guard {
            guard.release().await?;
        }
    }
    Ok(turns)
}

/// A fair lock serves its waiters in order, across clients.
async fn queue(operator: &Client) -> Result<()> {
    act(2, "Queue: a fair lock serves its waiters in the order of their requests");
    const NAME: &str = "tour:printer";
    let mut workers = JoinSet::new();
    for (position, who) in NAMES.into_iter().enumerate() {
        let client = Client::connect(STORE).await?;
        workers.spawn(async move {
            let asked = Instant::now();
            let guard = client.fair_lock(NAME).lock().await?;
            let got = Instant::now();
            // The first one holds it until all others are in the queue.
            while who == NAMES[0]
                && client.inspector().inspect(NAME).await?.queue.len() < NAMES.len() - 1
            {
                sleep(Duration::from_millis(5)).await;
            }
            sleep(Duration::from_millis(40)).await;
            let gone = Instant::now();
            guard.release().await?;
            Ok(Turn { who, asked, got, gone })
        });
        // One after another: a holder, then a queue of this length.
        loop {
            let lock = operator.inspector().inspect(NAME).await?;
            if !lock.is_free() && lock.queue.len() >= position {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
    let mut turns = workers.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    turns.sort_by_key(|turn| turn.got);
    chart(&turns);
    let served: Vec<_> = turns.iter().map(|turn| turn.who).collect();
    check(served == NAMES, format!("served in the order {}", served.join(", ")));
    Ok(())
}

/// A process dies while it holds the lock.
async fn crash(operator: &Client) -> Result<()> {
    act(3, "Crash: a process dies while it holds a lock");
    const NAME: &str = "tour:backup";
    const LEASE: LeaseTime = LeaseTime::Renewed(Duration::from_secs(2));
    // A runtime of her own ends with everything that runs on it, renewals included.
    let process = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let process = process.expect("a thread can be started");
    let hold = async {
        let guard = Client::connect(STORE).await?.lock(NAME).lease(LEASE).lock().await?;
        // The dead release nothing.
        std::mem::forget(guard);
        Ok::<_, Error>(())
    };
    process.spawn(hold).await.expect("the task does not panic")?;
    say("ann", "holds it; her lease of 2 s is renewed while she lives");

    process.shutdown_background();
    let died = Instant::now();
    let left = match operator.inspector().inspect(NAME).await?.ttl {
        Some(Ttl::For(left)) => left,
        _ => Duration::ZERO,
    };
    say("ann", &format!("dies; her lease expires in {} ms", left.as_millis()));

    let bob = Client::connect(STORE).await?;
    let guard = bob.lock(NAME).lock().await?;
    let waited = died.elapsed();
    say("bob", &format!("waited, and acquires it {} ms after her death", waited.as_millis()));
    // A timer may be late.
    let in_time = waited + Duration::from_millis(20) >= left;
    check(in_time, "not before her lease expired, and without any action".to_owned());
    guard.release().await
}

/// A holder is notified before another can acquire the lock.
async fn loss(operator: &Client) -> Result<()> {
    act(4, "Loss: a holder is notified that it has lost its lock");
    const NAME: &str = "tour:deploy";
    let (ann, bob) = (Client::connect(STORE).await?, Client::connect(STORE).await?);
    let asked = Instant::now();
    let guard = ann.lock(NAME).lease(Duration::from_secs(1)).lock().await?;
    let (got, ends) = (Instant::now(), Instant::now() + guard.remaining());
    say("ann", "holds it for a second, and takes longer");
    let lost = tokio::spawn(guard.lost());
    let waited = Instant::now();
    let next = bob.lock(NAME).lock().await?;
    let taken = Instant::now();
    let reason = lost.await.expect("the task does not panic");
    say("ann", &format!("is notified: {reason}; her work must stop"));
    next.release().await?;
    let hers = Turn { who: "ann", asked, got, gone: ends };
    let turns = [hers, Turn { who: "bob", asked: waited, got: taken, gone: Instant::now() }];
    chart(&turns);
    let margin = taken.saturating_duration_since(ends).as_millis();
    let in_time = guard.is_lost() && reason == LostReason::Expired && one_at_a_time(&turns);
    check(in_time, format!("her hold ended {margin} ms before bob acquired the lock"));

    let guard = ann.lock(NAME).lock().await?;
    say("ann", "holds it again, and hangs");
    let known = || async {
        let holders = operator.inspector().inspect(NAME).await?.holders;
        Ok::<_, Error>(holders.iter().any(|holder| holder.client.is_some()))
    };
    // Only a client that has announced its hold is notified. It does so after a second.
    while !known().await? {
        sleep(Duration::from_millis(20)).await;
    }
    let why = "the deployment is stuck";
    let forced = Instant::now();
    operator.inspector().force_unlock(NAME, Kind::Lock, None, why).await?;
    let reason = guard.lost().await;
    let after = forced.elapsed().as_millis() + 1;
    say("ann", &format!("is notified: {reason}"));
    let right = reason == LostReason::Revoked(why.to_owned());
    check(right, format!("an operator force-released it, and she knew why within {after} ms"));
    Ok(())
}

/// A process that was paused for longer than its lease resumes, and writes.
async fn fencing() -> Result<()> {
    act(5, "Fencing: a process is paused for longer than its lease, and writes when it resumes");
    const NAME: &str = "tour:ledger";
    let (ann, bob) = (Client::connect(STORE).await?, Client::connect(STORE).await?);
    // The resource remembers the highest token that it has seen.
    let ledger = Fence::new();
    let paused = ann.fenced_lock(NAME).lease(Duration::from_secs(1)).lock().await?;
    let old = paused.token();
    say("ann", &format!("has token {old}, and is paused just before her write"));

    let guard = bob.fenced_lock(NAME).lock().await?;
    let new = guard.token();
    say("bob", &format!("acquires it after her lease, and writes with token {new}"));
    check(ledger.admit(new).is_ok() && new > old, "the ledger accepts it".to_owned());

    say("ann", &format!("resumes, and writes with token {old}"));
    let refused = ledger.admit(old).is_err();
    check(refused, "the ledger rejects it: it has seen a newer token".to_owned());
    guard.release().await
}

/// One hold: requested, acquired, released or lost.
#[derive(Clone, Copy)]
struct Turn {
    who: &'static str,
    asked: Instant,
    got: Instant,
    gone: Instant,
}

/// Whether no two holds overlap.
fn one_at_a_time(turns: &[Turn]) -> bool {
    let mut turns = turns.to_vec();
    turns.sort_by_key(|turn| turn.got);
    turns.windows(2).all(|pair| pair[0].gone <= pair[1].got)
}

/// Draws waits and holds to scale, a line per name. A hold of any length fills at least one column.
fn chart(turns: &[Turn]) {
    const WIDTH: usize = 60;
    let start = turns.iter().map(|turn| turn.asked).min().expect("there are turns");
    let end = turns.iter().map(|turn| turn.gone).max().expect("there are turns");
    let column = |moment: Instant| {
        let part = (moment - start).as_secs_f64() / (end - start).as_secs_f64().max(1e-9);
        ((part * WIDTH as f64) as usize).min(WIDTH - 1)
    };
    for who in NAMES {
        let own = || turns.iter().filter(|turn| turn.who == who);
        let mut line = [' '; WIDTH];
        own().for_each(|turn| line[column(turn.asked)..=column(turn.got)].fill('·'));
        own().for_each(|turn| {
            let (from, to) = (column(turn.got), column(turn.gone));
            line[from..to.max(from + 1)].fill('█');
        });
        if own().next().is_some() {
            say(who, line.iter().collect::<String>().trim_end());
        }
    }
    let span = format!(" {} ms", (end - start).as_millis());
    say("", &format!("├{}{span}┤", "─".repeat(WIDTH - 2 - span.len())));
}

fn act(number: u32, title: &str) {
    println!("\n{number}  {title}");
}

fn say(who: &str, what: &str) {
    println!("   {who:<3}  {what}");
}

/// Prints a claim that holds.
fn check(holds: bool, claim: String) {
    assert!(holds, "a claim does not hold: {claim}");
    println!("   ✓ {claim}");
}
