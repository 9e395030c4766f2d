//! `unlock`: takes a lock away from its holder.
//!
//! Who is asked decides what must be said. A person on a terminal sees who holds the lock and when that
//! process was last seen, and answers; that answer is all it takes. A script (`--yes`) sees nothing,
//! and was written when the holder was thought dead: it gets the lock only from holders that no
//! lockkeeper client has claimed within its lease, unless it says `--force`. A client of another
//! library is never seen, so it counts as one of those.
//!
//! The answer is for the holders that were shown, and the store takes the lock from no others. If others
//! have it by then, the question is put again; if nobody has it any more, there is nothing left to do,
//! which is what was wanted.

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
    let client = store.connect_with(as_operator(store.options.clone())).await?;
    let inspector = client.inspector();
    let mut agreed = Vec::new();
    let (lock, taken) = loop {
        let agreement = agree(&inspector, args, &mut agreed).await?;
        let Some(lock) = agreement else { return Ok(Code::BUSY) };
        match take(&client, &lock, args).await {
            // Others have it by now.
            Err(Error::NotHeld { .. }) => {}
            taken => break (lock, taken?),
        }
    };
    let mut output = Output::new(global);
    let told = match args.json {
        true => document(&mut output, &json::Unlock::of(&lock, taken, &reason(args))),
        false => tell(&mut output, &lock, taken),
    };
    // It is done, whether or not anybody can read so. A script must not do it again, to the next holder.
    if let Err(Stop::Failed(failure)) = told {
        exit::say(failure.message);
    }
    Ok(Code::OK)
}

/// Whether there was anything to take away from those who were seen.
async fn take(client: &Client, lock: &LockInfo, args: &UnlockArgs) -> Result<bool, Error> {
    if lock.holders.is_empty() {
        return Ok(false);
    }
    let inspector = client.inspector();
    if lock.kind == Kind::Permits {
        return free_permits(client, lock, args).await;
    }
    let (name, kind, reason) = (args.name.bytes(), lock.kind, reason(args));
    if args.yes && args.force {
        // From whoever has it.
        return inspector.force_unlock(name, kind, reason).await;
    }
    inspector.force_unlock_from(name, kind, &lock.holders, reason).await
}

/// Permits are known one by one: those that are still held are freed, and others stay.
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
            "\"{name}\": {left} more permits are taken; run it again to free them"
        ));
    }
    Ok(any)
}

/// Leaves of a semaphore's permits only those that were named, if any were.
fn only_named(lock: &mut LockInfo, permits: &[String]) -> Result<(), Failure> {
    if lock.kind == Kind::Permits {
        if let Some(id) = permits.iter().find(|id| id.parse::<PermitId>().is_err()) {
            let id = display::text(id);
            return Err(Failure::usage(format!("\"{id}\" is no id of a permit: see inspect")));
        }
        let all = lock.holders.len() as u64 == lock.taken;
        let shown = |id: &&String| lock.holders.iter().any(|holder| holder.id == **id);
        if let (false, Some(id)) = (all, permits.iter().find(|id| !shown(id))) {
            return Err(Failure::usage(format!(
                "\"{id}\" is not among the {} permits that can be shown: free some of those first",
                lock.holders.len()
            )));
        }
        if !permits.is_empty() {
            lock.holders.retain(|holder| permits.contains(&holder.id));
        }
        lock.taken = lock.holders.len() as u64;
    } else if !permits.is_empty() && !lock.is_free() {
        let name = display::name(&lock.name);
        return Err(Failure::usage(format!("\"{name}\" is a {}: leave --permit out", lock.kind)));
    }
    Ok(())
}

/// The lock as it is agreed to be taken away, or free; nothing, if it is not agreed. `agreed` are the
/// holders of whom that is known.
async fn agree(
    inspector: &Inspector,
    args: &UnlockArgs,
    agreed: &mut Vec<String>,
) -> Result<Option<LockInfo>, Failure> {
    loop {
        let mut lock = look(inspector, args.name.bytes(), args.kind).await?;
        if matches!(lock.kind, Kind::Semaphore | Kind::Latch) && !lock.is_free() {
            return Err(uncounted(&lock));
        }
        only_named(&mut lock, &args.permit)?;
        if lock.holders.iter().all(|holder| agreed.contains(&holder.id)) {
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
                "nobody can be asked here: add --yes to take the lock away without a question \
                 (and --force, to take it from a holder that may still run)",
            ));
        }
        let again = !agreed.is_empty();
        *agreed = lock.holders.iter().map(|holder| holder.id.clone()).collect();
        // Off the runtime, which has connections to keep meanwhile.
        let answer = tokio::task::spawn_blocking(move || ask(&question(&lock, again))).await;
        let answer = answer.map_err(|error| Failure::internal(format!("asking: {error}")))?;
        if !answer.map_err(|error| Failure::internal(format!("the terminal: {error}")))? {
            exit::say("nothing was changed");
            return Ok(None);
        }
    }
}

/// Its client has announced itself within the last lease, and may run.
fn may_run(holder: &Holder) -> bool {
    matches!(display::presence(holder), Presence::Announced | Presence::Overdue(_))
}

fn kept(lock: &LockInfo, holder: &Holder) -> Failure {
    let (name, seen) = (display::name(&lock.name), display::last_seen(holder, SystemTime::now()));
    let instead = match display::presence(holder) {
        Presence::Overdue(_) => "wait until its lease ends, or add --force to take it now",
        _ => "add --force to take it all the same",
    };
    let holder = display::holder(holder);
    Failure::new(Code::BUSY, format!("\"{name}\" is held by {holder}, {seen}: {instead}"))
}

fn uncounted(lock: &LockInfo) -> Failure {
    let name = display::name(&lock.name);
    let instead = match lock.kind {
        Kind::Semaphore => "its permits have no holders; add some with the library",
        _ => "count it down, or delete it, with the library",
    };
    Failure::usage(format!("\"{name}\" is a {}, which cannot be taken away: {instead}", lock.kind))
}

/// What the holder is told and what is remembered. Without a reason at least who it was.
fn reason(args: &UnlockArgs) -> String {
    let reason = args.reason.clone();
    reason.unwrap_or_else(|| format!("unlocked by {}, who gave no reason", operator()))
}

/// Settings of a client that may take locks away: who asks later who did it is not helped by the name
/// of this program.
pub(crate) fn as_operator(options: ClientOptions) -> ClientOptions {
    options.program(format!("{} by lockkeeper", operator()))
}

/// Who sits at the keyboard: as the environment says, where under `sudo` that is not root; otherwise as
/// the system does.
fn operator() -> String {
    let name = |variable: &&str| std::env::var(variable).ok().filter(|name| !name.is_empty());
    let told = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(name);
    let uid = rustix::process::getuid().as_raw().to_string();
    told.or_else(|| account(&uid)).unwrap_or_else(|| format!("uid {uid}"))
}

/// The name of the account with this number, if it is one of this host's own.
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
        text.push_str("It has changed hands meanwhile.\n");
    }
    text.push_str(&format!("\"{name}\" is a {} and held by\n", lock.kind));
    for holder in &lock.holders {
        let seen = display::last_seen(holder, now);
        let known = match holder.since {
            Some(_) => format!("{seen}, holds it for {}", display::age(holder.since, now)),
            None => seen,
        };
        text.push_str(&format!("  {} ({known})\n", display::holder(holder)));
        if let Some(remaining) = holder.remaining {
            let ttl = display::ttl(remaining);
            text.push_str(&format!("    permit {}, expires in {ttl}\n", display::text(&holder.id)));
        }
    }
    if lock.kind == Kind::Permits {
        text.push_str("The holder of a permit finds out when it renews it.\n");
    } else {
        text.push_str(&format!("If you take it away: {}", display::consequence(&lock.holders)));
        text.push_str(match lock.holders.iter().any(may_run) {
            true => "; what it has begun may go on for a moment.\n",
            false => ".\n",
        });
    }
    text.push_str(&format!("Take \"{name}\" away from {}? [y/N] ", display::holders(lock)));
    text
}

/// On the terminal itself: neither `2>log` nor `| tee` must hide the question.
fn ask(question: &str) -> io::Result<bool> {
    let mut answer = String::new();
    match File::options().read(true).write(true).open("/dev/tty") {
        Ok(mut terminal) => {
            terminal.write_all(question.as_bytes())?;
            BufReader::new(terminal).read_line(&mut answer)?;
        }
        // A terminal, but not this session's.
        Err(_) => {
            io::stderr().write_all(question.as_bytes())?;
            io::stdin().lock().read_line(&mut answer)?;
        }
    }
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn tell(output: &mut Output, lock: &LockInfo, taken: bool) -> Result<(), Stop> {
    let name = display::name(&lock.name);
    let line = match taken {
        true => format!("\"{name}\" was taken away from {}", display::holders(lock)),
        false if lock.kind == Kind::Permits => format!("\"{name}\": no such permit is held"),
        false => format!("\"{name}\" is free: there was nothing to take away"),
    };
    output.line(&line)?;
    Ok(output.flush()?)
}
