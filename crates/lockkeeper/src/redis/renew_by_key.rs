//! Renewals in steps of one key each, for a slot that is being migrated.
//!
//! There a script runs only if all of its keys are at one node, and a script that declares a key that
//! does not exist never does. A step has one key, and the node that has the key runs it. No step
//! shortens a TTL, so steps that ran before one failed do no harm. A key that is missing at both nodes
//! has expired.

use super::command::Command;
use super::{Inner, keys, name, permits, script};
use crate::OwnerId;
use crate::backend::{Fault, Kind, Renew, Renewed};

/// The most holds of a reader, as in the scripts.
const HOLDS_MAX: u32 = 65_535;

impl Inner {
    /// Renews or checks a hold key by key. Returns `None` for an entry that has no such form: its
    /// renewal has one key anyway, or it is a queue position.
    pub(super) async fn renew_in_steps(&self, renew: &Renew) -> Option<Result<Renewed, Fault>> {
        match renew.resource.kind {
            Kind::Read => Some(self.renew_reader(renew).await),
            Kind::Permits => Some(self.renew_permits(renew).await),
            _ => None,
        }
    }

    /// The keys of the single holds come first: without one of them the reader has expired. They have
    /// the numbers from 1 on without a gap, and one TTL.
    async fn renew_reader(&self, renew: &Renew) -> Result<Renewed, Fault> {
        let mut own = Renewed::Gone;
        for number in 1..=HOLDS_MAX {
            let key = keys::read_hold(&renew.resource.name, &renew.owner, number);
            match self.step(&key, renew, key_step(&key, renew, None)).await? {
                held @ Renewed::Held(_) if number == 1 => own = held,
                Renewed::Held(_) => {}
                _ => break,
            }
        }
        if own == Renewed::Gone {
            return Ok(own);
        }
        let lock = name(&renew.resource);
        match self.step(lock, renew, key_step(lock, renew, Some(&renew.owner))).await? {
            Renewed::Held(_) => Ok(own),
            lost => Ok(lost),
        }
    }

    /// A temporary semaphore must not expire before its permits: its keys come first.
    async fn renew_permits(&self, renew: &Renew) -> Result<Renewed, Fault> {
        let semaphore = &renew.resource.name;
        let ends = keys::permit_ends(semaphore).to_vec();
        let mark = keys::temporary(semaphore).to_vec();
        for key in [&mark[..], semaphore.as_bytes(), &ends] {
            let found = self.step(key, renew, key_step(key, renew, None)).await?;
            if key == mark && found == Renewed::Gone {
                break;
            }
        }
        self.step(&ends, renew, permits::renew_ends(renew)).await
    }

    /// Sends one step. Where replicas must acknowledge a renewal, they acknowledge each step.
    async fn step(
        &self,
        key: &[u8],
        renew: &Renew,
        step: Command<Renewed>,
    ) -> Result<Renewed, Fault> {
        let is_renewal =
            |answer: &Renewed| renew.ttl.is_some() && matches!(answer, Renewed::Held(_));
        self.route.write(key, step, is_renewal).await
    }
}

/// Creates a request to renew or check one key, which must have a field for `owner` if one is given.
fn key_step(key: &[u8], renew: &Renew, owner: Option<&OwnerId>) -> Command<Renewed> {
    let call = script::KEY_RENEW.call(1).arg(key).arg(renew.ttl.unwrap_or(0));
    match owner {
        Some(owner) => call.arg(owner),
        None => call,
    }
}

#[cfg(test)]
mod tests {
    use testkit::RedisServer;
    use uuid::Uuid;

    use super::*;
    use crate::ClientOptions;
    use crate::backend::{Acquire, Backend, Resource, Ttl};
    use crate::redis::Redis;

    const OLD: u64 = 60_000;
    const NEW: u64 = 90_000;

    struct Held {
        server: RedisServer,
        redis: Redis,
        owner: OwnerId,
        resource: Resource,
    }

    impl Held {
        async fn new(kind: Kind) -> Self {
            let server = RedisServer::start();
            let redis = Redis::connect(&server.url(), &ClientOptions::new()).await.unwrap();
            let owner = OwnerId::fresh(Uuid::new_v4());
            Self { server, redis, owner, resource: Resource { kind, name: "a".into() } }
        }

        fn request(&self) -> Acquire {
            Acquire::new(self.resource.clone(), self.owner, OLD)
        }

        async fn acquire(&self, request: Acquire) {
            assert!(self.redis.acquire(request).await.unwrap().is_granted());
        }

        async fn renew(&self, ttl: Option<u64>) -> Renewed {
            let renew = Renew { count: 2, ..Renew::new(self.resource.clone(), self.owner, ttl) };
            self.redis.inner.renew_in_steps(&renew).await.unwrap().unwrap()
        }

        fn left(&self, key: &str) -> u64 {
            self.server.cli(&["PTTL", key]).int().unsigned_abs()
        }

        /// A check and a shorter renewal change nothing, a longer one extends all of these keys.
        async fn assert_renews(&self, keys: &[&str]) {
            let is_near = |left: u64, ttl: u64| left <= ttl && left > ttl - 15_000;
            for (ttl, found, then) in [
                (None, OLD, OLD),
                (Some(1), OLD, OLD),
                (Some(NEW), OLD, NEW),
                (Some(OLD), NEW, NEW),
            ] {
                match self.renew(ttl).await {
                    Renewed::Held(Ttl::For(left)) => {
                        assert!(is_near(left.as_millis() as u64, found), "{left:?}")
                    }
                    other => panic!("{other:?}"),
                }
                for key in keys {
                    assert!(is_near(self.left(key), then), "{key}: {}", self.left(key));
                }
            }
        }
    }

    #[tokio::test]
    async fn a_reader_is_renewed_key_by_key() {
        let held = Held::new(Kind::Read).await;
        assert_eq!(held.renew(Some(NEW)).await, Renewed::Gone);
        for count in 1..=3 {
            held.acquire(Acquire { count, ..held.request() }).await;
        }
        let own = [1, 2, 3].map(|number| format!("{{a}}:{}:rwlock_timeout:{number}", held.owner));
        held.assert_renews(&["a", &own[0], &own[1], &own[2]]).await;
        // Another reader keeps the lock, but not this hold.
        held.server.cli(&["HDEL", "a", &held.owner.to_string()]).ok();
        assert_eq!(held.renew(Some(NEW)).await, Renewed::Gone);
        held.server.cli(&["DEL", &own[0], &own[1], &own[2]]).ok();
        held.server.cli(&["HSET", "a", &held.owner.to_string(), "3"]).ok();
        assert_eq!(held.renew(Some(NEW)).await, Renewed::Gone, "all of its holds have expired");
    }

    #[tokio::test]
    async fn permits_are_renewed_by_their_expiry_alone() {
        let held = Held::new(Kind::Permits).await;
        held.server.cli(&["SET", "a", "5"]).ok();
        assert_eq!(held.renew(Some(NEW)).await, Renewed::Gone);
        held.acquire(Acquire { count: 2, ..held.request() }).await;
        held.assert_renews(&[]).await;
        assert_eq!(held.server.cli(&["PTTL", "a"]).int(), -1, "only a temporary one expires");
        assert_eq!(held.server.cli(&["GET", "a"]).text(), "3");
        held.server.cli(&["ZREMRANGEBYRANK", "{a}:timeout", "0", "0"]).ok();
        assert_eq!(held.renew(Some(NEW)).await, Renewed::Gone, "one of the two is missing");
    }

    #[tokio::test]
    async fn a_temporary_semaphore_does_not_expire_before_its_permits() {
        let held = Held::new(Kind::Permits).await;
        held.acquire(Acquire { count: 2, temporary: Some(5), ..held.request() }).await;
        held.assert_renews(&["a", "{a}:timeout", "lockkeeper_temporary:{a}"]).await;
    }
}
