//! Repeats a request whose fault may pass. All requests that are safe to repeat use it, except those
//! that wait: these are repeated by the acquire loop, and renewals by the watchdog.

use std::future::Future;

use super::{Core, Tick};
use crate::LockName;
use crate::backend::Fault;

/// The outcome of a repeated request.
pub(super) struct Retried<T> {
    /// The answer to the last try.
    pub(super) answer: Result<T, Fault>,
    /// When that try was sent.
    pub(super) sent: Tick,
    /// A try before the last one got no answer, and may have been executed.
    pub(super) maybe_ran: bool,
}

/// Sends a request about `name` until it is answered, fails for good, or `stop` says so. The first
/// try is always sent, unless it was sent before and has failed with `fault`; no other is sent at `ends` or
/// later. `failed` is called once for each fault that may pass.
pub(super) async fn retry_until<T, F: Future<Output = Result<T, Fault>>>(
    core: &Core,
    name: &LockName,
    (mut sent, ends): (Tick, Tick),
    mut fault: Option<Fault>,
    mut send: impl FnMut() -> F,
    mut failed: impl FnMut(&Fault),
    stop: impl Fn() -> bool,
) -> Retried<T> {
    let (mut failures, mut maybe_ran) = (0, false);
    let over = || stop() || core.clock.now() >= ends;
    loop {
        if let Some(fault) = fault.take() {
            failed(&fault);
            if !over() {
                tokio::time::sleep(core.options.backoff(failures)).await;
            }
            if over() {
                return Retried { answer: Err(fault), sent, maybe_ran };
            }
            failures += 1;
            maybe_ran |= fault.maybe_ran();
            sent = core.clock.now();
        }
        let answer = send().await;
        core.note(name, sent, &answer);
        match answer {
            Err(next) if next.may_pass() => fault = Some(next),
            answer => return Retried { answer, sent, maybe_ran },
        }
    }
}
