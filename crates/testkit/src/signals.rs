//! Signals that whoever started the tests has ignored.

use std::sync::Once;

use tokio::signal::unix::{SignalKind, signal};

/// Gives the processes that are started from now on the default for every signal that asks a process
/// to end, as at a terminal. `nohup`, and the background of a script, have them ignored, and what is
/// ignored is inherited. What is caught is not: that is what this does with those that were ignored.
pub fn as_at_a_terminal() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("a runtime can be made");
        let _inside = runtime.enter();
        for kind in [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
        ] {
            if is_ignored(kind) {
                // Caught for as long as this process lives.
                drop(signal(kind).expect("the signal can be caught"));
            }
        }
    });
}

/// Where that cannot be known nothing is.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (kind.as_raw_value() - 1) != 0
}
