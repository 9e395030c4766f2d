//! Announces the client and its holds to others while it holds a lock, and receives the notices to it.
//!
//! An announcement lists at most 128 holds, and a hold triggers one only after it has lasted a second,
//! so acquire and release pay nothing for it. `lockkeeper ls` reads from it since when a lock is held,
//! and which plain strings are mutexes.
//!
//! No acquire waits until the store listens for notices to this client: that may take long, or be denied.
//! Instead the holds that were granted before are looked at once it does, and again when messages may have
//! been lost. Whether one was force-released, and why, is in the store's record of force-releases. A notice that
//! comes before the answer to the acquire is kept until there is a lease (`registry.rs`).

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
    Answer, Change, Changed, ClientEntry, Holding, List, LockInfo, Resource, Seen, Select,
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
    /// Whether a notice about it may have been missed, although it was not looked at yet.
    pub(super) fn may_have_missed_notice(&self, now: Tick) -> bool {
        now.since(self.granted) < MAY_MISS
    }

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
        for (owner, reason) in lines.iter().filter_map(|line| model::read_notice(line)) {
            if let Some(lease) = core.registry.noticed(owner, &reason, core.clock.now()) {
                lease.lose(LostReason::Revoked(reason));
            }
        }
        // A wake-up without a message: the subscription has broken, or the store listens from now on.
        if now - seen > lines.len() as u64 && notices.is_confirmed() {
            // Before the look: an acquire under way begins its lease before it, or finds this.
            core.listens_since.store(core.clock.now().as_nanos(), Ordering::SeqCst);
            core.look_for_missed_notices(&mut checked);
        }
        seen = now;
    }
}

/// How many holds are looked at one by one. If there are more, the watchdog checks all of them at once, and
/// does not learn the reason.
pub(super) const LOOKED_AT_MAX: usize = 8;

/// How long after a force-release it may be recorded: the first pause between two looks, and how often it is
/// doubled.
const RECORDED_AFTER: Duration = Duration::from_millis(5);
const RECORDED_TRIES: u32 = 7;

impl Core {
    /// Looks for holds that were force-released while the store did not listen for this client. All holds are
    /// `checked` at most once in the time in which the watchdog renews them anyway: connections may break often.
    fn look_for_missed_notices(&self, checked: &mut Option<Tick>) {
        let mut leases = self.registry.all();
        leases.retain(|lease| lease.resource.kind.is_lock());
        let one_by_one = leases.len() <= LOOKED_AT_MAX;
        if !one_by_one {
            let (now, pause) = (self.clock.now(), self.options.watchdog_timeout / 3);
            if checked.is_some_and(|checked| now.since(checked) < pause) {
                return;
            }
            *checked = Some(now);
        }
        for lease in leases {
            match one_by_one {
                true => self.reaper.adopt(Box::pin(look_for_missed_notice(lease))),
                false => lease.check_now(),
            }
        }
    }
}

impl Lease {
    /// Looks for a force-release that came before its client listened, if its acquire was sent before that.
    pub(super) fn look_if_notice_missed(self: &Arc<Self>, sent: Tick) {
        if sent.as_nanos() < self.core.listens_since.load(Ordering::SeqCst)
            && self.resource.kind.is_lock()
        {
            self.core.reaper.adopt(Box::pin(look_for_missed_notice(Arc::clone(self))));
        }
    }
}

/// Looks whether the store still has a lease. If it was not force-released, lets the watchdog decide.
async fn look_for_missed_notice(lease: Arc<Lease>) {
    let id = lease.owner.to_string();
    let has_it = |found: LockInfo| found.holders.iter().any(|holder| holder.id == id);
    if !lease.core.backend.inspect(lease.resource.clone()).await.map_or(true, has_it) {
        look_for_record(&lease).await;
        lease.check_now();
    }
}

/// How long after its grant a lease may have been force-released before the store listened.
const MAY_MISS: Duration = Duration::from_secs(1);

/// Declares a lease that the store does not have lost if its force-release is recorded.
pub(super) async fn look_for_record(lease: &Arc<Lease>) {
    let (core, id) = (&lease.core, lease.owner.to_string());
    let Resource { kind, name } = &lease.resource;
    for tries in 0..RECORDED_TRIES {
        if core.is_closed() || lock(&lease.state).status != Status::Held {
            return;
        }
        let select = Select::Named(name.clone(), Some(*kind));
        let listed = core.backend.list(List { select, cursor: Vec::new(), limit: 1 }).await;
        let Ok(page) = listed else { return };
        let mut recorded = page.locks.iter().flat_map(|lock| &lock.forced);
        if let Some(forced) = recorded.find(|forced| forced.holders.contains(&id)) {
            return lease.lose(LostReason::Revoked(model::one_line(&forced.reason)));
        }
        tokio::time::sleep(RECORDED_AFTER * 2_u32.pow(tries)).await;
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
