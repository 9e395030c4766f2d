//! `inspect`: everything about one lock.

use std::io::Write;
use std::time::SystemTime;

use anstyle::Style;
use lockkeeper::{Forced, Holder, Inspector, Kind, LockInfo, Remaining};

use crate::args::{Global, InspectArgs, KindArg};
use crate::display::Presence;
use crate::exit::{Code, Failure};
use crate::open::open;
use crate::output::{Output, Stop};
use crate::{display, json, timestamp};

pub(crate) async fn run(global: &Global, args: &InspectArgs) -> Result<Code, Failure> {
    let client = open(global).await?;
    let lock = look(&client.inspector(), args.name.bytes(), args.kind).await?;
    if args.quiet {
        return Ok(if is_held(&lock) { Code::OK } else { Code::FREE });
    }
    let (mut output, now) = (Output::new(global), SystemTime::now());
    let printed = match args.json {
        true => document(&mut output, &json::Everything::of(&lock, now)),
        false => describe(&mut output, &lock, args.kind, now),
    };
    match printed {
        Ok(()) => Ok(Code::OK),
        Err(stop) => stop.or(Code::OK),
    }
}

/// What is known of a name, as a kind or as what it seems to be.
pub(crate) async fn look(
    inspector: &Inspector,
    name: &[u8],
    kind: Option<KindArg>,
) -> lockkeeper::Result<LockInfo> {
    let Some(kind) = kind else { return inspector.inspect(name).await };
    let mut lock = inspector.inspect_as(name, kind.kind()).await?;
    // Which of the two sides it is, only its holders say.
    if kind == KindArg::Rw && lock.holders.iter().any(|holder| holder.shared) {
        let written = lock.holders.iter().any(|holder| !holder.shared);
        lock.kind = if written { Kind::Write } else { Kind::Read };
    }
    Ok(lock)
}

/// Whether somebody holds it. A semaphore is held while a permit is taken, or, if its permits have no
/// leases, while none is free; a latch while it is closed.
fn is_held(lock: &LockInfo) -> bool {
    match (lock.kind, lock.count) {
        (Kind::Semaphore, Some(free)) => free <= 0,
        (Kind::Latch, Some(count)) => count > 0,
        _ => !lock.holders.is_empty() || lock.taken > 0,
    }
}

/// One JSON document on a line of its own.
pub(crate) fn document(output: &mut Output, document: &impl serde::Serialize) -> Result<(), Stop> {
    json::write(&mut *output, document)?;
    output.line("")?;
    Ok(output.flush()?)
}

fn describe(
    output: &mut Output,
    lock: &LockInfo,
    asked: Option<KindArg>,
    now: SystemTime,
) -> Result<(), Stop> {
    let heading = output.styled(Style::new().bold(), &display::name(&lock.name));
    output.line(&heading)?;
    for (label, text) in facts(lock, asked, now) {
        let label = output.styled(Style::new().dimmed(), &format!("{label:<9}"));
        output.line(&format!("  {label} {text}"))?;
    }
    Ok(output.flush()?)
}

/// What there is to say, each with a word in front; one that is empty goes on with the one before.
fn facts(lock: &LockInfo, asked: Option<KindArg>, now: SystemTime) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    // The kind of a free name is a guess, unless the user gave it or somebody is in its queue.
    let guess = lock.is_free() && asked.is_none() && lock.queue.is_empty();
    if !guess {
        facts.push(("kind", lock.kind.to_string()));
    }
    facts.push(("state", state(lock)));
    for (at, holder) in lock.holders.iter().enumerate() {
        facts.push((if at == 0 { "held by" } else { "" }, display::holder(holder)));
        facts.push(("", details(lock, holder, now)));
    }
    let known = lock.holders.len() as u64;
    if lock.kind == Kind::Permits && lock.taken > known && known > 0 {
        facts.push(("", format!("and {} more", lock.taken - known)));
    }
    match lock.remaining {
        Remaining::For(_) if lock.is_free() => {}
        Remaining::For(left) => facts.push(("ttl", display::span(left))),
        // What counts stands until somebody deletes it, as it should.
        Remaining::Forever if lock.count.is_none() => {
            facts.push(("ttl", "∞: it has no end, and stays if its holder dies".to_owned()));
        }
        Remaining::Free | Remaining::Forever => {}
    }
    if let Some(waiting) = lock.waiting {
        facts.push(("waiters", waiters(lock, waiting)));
    }
    for (at, waiter) in lock.queue.iter().enumerate() {
        let label = if at == 0 { "queue" } else { "" };
        facts.push((label, format!("{}. {}", at + 1, identified(waiter))));
    }
    if let Some(token) = lock.token {
        facts.push(("token", format!("{token} was issued last")));
    }
    for (at, forced) in lock.forced.iter().enumerate() {
        facts.push((if at == 0 { "forced" } else { "" }, forced_unlock(forced, now)));
    }
    facts
}

fn state(lock: &LockInfo) -> String {
    match (lock.kind, lock.count) {
        (Kind::Permits, Some(free)) => {
            let total = i128::from(free) + i128::from(lock.taken);
            format!("{free} of {total} permits free, {} taken", lock.taken)
        }
        (Kind::Semaphore, Some(free)) => format!("{free} permits free"),
        (Kind::Permits | Kind::Semaphore, None) => "free, and has no permits yet".to_owned(),
        (Kind::Latch, Some(count @ 1..)) => format!("closed, {count} to go"),
        (Kind::Latch, _) => "open".to_owned(),
        _ if lock.holders.is_empty() => "free".to_owned(),
        _ => "held".to_owned(),
    }
}

/// What is known of a holder beside who it is.
fn details(lock: &LockInfo, holder: &Holder, now: SystemTime) -> String {
    let mut parts = Vec::new();
    if holder.client.is_some() {
        parts.push(format!("id {}", display::text(&holder.id)));
    }
    if let Some(remaining) = holder.remaining {
        parts.push(format!("expires in {}", display::ttl(remaining)));
    }
    match (lock.kind, holder.hold_count) {
        (Kind::Permits, _) => {}
        (_, 1) => parts.push("1 hold".to_owned()),
        (_, holds) => parts.push(format!("{holds} holds")),
    }
    if holder.shared && lock.kind != Kind::Permits {
        parts.push("shared".to_owned());
    }
    if let Some(since) = holder.since {
        let age = display::age(Some(since), now);
        parts.push(format!("for {age}, since {}", timestamp::plain(since)));
    }
    match (display::presence(holder), holder.left) {
        (Presence::Unknown, _) => {
            parts.push("no live lockkeeper client says it is its own".to_owned());
        }
        (_, Some(left)) => {
            let ended = "its job has ended, and the lock stays until it expires";
            parts.push(format!("left {}: {ended}", timestamp::plain(left)));
        }
        _ => parts.push(display::last_seen(holder, now)),
    }
    parts.join(", ")
}

fn waiters(lock: &LockInfo, waiting: u64) -> String {
    match (lock.kind, waiting) {
        (_, 0) => "none".to_owned(),
        (Kind::Fair, waiting) => format!("{waiting}, in a queue"),
        (_, 1) => "1 client listens for it".to_owned(),
        (_, waiting) => format!("{waiting} clients listen for it"),
    }
}

fn identified(holder: &Holder) -> String {
    match holder.client {
        Some(_) => format!("{}, id {}", display::holder(holder), display::text(&holder.id)),
        None => display::holder(holder),
    }
}

fn forced_unlock(forced: &Forced, now: SystemTime) -> String {
    let at = timestamp::plain(forced.at);
    let age = display::age(Some(forced.at), now);
    let from = display::victims(forced);
    let reason = match &forced.reason[..] {
        "" => "without a reason".to_owned(),
        reason => format!("because: {}", display::text(reason)),
    };
    format!("{at} ({age} ago) by {}, from {}, {reason}", display::text(&forced.by), from.join(", "))
}
