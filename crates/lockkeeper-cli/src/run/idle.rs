//! Holding the lock without a command.

use lockkeeper::AnyGuard;

use super::clock;
use super::plan::Plan;
use super::signals::Signals;
use super::supervise::{Ending, Why};
use crate::exit::say;

/// Holds the lock until a signal, its loss, or `--max-hold`.
pub(super) async fn hold(plan: &Plan, guard: &AnyGuard, signals: &mut Signals) -> Ending {
    let end = plan.max_hold.map(|span| clock::now() + span);
    let max_hold = async {
        let Some(end) = end else {
            return std::future::pending().await;
        };
        // In short steps: a timer does not advance while the machine is suspended.
        loop {
            match end.saturating_sub(clock::now()) {
                left if left.is_zero() => return,
                left => tokio::time::sleep(left.min(plan.tick())).await,
            }
        }
    };
    let why = tokio::select! {
        biased;
        reason = guard.lost() => Some(Why::Lost(reason.to_string())),
        () = max_hold => {
            let (name, span) = (guard.name(), plan.max_hold.unwrap_or_default());
            say(format_args!("releasing lock \"{name}\": it was held for --max-hold {span:?}"));
            Some(Why::MaxHold)
        }
        _ = signals.ending() => None,
    };
    Ending { status: None, why, foreground: None, hook: None }
}
