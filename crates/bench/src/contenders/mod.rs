//! The contenders. Each does the same work on names of the same length with owner ids of the same
//! length.

pub(crate) mod driver;
pub(crate) mod keeper;
pub(crate) mod raw;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::Result;

/// Stands for a client's uuid in the owner ids of the contenders that make their own.
pub(crate) const UUID: &str = "6e0c3c4e-6f1b-4a3e-9d1c-2f3b4a5d6e7f";

/// Something that can take and release uncontended locks from a number of tasks for a while.
pub(crate) trait Contender {
    /// Its name in the table.
    fn name(&self) -> String;

    /// Takes and releases until `time` is over and every task has finished its pair; returns the
    /// pairs.
    fn run(&mut self, tasks: usize, time: Duration) -> Result<u64>;
}

/// Told to every task when the time is over. A flag, because a clock read per operation would be
/// measured too.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether the task should finish.
    pub(crate) fn reached(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends the work.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `tasks` tasks until `time` is over; returns the sum of what they counted.
pub(crate) fn drive<F>(
    runtime: &Handle,
    tasks: usize,
    time: Duration,
    task: impl Fn(usize, Stop) -> F,
) -> Result<u64>
where
    F: Future<Output = Result<u64>> + Send + 'static,
{
    runtime.block_on(async {
        let stop = Stop::default();
        let mut running = JoinSet::new();
        for number in 0..tasks {
            running.spawn_on(task(number, stop.clone()), runtime);
        }
        tokio::time::sleep(time).await;
        stop.set();
        let mut total = 0;
        while let Some(count) = running.join_next().await {
            total += count??;
        }
        Ok(total)
    })
}
