//! `unlock`: force-releases a lock.
//!
//! A person on a terminal sees the holder and when its process was last seen, and confirms. A script
//! (`--yes`) sees nothing: it force-releases only holders that no lockkeeper client has announced within
//! its lease, unless it passes `--force`. A client of another library never announces itself.
//!
//! The confirmation covers only the holders that were shown, and the store force-releases no others. If
//! the holders have changed since, `unlock` asks again.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::time::SystemTime;

use lockkeeper::{Client, ClientOptions, Error, Holder, Inspector, Kind, LockInfo, PermitId};

use crate::args::{Global, UnlockArgs};
use crate::display::Presence;
use crate::exit::{self, Code, Failure};
use crate::inspect::{document, look};
use crate::open::choose;
use crate::output::{Output, Stop};
use crate::{display, json};

pub(crate) async fn run(global: &Global, args: &UnlockArgs) -> Result<Code, Failure> {
    let store = choose(global)?;
    let client = store.connect_with(as_operator(store.unacknowledged())).await?;
    let inspector = client.inspector();
    let mut confirmed = Vec::new();
    let (lock, released) = loop {
        let lock = confirm(&inspector, args, &mut confirmed).await?;
        let Some(lock) = lock else { return Ok(Code::BUSY) };
        match force_release(&client, &lock, args).await {
            // The holders have changed since they were shown.
            Err(Error::NotHeld { .. }) => {}
            released => break (lock, released?),
        }
    };
    let mut output = Output::new(global);
    let printed = match args.json {
        true => document(&mut output, &json::Unlock::of(&lock, released, &reason(args))),
        false => print(&mut output, &lock, released),
    };
    // The lock is released even if the output fails. An error code would make a script repeat it, and
    // force-release the next holder.
    if let Err(Stop::Failed(failure)) = printed {
        exit::say(failure.message);
    }
    Ok(Code::OK)
}

/// Force-releases the holders that were shown; returns whether there was one.
async fn force_release(client: &Client, lock: &LockInfo, args: &UnlockArgs) -> Result<bool, Error> {
    if lock.holders.is_empty() {
        return Ok(false);
    }
    if lock.kind == Kind::Permits {
        return free_permits(client, lock, args).await;
    }
    let from = if args.yes && args.force { None } else { Some(&lock.holders[..]) };
    client.inspector().force_unlock(args.name.bytes(), lock.kind, from, reason(args)).await
}

/// Frees the permits that were shown and are still held.
async fn free_permits(client: &Client, lock: &LockInfo, args: &UnlockArgs) -> Result<bool, Error> {
    let semaphore = client.permit_semaphore(args.name.bytes());
    let mut any = false;
    for id in lock.holders.iter().filter_map(|holder| holder.id.parse().ok()) {
        any |= semaphore.release(&[id]).await?;
    }
    let left = semaphore.permits().await? - semaphore.available().await?;
    if args.permit.is_empty() && left > 0 {
        let name = display::name(&lock.name);
        exit::say(format_args!(
            "lock \"{name}\": {left} more permits are held; repeat the command to free them"
        ));
    }
    Ok(any)
}

/// Keeps only the permits of `--permit`, if there are any.
fn only_named(lock: &mut LockInfo, permits: &[String]) -> Result<(), Failure> {
    if lock.kind == Kind::Permits {
        if let Some(id) = permits.iter().find(|id| id.parse::<PermitId>().is_err()) {
            let id = display::text(id);
            return Err(Failure::usage(format!("\"{id}\" is not a permit id: see inspect")));
        }
        let all = lock.holders.len() as u64 == lock.taken;
        let shown = |id: &&String| lock.holders.iter().any(|holder| holder.id == **id);
        if let (false, Some(id)) = (all, permits.iter().find(|id| !shown(id))) {
            return Err(Failure::usage(format!(
                "permit \"{id}\" is not among the {} permits that can be listed: free some of them first",
                lock.holders.len()
            )));
        }
        if !permits.is_empty() {
            lock.holders.retain(|holder| permits.contains(&holder.id));
        }
        lock.taken = lock.holders.len() as u64;
    } else if !permits.is_empty() && !lock.is_free() {
        let name = display::name(&lock.name);
        let kind = lock.kind;
        return Err(Failure::usage(format!("lock \"{name}\" is a {kind}: omit --permit")));
    }
    Ok(())
}

/// Returns the lock if it is free or its force-release is confirmed; `None` if the user declines.
/// `confirmed` are the ids of the holders that the user has confirmed.
async fn confirm(
    inspector: &Inspector,
    args: &UnlockArgs,
    confirmed: &mut Vec<String>,
) -> Result<Option<LockInfo>, Failure> {
    loop {
        let mut lock = look(inspector, args.name.bytes(), args.kind).await?;
        if matches!(lock.kind, Kind::Semaphore | Kind::Latch) && !lock.is_free() {
            return Err(not_releasable(&lock));
        }
        only_named(&mut lock, &args.permit)?;
        if lock.holders.iter().all(|holder| confirmed.contains(&holder.id)) {
            return Ok(Some(lock));
        }
        if args.yes {
            return match lock.holders.iter().find(|holder| may_run(holder)) {
                Some(holder) if !args.force => Err(kept(&lock, holder)),
                _ => Ok(Some(lock)),
            };
        }
        if !io::stdin().is_terminal() {
            return Err(Failure::usage(
                "standard input is not a terminal: add --yes to force-release without confirmation \
                 (and --force if the holder may still run)",
            ));
        }
        let again = !confirmed.is_empty();
        *confirmed = lock.holders.iter().map(|holder| holder.id.clone()).collect();
        // On another thread: the runtime maintains connections meanwhile.
        let answer = tokio::task::spawn_blocking(move || ask(&question(&lock, again))).await;
        let answer = answer
            .map_err(|error| Failure::internal(format!("cannot ask for confirmation: {error}")))?;
        if !answer
            .map_err(|error| Failure::internal(format!("cannot use the terminal: {error}")))?
        {
            exit::say("nothing was changed");
            return Ok(None);
        }
    }
}

/// Whether a lockkeeper client has announced the hold within its lease.
fn may_run(holder: &Holder) -> bool {
    matches!(display::presence(holder), Presence::Announced | Presence::Overdue(_))
}

fn kept(lock: &LockInfo, holder: &Holder) -> Failure {
    let (name, seen) = (display::name(&lock.name), display::last_seen(holder, SystemTime::now()));
    let instead = match display::presence(holder) {
        Presence::Overdue(_) => "wait until its lease expires, or add --force",
        _ => "add --force to force-release it nevertheless",
    };
    let holder = display::holder(holder);
    Failure::new(Code::BUSY, format!("lock \"{name}\" is held by {holder} ({seen}): {instead}"))
}

fn not_releasable(lock: &LockInfo) -> Failure {
    let (name, kind) = (display::name(&lock.name), lock.kind);
    let instead = match lock.kind {
        Kind::Semaphore => "its permits have no holders; add permits with the library",
        _ => "count it down or delete it with the library",
    };
    Failure::usage(format!("lock \"{name}\" is a {kind} and cannot be force-released: {instead}"))
}

/// The reason for the holder and for the record; by default the operator's name.
fn reason(args: &UnlockArgs) -> String {
    let reason = args.reason.clone();
    reason.unwrap_or_else(|| format!("no reason given by {}", operator()))
}

/// Settings of a client that may force-release: the record names the operator, not only this program.
pub(crate) fn as_operator(options: ClientOptions) -> ClientOptions {
    options.program(format!("{} (lockkeeper)", operator()))
}

/// The user name from the environment (under `sudo` the original user), else from the system.
fn operator() -> String {
    let value = |variable: &&str| std::env::var(variable).ok().filter(|name| !name.is_empty());
    let name = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(value);
    let uid = rustix::process::getuid().as_raw().to_string();
    name.or_else(|| account(&uid)).unwrap_or_else(|| format!("uid {uid}"))
}

/// The name of a local account.
fn account(uid: &str) -> Option<String> {
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut accounts = accounts.lines().map(|line| line.split(':'));
    accounts.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

fn question(lock: &LockInfo, again: bool) -> String {
    let (name, now) = (display::name(&lock.name), SystemTime::now());
    let mut text = String::new();
    if again {
        text.push_str("the holders have changed\n");
    }
    text.push_str(&format!("lock \"{name}\" ({}) is held by\n", lock.kind));
    for holder in &lock.holders {
        let seen = display::last_seen(holder, now);
        let known = match holder.since {
            Some(_) => format!("{seen}, held for {}", display::age(holder.since, now)),
            None => seen,
        };
        text.push_str(&format!("  {} ({known})\n", display::holder(holder)));
        if holder.ttl.is_some() {
            let ttl = display::ttl(holder.ttl);
            text.push_str(&format!("    permit {}, expires in {ttl}\n", display::text(&holder.id)));
        }
    }
    if lock.kind == Kind::Permits {
        text.push_str("the holder of a permit notices at its next renewal\n");
    } else {
        text.push_str(&format!("effect: {}", display::consequence(&lock.holders)));
        text.push_str(match lock.holders.iter().any(may_run) {
            true => "; its work may continue for a moment\n",
            false => "\n",
        });
    }
    text.push_str(&format!(
        "force-release lock \"{name}\", held by {}? [y/N] ",
        display::holders(lock)
    ));
    text
}

/// Asks on the terminal itself: `2>log` and `| tee` must not hide the question.
fn ask(question: &str) -> io::Result<bool> {
    let mut answer = String::new();
    match File::options().read(true).write(true).open("/dev/tty") {
        Ok(mut terminal) => {
            terminal.write_all(question.as_bytes())?;
            BufReader::new(terminal).read_line(&mut answer)?;
        }
        // Standard input is a terminal, but not the controlling one.
        Err(_) => {
            io::stderr().write_all(question.as_bytes())?;
            io::stdin().lock().read_line(&mut answer)?;
        }
    }
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn print(output: &mut Output, lock: &LockInfo, released: bool) -> Result<(), Stop> {
    let name = display::name(&lock.name);
    let line = match released {
        true => format!("lock \"{name}\" was force-released from {}", display::holders(lock)),
        false if lock.kind == Kind::Permits => format!("lock \"{name}\": no such permit is held"),
        false => format!("lock \"{name}\" is free: there is nothing to release"),
    };
    output.line(&line)?;
    Ok(output.flush()?)
}
