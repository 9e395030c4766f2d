//! lockkeeper as a contender, so that it is measured as the peers are: `bench-contender KIND URL LEASE_MS`,
//! where the kind is `lock`, `acknowledged` (by one replica within a second) or `mutex`.
//!
//! A program of its own, because the counting allocator of the benchmark would be measured, too.

#[path = "../serve.rs"]
mod serve;

use std::time::Duration;

use lockkeeper::{AnyGuard, AnyLock, Client, ClientOptions, RedisOptions};
use serve::{Kind, Locks};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A client whose plain lock is a `Lock`, or a `Mutex` if `MUTEX`.
#[derive(Clone)]
struct Served<const MUTEX: bool, const ACKNOWLEDGED: bool> {
    client: Client,
}

impl<const MUTEX: bool, const ACKNOWLEDGED: bool> Locks for Served<MUTEX, ACKNOWLEDGED> {
    type Lock = AnyLock;
    type Guard = AnyGuard;

    fn version() -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    async fn connect(url: String, lease: Duration) -> Result<Self, Error> {
        let options = ClientOptions::new().watchdog_timeout(lease).longest_lease(lease);
        let options = match ACKNOWLEDGED {
            true => options.redis(RedisOptions::new().acknowledged_by(1, Duration::from_secs(1))),
            false => options,
        };
        // A short lease leaves less time for an answer.
        let options = match lease < Duration::from_secs(10) {
            true => options.response_timeout(lease / 3),
            false => options,
        };
        Ok(Self { client: Client::connect_with(&url, options).await? })
    }

    fn lock(&self, kind: Kind, name: String) -> Option<AnyLock> {
        Some(match kind {
            Kind::Plain if MUTEX => self.client.mutex(name).into(),
            Kind::Plain => self.client.lock(name).into(),
            Kind::Fair => self.client.fair_lock(name).into(),
            Kind::Read => self.client.rw_lock(name).reader(),
            Kind::Write => self.client.rw_lock(name).writer(),
        })
    }

    async fn acquire(lock: &AnyLock) -> Result<AnyGuard, Error> {
        Ok(lock.lock().await?)
    }

    async fn release(guard: AnyGuard) -> Result<(), Error> {
        Ok(guard.release().await?)
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [kind, url, lease] = &arguments[..] else {
        return Err("usage: bench-contender lock|acknowledged|mutex URL LEASE_MS".into());
    };
    let lease = Duration::from_millis(lease.parse()?);
    match kind.as_str() {
        "lock" => serve::serve::<Served<false, false>>(url, lease),
        "acknowledged" => serve::serve::<Served<false, true>>(url, lease),
        "mutex" => serve::serve::<Served<true, false>>(url, lease),
        _ => Err(format!("no lock called {kind}").into()),
    }
}
