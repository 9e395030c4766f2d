//! Announces the client and its holds to others while it holds a lock, and receives the notices to it.
//!
//! An announcement lists at most 128 holds, and a hold triggers one only after it has lasted a second,
//! so acquire and release pay nothing for it. `lockkeeper ls` reads from it since when a lock is held,
//! and which plain strings are mutexes.
//!
//! No acquire waits until the store listens for notices to this client: that may take long, or be denied.
//! Instead the holds that were granted before are looked at once it does, and again when messages may have
//! been lost, and a hold whose acquire was under way when a notice arrived. Whether one that is gone was
//! force-released, and why, is in the store's record of force-releases.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;

use super::lease::Status;
use super::registry::ANNOUNCED_MAX;
use super::{Core, Lease, Tick, lock};
use crate::OwnerId;
use crate::backend::{
    Answer, Change, Changed, ClientEntry, Holding, Kind, List, Resource, Seen, Select,
    Subscription, Topic,
};
use crate::error::LostReason;
use crate::model;

/// How old a hold must be to trigger an announcement.
const WORTH_ANNOUNCING: Duration = Duration::from_secs(1);

/// When a subscription that failed is tried again: its user may lack the permission.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(5);

/// How long the client listens for notices after its last hold: short holds in a row must not
/// subscribe each time.
const LINGER: Duration = Duration::from_secs(1);

/// The announcements of one client while it holds a lock, and for [`LINGER`] after that; see the module.
pub(super) struct Announcer {
    last_held: Tick,
    announced: Option<Tick>,
    looked: Tick,
    /// The holds in the last announcement.
    announced_holds: HashSet<(OwnerId, SystemTime)>,
    /// Ends the listening task when dropped.
    _listening: JoinSet<()>,
}

impl Announcer {
    /// Announces the client while it holds a lock, and listens for notices. Returns whether it
    /// still has to be called.
    pub(super) fn run(
        active: &mut Option<Self>,
        core: &Arc<Core>,
        now: Tick,
        holding: bool,
        tasks: &mut JoinSet<()>,
    ) -> bool {
        if holding {
            let active = active.get_or_insert_with(|| Self::new(core, now));
            active.last_held = now;
            active.announce(core, now, tasks);
        }
        active.take_if(|active| now.since(active.last_held) >= LINGER);
        active.is_some()
    }

    fn new(core: &Arc<Core>, now: Tick) -> Self {
        let mut listening = JoinSet::new();
        listening.spawn(receive_notices(Arc::downgrade(core)));
        let (announced, announced_holds) = (None, HashSet::new());
        Self { last_held: now, announced, looked: now, announced_holds, _listening: listening }
    }

    /// Announces when that is due, or when there is a new hold that has lasted. A failure never
    /// fails a lock; it is repeated when the next announcement is due.
    fn announce(&mut self, core: &Arc<Core>, now: Tick, tasks: &mut JoinSet<()>) {
        let timeout = core.options.watchdog_timeout;
        let due = self.announced.is_none_or(|at| now.since(at) >= timeout / 3);
        if !due && now.since(self.looked) < WORTH_ANNOUNCING {
            return;
        }
        self.looked = now;
        let (old, _) = core.registry.worth_announcing(now, WORTH_ANNOUNCING, false);
        let is_known =
            |lease: &Arc<Lease>| self.announced_holds.contains(&(lease.owner, lease.since(now)));
        if !due && old.iter().all(is_known) {
            return;
        }
        let announce = core.announcement(now);
        if let Change::Announce { client, .. } = &announce {
            self.announced_holds =
                client.holds.iter().map(|hold| (hold.owner, hold.since)).collect();
        }
        self.announced = Some(now);
        tasks.spawn(announced(core.backend.adjust(announce)));
    }
}

impl Lease {
    /// Since when it is held, by the wall clock when this was first asked.
    fn since(&self, now: Tick) -> SystemTime {
        *self.since.get_or_init(|| {
            let wall = SystemTime::now();
            wall.checked_sub(now.since(self.granted)).unwrap_or(wall)
        })
    }

    /// Its entry in the client's announcement.
    fn holding(&self, now: Tick) -> Holding {
        Holding {
            owner: self.owner,
            resource: self.resource.clone(),
            count: self.permits,
            since: self.since(now),
            left: None,
        }
    }
}

/// A hold whose guard was released but whose lock stays held until then.
#[derive(Debug)]
pub(super) struct Left {
    holding: Holding,
    until: Tick,
}

/// How much longer than such a lock its announcement lasts.
const LEFT_MARGIN: Duration = Duration::from_secs(1);

impl Core {
    /// Returns the announcement of this client, its holds and the locks that it left held.
    fn announcement(&self, now: Tick) -> Change {
        let (held, more) = self.registry.worth_announcing(now, WORTH_ANNOUNCING, true);
        self.note_of(held.iter().map(|lease| lease.holding(now)).collect(), more, now)
    }

    /// Returns the last change of a client: withdraws it, or announces only the locks that it left
    /// held.
    pub(super) fn withdrawal(&self) -> Change {
        let now = self.clock.now();
        match self.left(now).is_empty() {
            true => Change::Withdraw { client: self.id },
            false => self.note_of(Vec::new(), false, now),
        }
    }

    fn note_of(&self, mut holds: Vec<Holding>, more: bool, now: Tick) -> Change {
        self.announced.store(true, Ordering::Relaxed);
        let mut ttl = self.options.watchdog_timeout;
        let every = (ttl / 3).as_millis() as u64;
        for (holding, rest) in self.left(now) {
            holds.push(holding);
            ttl = ttl.max(rest.saturating_add(LEFT_MARGIN));
        }
        let (info, seen) = (self.info.clone(), Some(Seen::new(0, every)));
        let client = ClientEntry { id: self.id, info, holds, more, seen };
        Change::Announce { client, ttl: ttl.as_millis() as u64 }
    }

    /// Returns the locks that were left held, and for how long each still is.
    fn left(&self, now: Tick) -> Vec<(Holding, Duration)> {
        let mut left = lock(&self.left);
        left.retain(|left| left.until > now);
        left.iter().map(|left| (left.holding.clone(), left.until.since(now))).collect()
    }

    /// Announces at once that a guard left its lock held for another `ttl` milliseconds, because
    /// the process may end soon. The caller does not wait for it, and a failure changes nothing.
    pub(super) fn leave(&self, lease: &Lease, ttl: u64) {
        let now = self.clock.now();
        let holding = Holding { left: Some(SystemTime::now()), ..lease.holding(now) };
        let until = now + Duration::from_millis(ttl);
        {
            let mut left = lock(&self.left);
            left.push(Left { holding, until });
            // Bounded, because each announcement sends all of them.
            let surplus = left.len().saturating_sub(ANNOUNCED_MAX);
            left.drain(..surplus);
        }
        let answer = self.backend.adjust(self.announcement(now));
        self.reaper.adopt(Box::pin(announced(answer)));
    }
}

async fn announced(answer: Answer<Changed>) {
    if let Err(fault) = answer.await {
        tracing::debug!(%fault, "could not announce the holds of this client");
    }
}

/// Receives the notices of force-releases.
async fn receive_notices(core: Weak<Core>) {
    let notices = loop {
        match subscribe(&core, |core| Topic::Notice(core.id)).await {
            Some(notices) => break notices,
            None => tokio::time::sleep(SUBSCRIBE_AGAIN).await,
        }
        if core.strong_count() == 0 {
            return;
        }
    };
    let (mut seen, mut checked) = (0, None);
    loop {
        notices.beyond(seen).await;
        let (now, lines) = notices.unread();
        let Some(core) = core.upgrade() else { return };
        // Before the leases are looked at: an acquire under way begins its lease before that, or finds this.
        core.listens_since.store(core.clock.now().as_nanos(), Ordering::SeqCst);
        for (owner, reason) in lines.iter().filter_map(|line| model::read_notice(line)) {
            if let Some(lease) = core.registry.of(owner) {
                lease.lose(LostReason::Revoked(reason));
            }
        }
        // A wake-up without a message: the subscription has broken, or the store listens from now on.
        if now - seen > lines.len() as u64 && notices.is_confirmed() {
            core.check_all(&mut checked);
        }
        seen = now;
    }
}

/// How many holds are checked each time the subscription has broken, and of how many that are gone at once the
/// reason is looked up.
pub(super) const FEW: usize = 8;

impl Core {
    /// Checks the holds that may have been force-released while the store did not listen for this client. Many are
    /// `checked` at most once in the time in which the watchdog renews them anyway: connections may break often.
    fn check_all(&self, checked: &mut Option<Tick>) {
        let leases = self.registry.all();
        if leases.len() > FEW {
            let (now, pause) = (self.clock.now(), self.options.watchdog_timeout / 3);
            if checked.is_some_and(|checked| now.since(checked) < pause) {
                return;
            }
            *checked = Some(now);
            return leases.iter().for_each(|lease| lease.check_now());
        }
        leases.into_iter().for_each(Lease::look_now);
    }
}

impl Lease {
    /// Looks whether the store still has it; if not, the watchdog checks it at once. Unlike a renewal, a look changes
    /// nothing where it is there, as almost always.
    pub(super) fn look_now(self: Arc<Self>) {
        if self.resource.kind.is_reentrant() || self.resource.kind == Kind::Mutex {
            let reaper = self.core.reaper.clone();
            reaper.adopt(Box::pin(async move {
                let id = self.owner.to_string();
                let found = self.core.backend.inspect(self.resource.clone()).await;
                if !found.is_ok_and(|lock| lock.holders.iter().any(|holder| holder.id == id)) {
                    self.check_now();
                }
            }));
        }
    }
}

/// For how long after its grant, or after the last notice or confirmed subscription, a hold that is gone may have
/// been force-released without a notice.
const MAY_MISS: Duration = Duration::from_secs(1);

/// For how long the record of such a force-release is looked for, which is written after it.
const LOOKED_FOR: Duration = Duration::from_millis(500);

/// The first pause between two looks. The next is twice as long.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Lease {
    /// Whether a notice about it may have been missed.
    pub(super) fn may_have_missed_notice(&self, now: Tick) -> bool {
        let listens_since = Tick::from_nanos(self.core.listens_since.load(Ordering::SeqCst));
        now.since(self.granted.max(listens_since)) < MAY_MISS
    }

    /// Declares it lost if its force-release is recorded. Ends soon, also if the store does not answer.
    pub(super) async fn look_for_record(&self) {
        let _ = tokio::time::timeout(LOOKED_FOR, async {
            let (id, mut pause) = (self.owner.to_string(), LOOK_AGAIN);
            let Resource { kind, name } = &self.resource;
            while lock(&self.state).status == Status::Held {
                let select = Select::Named(name.clone(), Some(*kind));
                let list = List { select, cursor: Vec::new(), limit: 1 };
                let locks =
                    self.core.backend.list(list).await.map_or(Vec::new(), |page| page.locks);
                let mut recorded = locks.iter().flat_map(|lock| &lock.forced);
                if let Some(forced) = recorded.find(|forced| forced.holders.contains(&id)) {
                    return self.lose(LostReason::Revoked(model::one_line(&forced.reason)));
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        })
        .await;
    }
}

pub(super) async fn subscribe(
    core: &Weak<Core>,
    topic: impl Fn(&Core) -> Topic,
) -> Option<Subscription> {
    let subscribing = {
        let core = core.upgrade()?;
        core.backend.subscribe(topic(&core))
    };
    let subscription = subscribing.await;
    if let Err(fault) = &subscription {
        tracing::debug!(%fault, "cannot listen");
    }
    subscription.ok()
}
