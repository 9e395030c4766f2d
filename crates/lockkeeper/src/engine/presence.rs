//! The client as others see it while it holds something: a note of who it is and what it holds, and
//! an ear for what is said to it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;

use super::watchdog::{Registry, subscribe};
use super::{Core, Lease, Tick};
use crate::OwnerId;
use crate::backend::{BoxFuture, Change, Holding, Topic, model};
use crate::error::LostReason;

/// See the module.
pub(super) struct Presence {
    pub(super) last_held: Tick,
    announced: Option<Tick>,
    looked: Tick,
    /// The holds that were told of, and since when: that does not move when the wall clock does.
    told: HashMap<OwnerId, SystemTime>,
    /// Dropped, it ends the task that listens.
    _listening: JoinSet<()>,
}

/// How old a hold must be that is worth a telling of its own.
const WORTH_TELLING: Duration = Duration::from_secs(1);

impl Presence {
    pub(super) fn new(core: &Arc<Core>, now: Tick) -> Self {
        let mut listening = JoinSet::new();
        listening.spawn(hear_notices(Arc::downgrade(core)));
        let (announced, told) = (None, HashMap::new());
        Self { last_held: now, announced, looked: now, told, _listening: listening }
    }

    /// Its failure never fails a lock: it is tried again at the next third, or when there is more to
    /// tell: something that lasts. A hold that is over by the next second is nobody's question.
    pub(super) fn announce(
        &mut self,
        core: &Arc<Core>,
        registry: &Registry,
        now: Tick,
        tasks: &mut JoinSet<()>,
    ) {
        let timeout = core.options.watchdog_timeout;
        let due = self.announced.is_none_or(|at| now.since(at) >= timeout / 3);
        if !due && now.since(self.looked) < WORTH_TELLING {
            return;
        }
        self.looked = now;
        let (old, _) = registry.worth_telling(now, WORTH_TELLING, false);
        if !due && old.iter().all(|lease| self.told.contains_key(&lease.owner)) {
            return;
        }
        let (held, more) = registry.worth_telling(now, WORTH_TELLING, true);
        self.announced = Some(now);
        let wall = SystemTime::now();
        let since = |lease: &Lease| {
            let told = self.told.get(&lease.owner).copied();
            told.or_else(|| wall.checked_sub(now.since(lease.granted))).unwrap_or(wall)
        };
        let holds: Vec<_> = held
            .iter()
            .map(|lease| Holding {
                owner: lease.owner,
                resource: lease.resource.clone(),
                count: lease.permits,
                since: since(lease),
            })
            .collect();
        self.told = holds.iter().map(|hold| (hold.owner, hold.since)).collect();
        let announce = Change::Announce {
            client: core.id,
            info: core.info.clone(),
            holds,
            more,
            ttl: timeout.as_millis() as u64,
        };
        let answer: BoxFuture<_> = core.backend.adjust(announce);
        tasks.spawn(async move {
            if let Err(fault) = answer.await {
                tracing::debug!(?fault, "could not say who holds the locks");
            }
        });
    }
}

/// Hears of forced unlocks.
async fn hear_notices(core: Weak<Core>) {
    let Some(notices) = subscribe(&core, |core| Topic::Notice(core.id)).await else {
        return;
    };
    loop {
        let line = notices.message().await;
        let Some(core) = core.upgrade() else { return };
        let Some((owner, reason)) = model::read_notice(&line) else {
            continue;
        };
        let victim = core.registry.all().into_iter().find(|lease| lease.owner == owner);
        if let Some(lease) = victim {
            lease.lose(LostReason::Revoked(reason));
        }
    }
}
