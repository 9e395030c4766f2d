//! `inspect`: everything about one lock.

use std::io::Write;
use std::time::SystemTime;

use anstyle::Style;
use lockkeeper::{ForcedUnlock, Holder, Inspector, Kind, LockInfo, MemberInfo, Ttl};

use crate::args::{Global, InspectArgs, KindArg};
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

/// Inspects a name as the given kind, or as the kind that the store reports.
pub(crate) async fn look(
    inspector: &Inspector,
    name: &[u8],
    kind: Option<KindArg>,
) -> lockkeeper::Result<LockInfo> {
    let Some(kind) = kind else { return inspector.inspect(name).await };
    let mut lock = inspector.inspect_as(name, kind.kind()).await?;
    // Only the holders tell which side of a read/write lock is held.
    if kind == KindArg::Rw && lock.holders.iter().any(|holder| holder.shared) {
        let written = lock.holders.iter().any(|holder| !holder.shared);
        lock.kind = if written { Kind::Write } else { Kind::Read };
    }
    Ok(lock)
}

/// Whether the lock is held, as `--quiet` defines it.
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

/// Labels and values. An empty label continues the previous one.
pub(crate) fn facts(
    lock: &LockInfo,
    asked: Option<KindArg>,
    now: SystemTime,
) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    // The kind of a free name is a guess, unless the user gave it or the lock has a queue.
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
    match lock.ttl {
        Some(Ttl::For(_)) if lock.is_free() => {}
        Some(Ttl::For(left)) => facts.push(("ttl", display::span(left))),
        // Counters never expire by design.
        Some(Ttl::Forever) if lock.count.is_none() => {
            facts.push(("ttl", "∞: never expires, even if its holder dies".to_owned()));
        }
        None | Some(Ttl::Forever) => {}
    }
    if let Some(waiting) = lock.waiting {
        facts.push(("waiters", waiters(lock, waiting)));
    }
    for (at, member) in lock.members.iter().enumerate() {
        facts.push((if at == 0 { "members" } else { "" }, of_member(member)));
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
            format!("{free} of {total} permits free, {} held", lock.taken)
        }
        (Kind::Semaphore, Some(free)) => format!("{free} permits free"),
        (Kind::Permits | Kind::Semaphore, None) => "free, has no permits yet".to_owned(),
        (Kind::Latch, Some(count @ 1..)) => format!("closed, count {count}"),
        (Kind::Latch, _) => "open".to_owned(),
        _ if !lock.holders.is_empty() => "held".to_owned(),
        _ if lock.members.iter().any(|member| !member.holders.is_empty()) => {
            "free: no majority of the members holds it".to_owned()
        }
        _ => "free".to_owned(),
    }
}

/// What a member of a quorum says.
fn of_member(member: &MemberInfo) -> String {
    let address = display::text(&member.address);
    if let Some(error) = &member.error {
        return format!("{address}: {}", display::text(error));
    }
    if member.holders.is_empty() {
        return format!("{address}: free");
    }
    let holders: Vec<_> = member.holders.iter().map(identified).collect();
    let ttl = display::ttl(member.ttl);
    format!("{address}: held by {}, ttl {ttl}", holders.join(", "))
}

/// Details of a holder.
fn details(lock: &LockInfo, holder: &Holder, now: SystemTime) -> String {
    let mut parts = Vec::new();
    if holder.client.is_some() {
        parts.push(format!("id {}", display::text(&holder.id)));
    }
    if holder.ttl.is_some() {
        parts.push(format!("expires in {}", display::ttl(holder.ttl)));
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
    match holder.left {
        Some(left) => {
            let ended = "its job has ended, the lock stays held until it expires";
            parts.push(format!("left {}: {ended}", timestamp::plain(left)));
        }
        None => parts.push(display::last_seen(holder, now)),
    }
    parts.join(", ")
}

fn waiters(lock: &LockInfo, waiting: u64) -> String {
    match (lock.kind, waiting) {
        (_, 0) => "none".to_owned(),
        (Kind::Fair, waiting) => format!("{waiting} in the queue"),
        (_, 1) => "1 client waits".to_owned(),
        (_, waiting) => format!("{waiting} clients wait"),
    }
}

fn identified(holder: &Holder) -> String {
    match holder.client {
        Some(_) => format!("{}, id {}", display::holder(holder), display::text(&holder.id)),
        None => display::holder(holder),
    }
}

fn forced_unlock(forced: &ForcedUnlock, now: SystemTime) -> String {
    let at = timestamp::plain(forced.at);
    let age = display::age(Some(forced.at), now);
    let from = display::former_holders(forced);
    let reason = match &forced.reason[..] {
        "" => "no reason given".to_owned(),
        reason => format!("reason: {}", display::text(reason)),
    };
    format!("{at} ({age} ago) by {}, from {}, {reason}", display::text(&forced.by), from.join(", "))
}
