//! Polls the store in a task of its own: a store that does not answer must not block the keyboard.

use std::time::Duration;

use lockkeeper::{Error, Holder, Inspector, Kind, LockInfo, LockName, Watch};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep};

use super::view::Look;
use crate::display;
use crate::exit::{Code, Failure};
use crate::store::Store;
use crate::unlock::as_operator;

/// The pause before the next attempt to connect.
const RETRY: Duration = Duration::from_secs(1);

/// A message to the screen.
#[derive(Debug)]
pub(super) enum Report {
    Connected(Inspector),
    Looked(Look),
    Failed(String),
    Inspected(Box<LockInfo>),
    /// The outcome of a force-release: its effect on the holders, or `None` if the lock was free.
    Forced(LockName, Result<Option<String>, String>),
    /// A permanent error.
    Fatal(Failure),
}

/// Opens the store and polls it until the receiver is dropped.
pub(super) async fn poll(
    store: Store,
    pattern: Vec<u8>,
    every: Duration,
    mut paused: Receiver<bool>,
    reports: UnboundedSender<Report>,
) {
    let Some(inspector) = connect(&store, &reports).await else { return };
    let mut watch = inspector.watch(pattern).every(every);
    let _ = reports.send(Report::Connected(inspector));
    while !reports.is_closed() && paused.wait_for(|paused| !paused).await.is_ok() {
        let started = Instant::now();
        let looked = watch.look().await;
        // `look` first waits for the interval.
        let took = started.elapsed().saturating_sub(every);
        let report = match &looked {
            Ok(()) => Report::Looked(seen(&mut watch, took)),
            Err(error) => Report::Failed(error.to_string()),
        };
        let _ = reports.send(report);
        // A slow poll takes at most half of the time.
        if looked.is_ok() && took > every {
            sleep(took).await;
        }
    }
}

fn seen(watch: &mut Watch, took: Duration) -> Look {
    // The view compares with the screen instead, which may be older than the last poll.
    while watch.try_next().is_some() {}
    Look { locks: watch.locks().cloned().collect(), complete: watch.is_complete(), took }
}

/// Retries while the store is unreachable; any other error is permanent.
async fn connect(store: &Store, reports: &UnboundedSender<Report>) -> Option<Inspector> {
    loop {
        match store.connect_with(as_operator(store.unacknowledged()).read_only()).await {
            Ok(client) => return Some(client.inspector()),
            Err(failure) if failure.code == Code::UNREACHABLE => {
                reports.send(Report::Failed(failure.message)).ok()?;
            }
            Err(failure) => {
                let _ = reports.send(Report::Fatal(failure));
                return None;
            }
        }
        sleep(RETRY).await;
    }
}

/// Inspects one lock. Ignores an error: the next poll reports it too.
pub(super) async fn inspect(
    inspector: Inspector,
    name: LockName,
    kind: Kind,
    reports: UnboundedSender<Report>,
) {
    let inspected = match kind {
        // Plain strings in Redis: only the list tells their kind.
        Kind::Mutex | Kind::Semaphore | Kind::Latch => inspector.inspect_as(&name, kind).await,
        _ => inspector.inspect(&name).await,
    };
    if let Ok(lock) = inspected {
        let _ = reports.send(Report::Inspected(Box::new(lock)));
    }
}

/// Force-releases the holders in `from`, and inspects the lock.
pub(super) async fn force(
    inspector: Inspector,
    (name, kind): (LockName, Kind),
    reason: String,
    from: Vec<Holder>,
    reports: UnboundedSender<Report>,
) {
    let forced = inspector.force_unlock(&name, kind, Some(&from), reason).await;
    let forced = forced.map(|released| released.then(|| display::consequence(&from)));
    let forced = forced.map_err(|error| match error {
        Error::NotHeld { lock, .. } => {
            format!("lock {lock:?}: the holders have changed, nothing was released")
        }
        error => error.to_string(),
    });
    let _ = reports.send(Report::Forced(name.clone(), forced));
    inspect(inspector, name, kind, reports).await;
}
