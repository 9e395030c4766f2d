//! Many held locks.

use std::error::Error;
use std::ops::Range;

use lockkeeper::{Client, LockGuard};
use tokio::task::JoinSet;

type Fault = Box<dyn Error + Send + Sync>;

/// Tasks that acquire at once.
const TASKS: usize = 256;

/// Acquires the locks with these numbers.
pub(crate) async fn hold(client: &Client, numbers: Range<usize>) -> Result<Vec<LockGuard>, Fault> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS.min(numbers.len()) {
        let (client, numbers) = (client.clone(), numbers.clone());
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for number in numbers.skip(task).step_by(TASKS) {
                guards.push(client.lock(format!("bench:hld:{number:06}")).lock().await?);
            }
            Ok::<_, lockkeeper::Error>(guards)
        });
    }
    let mut guards = Vec::with_capacity(numbers.len());
    while let Some(acquired) = tasks.join_next().await {
        guards.extend(acquired??);
    }
    Ok(guards)
}

/// Releases them, as fast as they were acquired.
pub(crate) async fn free(mut guards: Vec<LockGuard>) -> Result<(), Fault> {
    let mut tasks = JoinSet::new();
    while !guards.is_empty() {
        let share = guards.split_off(guards.len().saturating_sub(guards.len().div_ceil(TASKS)));
        tasks.spawn(async move {
            for guard in share {
                guard.release().await?;
            }
            Ok::<_, lockkeeper::Error>(())
        });
    }
    while let Some(released) = tasks.join_next().await {
        released??;
    }
    Ok(())
}
