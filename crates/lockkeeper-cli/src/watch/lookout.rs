//! Looking at the store again and again, beside the screen: a store that does not answer must not
//! keep a key from being heard.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper::{Inspector, Kind, LockInfo, LockName};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use super::view::Look;
use crate::exit::{Code, Failure};
use crate::store::Store;

/// How soon a store that could not be reached is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How many locks are kept in mind, as [`Inspector::watch`] does. Beyond that the view says that it
/// is not complete.
const LOCKS_MAX: usize = 100_000;

/// What the screen is told.
#[derive(Debug)]
pub(super) enum Report {
    Connected(Inspector),
    Looked(Look),
    Failed(String),
    Inspected(Box<LockInfo>),
    /// What came of taking a lock away: whether there was anything to take.
    Forced(LockName, Result<bool, String>),
    /// It makes no sense to go on.
    Hopeless(Failure),
}

/// Opens the store and looks at it for as long as anybody listens.
///
/// It lists by itself instead of using [`Inspector::watch`], whose events nobody would take: the view
/// finds the differences to what is on the screen, which is not what the last look saw.
pub(super) async fn look_out(
    store: Store,
    pattern: Vec<u8>,
    every: Duration,
    mut paused: Receiver<bool>,
    reports: UnboundedSender<Report>,
) {
    let Some(inspector) = connect(&store, &reports).await else { return };
    let _ = reports.send(Report::Connected(inspector.clone()));
    while !reports.is_closed() && paused.wait_for(|paused| !paused).await.is_ok() {
        let next = Instant::now() + every;
        let report = match look(&inspector, &pattern).await {
            Ok(look) => Report::Looked(look),
            Err(error) => Report::Failed(error.to_string()),
        };
        let _ = reports.send(report);
        tokio::time::sleep_until(next).await;
    }
}

/// A server that is not there yet may come; a URL that makes no sense will not make any later.
async fn connect(store: &Store, reports: &UnboundedSender<Report>) -> Option<Inspector> {
    loop {
        match store.connect().await {
            Ok(client) => return Some(client.inspector()),
            Err(failure) if failure.code == Code::UNREACHABLE => {
                reports.send(Report::Failed(failure.message)).ok()?;
            }
            Err(failure) => {
                let _ = reports.send(Report::Hopeless(failure));
                return None;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn look(inspector: &Inspector, pattern: &[u8]) -> lockkeeper::Result<Look> {
    let mut listing = inspector.list(pattern);
    let mut locks = HashMap::new();
    let mut whole = true;
    while let Some(page) = listing.next().await? {
        // On a store that grows a lock may come twice.
        locks.extend(page.into_iter().map(|lock| (lock.name.clone(), lock)));
        if locks.len() >= LOCKS_MAX {
            whole = false;
            break;
        }
    }
    let complete = whole && listing.is_complete();
    Ok(Look { locks: locks.into_values().collect(), complete })
}

/// Everything about one lock. That it cannot be told is no news: the next look says so as well.
pub(super) async fn inspect(
    inspector: Inspector,
    name: LockName,
    kind: Kind,
    reports: UnboundedSender<Report>,
) {
    let told = match kind {
        // Plain strings in Redis: what they are is known from the list only.
        Kind::Mutex | Kind::Semaphore | Kind::Latch => inspector.inspect_as(&name, kind).await,
        _ => inspector.inspect(&name).await,
    };
    if let Ok(lock) = told {
        let _ = reports.send(Report::Inspected(Box::new(lock)));
    }
}

/// Takes a lock away, and looks what became of it.
pub(super) async fn force(
    inspector: Inspector,
    name: LockName,
    kind: Kind,
    reason: String,
    reports: UnboundedSender<Report>,
) {
    let forced = inspector.force_unlock(&name, kind, reason).await;
    let forced = forced.map_err(|error| error.to_string());
    let _ = reports.send(Report::Forced(name.clone(), forced));
    inspect(inspector, name, kind, reports).await;
}
