//! rslock as a contender: `rslock-peer URL LEASE_MS`.

#[path = "../../../src/serve.rs"]
mod serve;

use std::error::Error;
use std::time::Duration;

use rslock::{LockGuard, LockManager};
use serve::{Kind, Locks};

type Fault = Box<dyn Error + Send + Sync>;

/// One manager for all tasks, as its examples have it; its retry settings are the defaults.
#[derive(Clone)]
struct Rslock {
    manager: LockManager,
    lease: Duration,
}

struct Lock {
    rslock: Rslock,
    name: String,
}

impl Locks for Rslock {
    type Lock = Lock;
    type Guard = LockGuard;

    fn version() -> String {
        let pinned = include_str!("../Cargo.toml").split("rslock = { version = \"=").nth(1);
        pinned.and_then(|rest| rest.split('"').next()).unwrap_or("unknown").to_owned()
    }

    async fn connect(url: String, lease: Duration) -> Result<Self, Fault> {
        let urls = url.strip_prefix("quorum:").unwrap_or(&url).split(',').collect();
        // It connects when it is first used.
        Ok(Self { manager: LockManager::new(urls), lease })
    }

    fn lock(&self, kind: Kind, name: String) -> Option<Lock> {
        (kind == Kind::Plain).then(|| Lock { rslock: self.clone(), name })
    }

    async fn acquire(lock: &Lock) -> Result<LockGuard, Fault> {
        let Rslock { manager, lease } = &lock.rslock;
        Ok(manager.acquire(lock.name.as_str(), *lease).await?)
    }

    async fn release(guard: LockGuard) -> Result<(), Fault> {
        guard.release().await;
        Ok(())
    }
}

fn main() -> Result<(), Fault> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: rslock-peer URL LEASE_MS")?;
    let lease = arguments.next().ok_or("usage: rslock-peer URL LEASE_MS")?.parse()?;
    serve::serve::<Rslock>(&url, Duration::from_millis(lease))
}
