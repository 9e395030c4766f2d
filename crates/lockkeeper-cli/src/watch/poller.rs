//! Looking at the store again and again, beside the screen: a store that does not answer must not
//! keep a key from being heard.

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

/// How soon a store that could not be reached is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What the screen is told.
#[derive(Debug)]
pub(super) enum Report {
    Connected(Inspector),
    Looked(Look),
    Failed(String),
    Inspected(Box<LockInfo>),
    /// What came of taking a lock away: what becomes of its holders, if there was anything to take.
    Forced(LockName, Result<Option<String>, String>),
    /// It makes no sense to go on.
    Hopeless(Failure),
}

/// Opens the store and looks at it for as long as anybody listens.
pub(super) async fn look_out(
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
        let begun = Instant::now();
        let looked = watch.look().await;
        // A look waits for its time first.
        let took = begun.elapsed().saturating_sub(every);
        let report = match &looked {
            Ok(()) => Report::Looked(seen(&mut watch, took)),
            Err(error) => Report::Failed(error.to_string()),
        };
        let _ = reports.send(report);
        // Where there is so much to see that it takes longer than it may, half of the time is enough.
        if looked.is_ok() && took > every {
            sleep(took).await;
        }
    }
}

fn seen(watch: &mut Watch, took: Duration) -> Look {
    // The view finds the differences to what is on the screen, which need not be what the last look
    // saw.
    while watch.try_next().is_some() {}
    Look { locks: watch.locks().cloned().collect(), complete: watch.is_complete(), took }
}

/// A server that is not there yet may come; a URL that makes no sense will not make any later.
async fn connect(store: &Store, reports: &UnboundedSender<Report>) -> Option<Inspector> {
    loop {
        match store.connect_with(as_operator(store.options.clone()).read_only()).await {
            Ok(client) => return Some(client.inspector()),
            Err(failure) if failure.code == Code::UNREACHABLE => {
                reports.send(Report::Failed(failure.message)).ok()?;
            }
            Err(failure) => {
                let _ = reports.send(Report::Hopeless(failure));
                return None;
            }
        }
        sleep(RETRY).await;
    }
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

/// Takes a lock away from those `from` whom it was to be taken, and looks what became of it.
pub(super) async fn force(
    inspector: Inspector,
    (name, kind): (LockName, Kind),
    reason: String,
    from: Vec<Holder>,
    reports: UnboundedSender<Report>,
) {
    let forced = inspector.force_unlock_from(&name, kind, &from, reason).await;
    let forced = forced.map(|taken| taken.then(|| display::consequence(&from)));
    let forced = forced.map_err(|error| match error {
        Error::NotHeld { .. } => "it has changed hands meanwhile, and was left alone".to_owned(),
        error => error.to_string(),
    });
    let _ = reports.send(Report::Forced(name.clone(), forced));
    inspect(inspector, name, kind, reports).await;
}
