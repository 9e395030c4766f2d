//! The engine and the model, on the paused clock.

use std::future::{self, Future};
use std::iter;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::backend::memory::Memory;
use lockkeeper::backend::model::State;
use lockkeeper::backend::{Acquire, Kind, Release, Resource};
use lockkeeper::{
    AnyLock, Backoff, Client, ClientOptions, Error, LockName, MultiLock, OwnerId, RwLock,
};
use testkit::{Flaky, Gate, Verb};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// Longer than anything here waits for.
const HOUR: Duration = Duration::from_secs(3600);

/// Time for the reaper, and for a waiter to look again.
const SETTLE: Duration = Duration::from_secs(6);

/// How long the store remembers what it answered about permits.
const REMEMBERED: Duration = Duration::from_secs(60);

/// For how long a request for permits is repeated.
const REPEATED: Duration = Duration::from_secs(20);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn client(store: &Arc<Memory>) -> Client {
    Client::with_backend(store.clone(), ClientOptions::new()).unwrap()
}

/// A store that may misbehave, a client of it, and one that goes straight to the same store. Clients
/// believe whichever clock is later: after an hour that is the paused one, however slow the machine.
async fn flaky() -> (Flaky, Client, Client) {
    flaky_with(ClientOptions::new()).await
}

async fn flaky_with(options: ClientOptions) -> (Flaky, Client, Client) {
    let memory = Memory::new();
    let flaky = Flaky::new(memory.clone());
    let ours = Client::with_backend(flaky.backend(), options).unwrap();
    let theirs = client(&memory);
    sleep(HOUR).await;
    (flaky, ours, theirs)
}

/// No request arrives any more.
fn silence() -> impl Iterator<Item = Gate> {
    iter::repeat_n(Gate::ErrBefore, 10_000)
}

/// The outcome of a task; its panic is the test's.
async fn joined<T>(task: JoinHandle<T>) -> T {
    task.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// Polls a future once; it is expected not to be ready.
async fn started<F: Future + ?Sized>(mut work: Pin<&mut F>) {
    let pending = future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_pending())).await;
    assert!(pending, "it was ready at its first poll");
}

#[track_caller]
fn assert_unreachable<T: std::fmt::Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Unreachable { .. })), "{answer:?}");
}

#[track_caller]
fn assert_closed<T: std::fmt::Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Closed { .. })), "{answer:?}");
}

/// `shutdown` gives the permits back; their [`Permit`](lockkeeper::Permit) goes when the store has
/// forgotten that.
#[tokio::test(start_paused = true)]
async fn permits_that_outlive_their_client_are_given_back_once() {
    for dropped in [true, false] {
        let store = Memory::new();
        let (ours, theirs) = (client(&store), client(&store));
        let theirs = theirs.semaphore("it");
        assert!(theirs.try_set_permits(3).await.unwrap());
        let permit = ours.semaphore("it").acquire(2).await.unwrap();
        ours.shutdown().await;
        assert_eq!(theirs.available().await.unwrap(), 3);
        sleep(REMEMBERED + ms(1000)).await;
        if dropped {
            drop(permit);
        } else {
            assert_closed(&permit.release().await);
        }
        sleep(SETTLE).await;
        assert_eq!(theirs.available().await.unwrap(), 3, "dropped: {dropped}");
    }
}

/// The permits are taken, the answer is lost, and the store is away for longer than it remembers. Its
/// client would bear with it, and asks no more all the same: the same request would be another one.
#[tokio::test(start_paused = true)]
async fn permits_are_not_asked_for_again_when_the_store_may_have_forgotten() {
    let options = ClientOptions::new().unreachable_after(2 * REMEMBERED);
    let (flaky, ours, theirs) = flaky_with(options).await;
    let (ours, theirs) = (ours.semaphore("it"), theirs.semaphore("it"));
    assert!(theirs.try_set_permits(5).await.unwrap());
    flaky.script(iter::once(Gate::ErrAfter).chain(silence()));
    let start = Instant::now();
    let answer = timeout(REMEMBERED + ms(5000), ours.acquire(1)).await;
    flaky.open();
    assert_unreachable(&answer.expect("it still asks"));
    assert!(start.elapsed() < REPEATED + ms(1000), "{:?}", start.elapsed());
    // What the lost answer was about is undone as soon as the store is back.
    sleep(SETTLE).await;
    assert_eq!(theirs.available().await.unwrap(), 5);
}

/// The other side of it: as long as the store remembers, a repetition takes nothing twice.
#[tokio::test(start_paused = true)]
async fn permits_are_asked_for_again_while_the_store_remembers() {
    let options = ClientOptions::new().unreachable_after(2 * REMEMBERED);
    let (flaky, ours, theirs) = flaky_with(options).await;
    let (ours, theirs) = (ours.semaphore("it"), theirs.semaphore("it"));
    assert!(theirs.try_set_permits(5).await.unwrap());
    flaky.script(iter::once(Gate::ErrAfter).chain(silence()));
    let waiter = tokio::spawn(ours.acquire(2));
    sleep(REPEATED - ms(5000)).await;
    flaky.open();
    let permit = joined(waiter).await.unwrap();
    assert_eq!(theirs.available().await.unwrap(), 3);
    permit.release().await.unwrap();
    assert_eq!(theirs.available().await.unwrap(), 5);
}

/// The release is done, its answer is lost, and the process learns of that after the store has
/// forgotten it: so it may not say it again.
#[tokio::test(start_paused = true)]
async fn a_release_is_not_repeated_when_the_store_may_have_forgotten_it() {
    let memory = Memory::new();
    let lossy = Flaky::new(memory.clone());
    let slow = Flaky::new(lossy.backend());
    let ours = Client::with_backend(slow.backend(), ClientOptions::new()).unwrap();
    let theirs = client(&memory).semaphore("it");
    sleep(HOUR).await;
    assert!(theirs.try_set_permits(1).await.unwrap());
    let permit = ours.semaphore("it").acquire(1).await.unwrap();
    // One half before it is done, the other half after it.
    slow.script([Gate::Slow(2 * (REMEMBERED + ms(10_000)))]);
    lossy.script([Gate::ErrAfter]);
    let answer = permit.release().await;
    assert!(matches!(answer, Err(Error::Unconfirmed { .. })), "{answer:?}");
    sleep(3 * REMEMBERED).await;
    assert_eq!(slow.calls(Verb::Release), 1);
    assert_eq!(theirs.available().await.unwrap(), 1);
}

/// The answer to an acquire comes while the client closes, which gives the permits back: whoever asked
/// must not believe to have them. Granted before the client closes, and after it.
#[tokio::test(start_paused = true)]
async fn permits_granted_while_the_client_closes_are_nobodys() {
    for closed_after in [5, 15] {
        for waits in [true, false] {
            let (flaky, ours, theirs) = flaky().await;
            let theirs = theirs.semaphore("it");
            assert!(theirs.try_set_permits(1).await.unwrap());
            flaky.script([Gate::Slow(ms(20))]);
            let asking = ours.semaphore("it");
            let waiter = tokio::spawn(async move {
                if waits {
                    return asking.acquire(1).await.map(Some);
                }
                asking.try_acquire(1).await
            });
            sleep(ms(closed_after)).await;
            ours.shutdown().await;
            assert_closed(&joined(waiter).await);
            let permit = theirs.try_acquire(1).await.unwrap();
            permit.expect("it was given back").release().await.unwrap();
            assert_eq!(theirs.available().await.unwrap(), 1);
        }
    }
}

/// One permit of two is out, somebody waits for both, and others come who wait for one: they come
/// after it, though there is one.
#[tokio::test(start_paused = true)]
async fn who_waits_for_many_is_not_passed_by_who_waits_for_few() {
    let semaphore = Client::memory().semaphore("it");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let first = semaphore.acquire(1).await.unwrap();
    let many = tokio::spawn(semaphore.acquire(2));
    sleep(ms(10)).await;
    let few = tokio::spawn(semaphore.acquire(1));
    assert!(semaphore.try_acquire_for(1, SETTLE).await.unwrap().is_none());
    assert!(!few.is_finished());
    // Who does not wait passes nobody by it.
    let passing = semaphore.try_acquire(1).await.unwrap().expect("one is free");
    passing.release().await.unwrap();
    first.release().await.unwrap();
    let many = timeout(ms(1000), joined(many)).await.expect("it was passed").unwrap();
    sleep(SETTLE).await;
    assert!(!few.is_finished(), "there is none left");
    many.release().await.unwrap();
    timeout(ms(1000), joined(few)).await.expect("its turn").unwrap().release().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 2);
}

/// Three hundred permits of a holder that died: all of them are free, not only the first hundred.
#[tokio::test(start_paused = true)]
async fn all_permits_that_have_ended_can_be_had_at_once() {
    let semaphore = Client::memory().permit_semaphore("it");
    assert!(semaphore.try_set_permits(300).await.unwrap());
    std::mem::forget(semaphore.lease(ms(1000)).acquire(300).await.unwrap());
    sleep(ms(2000)).await;
    assert_eq!(semaphore.available().await.unwrap(), 300);
    let guard = semaphore.try_acquire(200).await.unwrap().expect("300 are free");
    assert_eq!(semaphore.available().await.unwrap(), 100);
    guard.release().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 300);
}

/// Who reads for so long each time, and rests for so long in between, for ever.
async fn reading(lock: RwLock, delay: Duration, reads: Duration, rests: Duration) {
    sleep(delay).await;
    loop {
        let guard = lock.read().await.unwrap();
        sleep(reads).await;
        guard.release().await.unwrap();
        sleep(rests).await;
    }
}

/// Readers that read for longer than they wait for a writer: before the last of them has gone, the
/// next one has been patient for long enough. It gets in once, and the next one does not.
#[tokio::test(start_paused = true)]
async fn readers_that_read_for_long_do_not_starve_a_writer() {
    let lock = Client::memory().rw_lock("it");
    let mut readers = JoinSet::new();
    for i in 0..3 {
        readers.spawn(reading(lock.clone(), i * ms(3000), ms(8000), Duration::ZERO));
    }
    sleep(ms(7000)).await;
    for _ in 0..5 {
        // The readers there are, one more, and one that came with it.
        let writer = timeout(3 * ms(8000), lock.write()).await;
        writer.expect("it starves").unwrap().release().await.unwrap();
        sleep(ms(9000)).await;
    }
}

/// The same with many readers, none of which reads for as long as another.
#[tokio::test(start_paused = true)]
async fn a_crowd_of_readers_does_not_starve_a_writer() {
    let lock = Client::memory().rw_lock("it");
    let mut readers = JoinSet::new();
    for i in 0..30_u64 {
        let reads = ms(6000 + i * 7919 % 24_000);
        readers.spawn(reading(lock.clone(), ms(i * 700), reads, ms(i * 1009 % 10_000)));
    }
    sleep(ms(20_000)).await;
    for _ in 0..5 {
        let writer = timeout(3 * ms(30_000), lock.write()).await;
        writer.expect("it starves").unwrap().release().await.unwrap();
        sleep(ms(1000)).await;
    }
}

/// A reader waits for each of many names, once. Nobody uses the name again, so that nothing but a
/// sweep removes what was remembered of that.
#[test]
fn names_that_are_used_once_leave_nothing_in_the_model() {
    let mut state = State::default();
    let (us, mut now) = (Uuid::from_u128(1), 1_000_000);
    let mut sizes = Vec::new();
    for i in 0..10_000 {
        let name = LockName::from(format!("{i}").as_str());
        let (writer, reader) = (OwnerId::fresh(us), OwnerId::fresh(us));
        let writing = Resource { kind: Kind::Write, name: name.clone() };
        let reading = Resource { kind: Kind::Read, name };
        let write = Acquire::new(writing.clone(), writer, 1000);
        let read = Acquire { waits: true, ..Acquire::new(reading.clone(), reader, 1000) };
        assert!(state.acquire(&write, now).0.unwrap().is_granted());
        assert!(!state.acquire(&read, now).0.unwrap().is_granted());
        state.release(&Release::new(writing, writer), now).0.unwrap();
        assert!(state.acquire(&read, now).0.unwrap().is_granted());
        state.release(&Release::new(reading, reader), now).0.unwrap();
        assert!(state.is_empty());
        now += 1000;
        // All that it has, whatever it counts as a lock.
        if i % 2500 == 2499 {
            sizes.push(format!("{state:?}").len());
        }
    }
    let most = sizes[0] * 2;
    assert!(sizes.iter().all(|size| *size < most), "it grows: {sizes:?}");
}

/// The guard's and the lock's members are of a client that nobody else has.
#[cfg(feature = "blocking")]
#[test]
fn a_multi_lock_of_threads_keeps_the_clients_of_its_members() {
    use lockkeeper::blocking::{AnyLock, Client, MultiLock};

    let (ours, theirs) = (Client::memory(), Client::memory());
    let members = [AnyLock::from(ours.lock("here")), theirs.rw_lock("there").writer()];
    let multi = MultiLock::new(&ours, members);
    drop(theirs);
    let guard = multi.lock().unwrap();
    assert_eq!(guard.wait_lost(ms(300)), None);
    guard.release().unwrap();
    let guard = multi.try_lock().unwrap().expect("it is free again");
    drop((multi, ours));
    assert_eq!(guard.wait_lost(ms(300)), None, "the guard alone keeps them, too");
    guard.release().unwrap();
}

/// One member's store answers, the other's does not, and the wait ends before anybody despairs of it.
/// In both orders, because one of them is asked first.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_does_not_call_a_silent_store_busy() {
    for swapped in [false, true] {
        let stores = [Flaky::new(Memory::new()), Flaky::new(Memory::new())];
        let options = ClientOptions::new();
        let clients = stores.each_ref().map(|s| Client::with_backend(s.backend(), options.clone()));
        let [one, two] = clients.map(Result::unwrap);
        sleep(HOUR).await;
        stores[usize::from(swapped)].script(silence());
        let multi = MultiLock::new([one.lock("a"), two.lock("b")]);
        let answer = multi.try_lock_for(ms(1000)).await;
        assert_unreachable(&answer);
        // One that is held by somebody is busy, and is called so.
        stores.iter().for_each(Flaky::open);
        let guard = two.lock("b").lock().await.unwrap();
        assert!(multi.try_lock_for(ms(1000)).await.unwrap().is_none());
        guard.release().await.unwrap();
        multi.try_lock().await.unwrap().expect("all is free").release().await.unwrap();
    }
}

/// All members are there, and then their stores fall silent before they have got their lease; when
/// that is known the wait is over.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_cannot_be_settled_is_not_busy() {
    let lossy = Flaky::new(Memory::new());
    let slow = Flaky::new(lossy.backend());
    let beside = slow.beside(lossy.beside(Memory::new()).backend());
    let clients = [&slow, &beside].map(|s| Client::with_backend(s.backend(), ClientOptions::new()));
    let [one, two] = clients.map(Result::unwrap);
    sleep(HOUR).await;
    lossy.script([Gate::Ok, Gate::Ok].into_iter().chain(silence()));
    slow.script([Gate::Ok, Gate::Ok, Gate::Slow(ms(2000))]);
    let multi = MultiLock::new([one.lock("a"), two.lock("b")]);
    let answer = multi.lease(ms(5000)).try_lock_for(ms(1000)).await;
    assert_unreachable(&answer);
    assert_eq!(slow.calls(Verb::Acquire), 2);
    lossy.open();
    sleep(SETTLE).await;
    multi.try_lock().await.unwrap().expect("nothing was left").release().await.unwrap();
}

/// Whoever wants a member that is held while another is waited for gets it after a second and a half.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_waits_for_a_member_for_a_second_and_a_half() {
    let store = Memory::new();
    let (ours, theirs) = (client(&store), client(&store));
    sleep(HOUR).await;
    let _busy = theirs.fair_lock("b").lease(HOUR).lock().await.unwrap();
    let multi = MultiLock::new(["a", "b"].map(|name| ours.fair_lock(name)));
    let mut waiting = Box::pin(multi.lock());
    started(waiting.as_mut()).await;
    let (waiting, start) = (tokio::spawn(waiting), Instant::now());
    let a = theirs.fair_lock("a");
    assert!(a.is_locked().await.unwrap());
    let guard = timeout(HOUR, a.lock()).await.expect("it lets go").unwrap();
    let took = start.elapsed();
    assert!(took >= ms(1490) && took < ms(1600), "{took:?}");
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
}

/// Three wait for permits when the store falls silent: two who asked at the same time, of whom one then
/// lined up behind the other, and one who came later. Only the first one asks, and all are told.
#[tokio::test(start_paused = true)]
async fn who_waits_behind_another_does_not_call_a_silent_store_busy() {
    let (flaky, ours, theirs) = flaky().await;
    let semaphore = ours.semaphore("it");
    assert!(theirs.semaphore("it").try_set_permits(0).await.unwrap());
    let waiting = || tokio::spawn(semaphore.try_acquire_for(1, ms(9000)));
    flaky.script([Gate::Slow(ms(20)), Gate::Slow(ms(20))]);
    let together = [waiting(), waiting()];
    sleep(ms(100)).await;
    let late = waiting();
    sleep(ms(100)).await;
    assert_eq!(flaky.unreached(), 0);
    flaky.script(silence());
    for waiter in together.into_iter().chain([late]) {
        assert_unreachable(&joined(waiter).await);
    }
}

/// The last of three is never given the seat before its limit.
#[tokio::test(start_paused = true)]
async fn who_waits_behind_another_does_not_call_a_store_busy_that_refuses() {
    let (flaky, ours, theirs) = flaky().await;
    flaky.script(iter::repeat_n(Gate::Refuse, 10_000));
    let lock = ours.lock("it");
    let waiters = [9000, 9000, 8000].map(|limit| tokio::spawn(lock.try_lock_for(ms(limit))));
    for waiter in waiters {
        let error = joined(waiter).await.unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
    }
    flaky.open();
    // Served again, it is busy and no more.
    let guard = theirs.lock("it").lock().await.unwrap();
    flaky.script([Gate::Refuse]);
    let waiters = [(); 3].map(|()| tokio::spawn(lock.try_lock_for(ms(9000))));
    for waiter in waiters {
        assert!(joined(waiter).await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

/// One request about another lock fails, with or without an answer; then nothing is asked for a long
/// time, because the next renewal is far off.
#[tokio::test(start_paused = true)]
async fn a_failure_about_another_lock_is_no_silence() {
    for failure in [Gate::Refuse, Gate::ErrBefore] {
        let (flaky, ours, _) = flaky_with(ClientOptions::new().watchdog_timeout(HOUR)).await;
        let guard = ours.lock("it").lock().await.unwrap();
        let waiter = ours.lock("it");
        let waiter = tokio::spawn(async move { waiter.lock().await });
        sleep(ms(100)).await;
        flaky.script([failure]);
        let failed = ours.lock("other").try_lock().await;
        let refused = matches!(failed, Err(Error::Refused { .. }));
        assert_eq!(refused, matches!(failure, Gate::Refuse), "{failed:?}");
        assert!(refused || matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
        sleep(4 * lockkeeper::UNREACHABLE_AFTER).await;
        assert!(!waiter.is_finished(), "{failure:?}: {:?}", joined(waiter).await);
        guard.release().await.unwrap();
        joined(waiter).await.unwrap().release().await.unwrap();
    }
}

/// The release is refused again and again: the waiter behind it learns why it does not get the lock.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_release_that_is_refused_is_told() {
    let (flaky, ours, _) = flaky().await;
    let guard = ours.lock("it").lock().await.unwrap();
    // Kept for too long to be handed over.
    sleep(ms(100)).await;
    let lock = ours.lock("it");
    let waiter = tokio::spawn(async move { lock.lock().await });
    sleep(ms(1)).await;
    flaky.script(iter::repeat_n(Gate::Refuse, 10_000));
    let start = Instant::now();
    let release = tokio::spawn(guard.release());
    let error = joined(waiter).await.unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    let took = start.elapsed();
    assert!(took >= lockkeeper::UNREACHABLE_AFTER, "it gave up early: {took:?}");
    assert!(took < lockkeeper::UNREACHABLE_AFTER + ms(2000), "{took:?}");
    flaky.open();
    drop(joined(release).await);
}

/// An attempt that gets no answer at all ends after one response timeout, whatever its wait limit; once
/// the store has been silent for that long the wait ends at its limit. A request that failed at once says
/// nothing.
#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_ends_after_the_response_timeout() {
    let (flaky, ours, _) = flaky().await;
    flaky.script([Gate::Never]);
    let start = Instant::now();
    assert_unreachable(&ours.lock("it").try_lock_for(ms(10)).await);
    let took = start.elapsed();
    let response = lockkeeper::RESPONSE_TIMEOUT;
    assert!(took >= response && took < response + ms(100), "{took:?}");
    flaky.open();
    sleep(SETTLE).await;
    flaky.script([Gate::ErrBefore, Gate::Never]);
    let start = Instant::now();
    assert_unreachable(&ours.lock("it").try_lock_for(ms(500)).await);
    let took = start.elapsed();
    assert!(took >= response && took < response + ms(600), "{took:?}");
    flaky.script([Gate::Never, Gate::Never]);
    let start = Instant::now();
    assert_unreachable(&ours.lock("it").try_lock_for(response + ms(500)).await);
    let took = start.elapsed();
    assert!(took >= response + ms(500) && took < response + ms(600), "{took:?}");
    flaky.open();
    sleep(SETTLE).await;
    ours.lock("it").try_lock().await.unwrap().expect("nothing was left").release().await.unwrap();
}

/// Sixteen tasks of a near client use a lock all the time. A far client gets it within a second each
/// time all the same, and the near one keeps at least half of its throughput.
#[tokio::test(start_paused = true)]
async fn a_far_client_gets_the_lock_beside_a_busy_near_one() {
    for kind in [Kind::Lock, Kind::Mutex, Kind::Write] {
        let alone = acquired_nearby(kind, None).await;
        for one_way in [1, 3, 10] {
            let beside = acquired_nearby(kind, Some(ms(one_way))).await;
            assert!(2 * beside >= alone, "{kind} at {one_way} ms: {beside} against {alone}");
        }
    }
}

/// How often the near client acquires the lock in ten seconds.
async fn acquired_nearby(kind: Kind, far_away: Option<Duration>) -> u64 {
    let (flaky, far, near) = flaky().await;
    let request = move |client: &Client| {
        let lock: AnyLock = match kind {
            Kind::Mutex => client.mutex("it").into(),
            Kind::Write => client.rw_lock("it").writer(),
            _ => client.lock("it").into(),
        };
        lock.lock()
    };
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (near, count) = (near.clone(), Arc::clone(&count));
        tasks.spawn(async move {
            loop {
                let guard = request(&near).await.unwrap();
                sleep(ms(1)).await;
                guard.release().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let end = Instant::now() + ms(10_000);
    let Some(one_way) = far_away else {
        tokio::time::sleep_until(end).await;
        return count.load(Ordering::Relaxed);
    };
    // Messages are not delayed here: a request takes their way, too, and its answer as long.
    flaky.script(iter::repeat_n(Gate::Slow(4 * one_way), 100_000));
    while Instant::now() < end {
        let asked = async { request(&far).await };
        let granted = timeout(ms(1000), asked).await;
        let guard = granted.unwrap_or_else(|_| panic!("{kind} at {one_way:?}: not within 1 s"));
        guard.unwrap().release().await.unwrap();
    }
    count.load(Ordering::Relaxed)
}

/// Writers of one client hold the lock for longer than it is passed on among them. No other client listens,
/// so that each has it as soon as it is released.
#[tokio::test(start_paused = true)]
async fn writers_of_one_client_alone_do_not_pause() {
    let lock = client(&Memory::new()).rw_lock("it");
    sleep(HOUR).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let lock = lock.clone();
        tasks.spawn(async move {
            let guard = lock.write().await.unwrap();
            sleep(ms(11)).await;
            guard.release().await.unwrap();
        });
    }
    let start = Instant::now();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let took = start.elapsed();
    assert!(took < 20 * ms(11) + ms(10), "{took:?}");
}

/// Those who listen acquire a lock before those who look now and then. So some of a full crowd leave it each
/// time they look, and others listen in their place.
#[tokio::test(start_paused = true)]
async fn some_of_a_crowd_leave_it_to_others() {
    fastrand::seed(1);
    let store = Memory::new();
    sleep(HOUR).await;
    let _guard = client(&store).lock("it").lease(HOUR).lock().await.unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        tasks.spawn(client(&store).lock("it").lock());
    }
    sleep(ms(100)).await;
    let late = Flaky::new(store.clone());
    let lock = Client::with_backend(late.backend(), ClientOptions::new()).unwrap().lock("it");
    tasks.spawn(lock.lock());
    sleep(ms(2000)).await;
    assert_eq!(late.calls(Verb::Subscribe), 0, "there is room for 16");
    sleep(ms(60_000)).await;
    assert!(late.calls(Verb::Subscribe) > 0, "no one has made room");
}

/// A queue position does not expire with the lease that was asked for: it is given up for ten minutes more.
#[tokio::test(start_paused = true)]
async fn a_queue_position_is_given_up_until_ten_minutes_after_its_lease() {
    let (flaky, ours, theirs) = flaky().await;
    let _guard = theirs.fair_lock("it").lease(10 * HOUR).lock().await.unwrap();
    let waiting = tokio::spawn(ours.fair_lock("it").lease(ms(30_000)).lock());
    sleep(ms(100)).await;
    assert_eq!(flaky.calls(Verb::Subscribe), 1, "it waits");
    flaky.script(iter::repeat_n(Gate::ErrBefore, 100_000));
    waiting.abort();
    let tries_within = async |span| {
        let before = flaky.calls(Verb::Release);
        sleep(span).await;
        flaky.calls(Verb::Release) - before
    };
    assert!(tries_within(ms(600_000)).await > 0);
    assert!(tries_within(ms(29_000)).await > 0, "it has ended too early");
    sleep(ms(10_000)).await;
    assert_eq!(tries_within(HOUR).await, 0, "it does not end");
    assert!(flaky.unreached() > 0, "the store has answered");
}

/// A re-entry is under way, the release of its guard waits for it, and the client waits for that
/// release; then the re-entry is dropped, and what is left of it is more work that must be begun
/// before the rest can end.
#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_what_waits_for_it() {
    let (flaky, ours, theirs) = flaky().await;
    let guard = ours.lock("it").lock().await.unwrap();
    let hold = guard.hold();
    flaky.script([Gate::Never]);
    let mut reentry = Box::pin(hold.reenter());
    started(reentry.as_mut()).await;
    drop(guard);
    sleep(ms(1)).await;
    let closing = ours.clone();
    let closing = tokio::spawn(async move {
        let start = Instant::now();
        closing.shutdown().await;
        start.elapsed()
    });
    sleep(ms(1)).await;
    drop(reentry);
    flaky.open();
    let took = joined(closing).await;
    assert!(took < ms(500), "it took {took:?}");
    assert!(!theirs.lock("it").is_locked().await.unwrap());
    drop((ours, theirs, hold));
    sleep(SETTLE).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 0, "tasks are left");
}

/// The longest pause there can be: a waiter that spins sleeps for as long as it may, and does not panic.
#[tokio::test(start_paused = true)]
async fn an_endless_back_off_is_only_long() {
    let constant = Backoff::constant(Duration::MAX);
    let growing = Backoff::default().first(Duration::MAX).max(Duration::MAX).factor(u32::MAX);
    for back_off in [constant, growing] {
        let store = Memory::new();
        let (ours, theirs) = (client(&store), client(&store));
        let guard = theirs.lock("it").lock().await.unwrap();
        let lock = ours.spin_lock("it").backoff(back_off);
        assert!(lock.try_lock_for(ms(100)).await.unwrap().is_none());
        let mut waiting = Box::pin(lock.lock());
        assert!(timeout(SETTLE, waiting.as_mut()).await.is_err(), "somebody has it");
        guard.release().await.unwrap();
        assert!(timeout(HOUR, waiting).await.is_err(), "it looked again");
    }
}
