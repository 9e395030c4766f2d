//! Waiting for what passes through the proxy.

use tokio::runtime::Handle;
use tokio::time;

use super::matcher::Matcher;
use super::state::State;
use super::{ConnId, FaultProxy, Shared, WAIT_LIMIT};

/// When a request counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    Arrived,
    Delivered,
}

/// The proxy's side of a [`RequestWatch`].
#[derive(Debug)]
pub(super) struct Watch {
    stage: Stage,
    matcher: Matcher,
    count: usize,
}

impl Watch {
    pub(super) fn observe(&mut self, stage: Stage, id: ConnId, bytes: &[u8]) -> usize {
        if stage != self.stage {
            return 0;
        }
        let found = self.matcher.feed(id, bytes);
        self.count += found;
        found
    }

    pub(super) fn forget(&mut self, id: ConnId) {
        self.matcher.forget(id);
    }
}

/// Counts requests that contain a needle, from its creation on.
#[derive(Debug)]
pub struct RequestWatch {
    key: u64,
    needle: String,
    state: Shared,
    handle: Handle,
}

impl RequestWatch {
    pub(super) fn register(proxy: &FaultProxy, stage: Stage, needle: &[u8]) -> Self {
        let watch = Watch { stage, matcher: Matcher::new(needle), count: 0 };
        let mut key = 0;
        proxy.state.send_modify(|state| {
            key = state.next_watch;
            state.next_watch += 1;
            state.watches.insert(key, watch);
        });
        let needle = String::from_utf8_lossy(needle).into_owned();
        Self { key, needle, state: proxy.state.clone(), handle: proxy.handle.clone() }
    }

    /// How many there have been.
    pub fn count(&self) -> usize {
        count(&self.state.borrow(), self.key)
    }

    /// Resolves when there has been one.
    ///
    /// # Panics
    ///
    /// If there is none within twenty seconds.
    pub async fn wait(&self) {
        self.wait_for(1).await;
    }

    /// Resolves when there have been `times`.
    ///
    /// # Panics
    ///
    /// If there are not that many within twenty seconds.
    pub async fn wait_for(&self, times: usize) {
        let key = self.key;
        let what = format!("{times} request(s) containing {:?}", self.needle);
        let enough = move |state: &State| count(state, key) >= times;
        bounded(&self.handle, self.state.clone(), what, enough).await;
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        self.state.send_if_modified(|state| {
            state.watches.remove(&self.key);
            false
        });
    }
}

fn count(state: &State, key: u64) -> usize {
    state.watches.get(&key).map_or(0, |watch| watch.count)
}

/// Waits for a condition, on the proxy's clock: the test's may be paused, and then a time limit on it
/// would strike at once.
pub(super) async fn bounded(
    handle: &Handle,
    state: Shared,
    what: String,
    condition: impl FnMut(&State) -> bool + Send + 'static,
) {
    let mut news = state.subscribe();
    let wait = async move { news.wait_for(condition).await.is_ok() };
    let found = handle.spawn(async move { time::timeout(WAIT_LIMIT, wait).await });
    match found.await {
        Ok(Ok(true)) => {}
        Ok(_) => panic!("the proxy has waited {WAIT_LIMIT:?} in vain for {what}"),
        Err(_) => panic!("the proxy was dropped while waiting for {what}"),
    }
}
