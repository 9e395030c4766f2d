//! The network and the servers of a simulated world: a [`Backend`] per client in front of the model.
//!
//! Whatever happens is an event in one queue, ordered by virtual time and then by number. One task executes them.
//! All random choices come from one generator, so a seed decides everything.
//!
//! A request travels to the server of its name's lane, is executed there by the model, and its answer travels back. On
//! the way it may be lost before or after it was executed, delivered twice, or executed after its caller was told
//! that there is no answer: as long as its lane was not asked again by this client, where lost requests can be revoked,
//! and for at most its lease elsewhere. A lane may die (with its data, without, or with an old snapshot), hang, or step
//! its clock. A connection that dies loses the messages to its subscribers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use lockkeeper::backend::{
    Acquire, Answer, Attempt, Backend, BoxFuture, Capabilities, Change, Changed, Edge, Fault,
    Finding, Lane, List, LockInfo, Page, Release, Released, Renew, Renewed, Resource, Select,
    Subscription, Subscriptions, Topic,
};
use lockkeeper::stores::{State, Wake};
use lockkeeper::{Kind, LockName, OwnerId};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Weather;

/// How long an answer may take: half of the default, for more timeouts in the same time.
pub(super) const RESPONSE: Duration = Duration::from_millis(1500);

/// How much later than its caller's timeout a lost request may be executed where it cannot be revoked.
const LATE: u64 = 5_000;

/// How many events are kept for a failure.
const TAIL: usize = 4_000;

/// How many of these are shown for a violation.
const SHOWN: usize = 120;

/// A point in virtual time, in microseconds.
pub(super) type Micros = u64;

type Act = Box<dyn FnOnce(&mut World) + Send>;

/// See the module.
pub(super) struct World {
    started: Instant,
    pub(super) weather: Weather,
    pub(super) rng: Rng,
    queue: BinaryHeap<Reverse<(Micros, u64)>>,
    acts: HashMap<u64, Act>,
    next: u64,
    lanes: Vec<Server>,
    clients: Vec<Client>,
    pub(super) history: History,
    /// When a lock was freed, and from when to when it was free the last time.
    freed: HashMap<LockName, Micros>,
    free: HashMap<LockName, (Micros, Micros)>,
    /// When a name was last force-released.
    forced: HashMap<LockName, Micros>,
    pub(super) violations: Vec<(LockName, String)>,
    /// Counted: requests that were executed, and faults by kind.
    pub(super) requests: u64,
    pub(super) faults: BTreeMap<&'static str, u64>,
}

/// What happened, as a hash of everything and the last events as text.
pub(super) struct History {
    pub(super) hash: u64,
    pub(super) tail: Option<VecDeque<(LockName, String)>>,
    /// Owners by number: their identities are random.
    owners: HashMap<OwnerId, u64>,
}

/// The server of a lane.
struct Server {
    state: State,
    /// An earlier state, to be restored.
    snapshot: State,
    /// By how much its clock was stepped, in milliseconds.
    stepped: i64,
    /// Until when it executes nothing; requests wait if it hangs, and fail if it is dead.
    away_until: Micros,
    hangs: bool,
    /// The number of its lives: an answer of an earlier one is lost.
    life: u64,
    listeners: HashMap<Topic, Vec<usize>>,
    /// When its holds became doubtful, by reason: it lost data, or its clock was stepped.
    doubtful_since: Option<Micros>,
    lost_data: bool,
    queues: HashMap<LockName, Queue>,
}

/// A client as the network sees it.
struct Client {
    hub: Subscriptions,
    dead: bool,
    /// When the last request arrives and the last answer and message come back, by lane: in order.
    arrives: Vec<Micros>,
    returns: Vec<Micros>,
    messages: Vec<Micros>,
    /// The number of the last request that a lane has executed: it revokes earlier ones.
    executed: Vec<u64>,
    /// The lanes on which a topic is not confirmed yet.
    unconfirmed: HashMap<Topic, u32>,
    /// The holds that the servers have granted, and when.
    granted: HashMap<OwnerId, Micros>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Served,
    Twice,
    LostBefore,
    LostAfter,
    Late,
}

/// A handle to the world.
#[derive(Clone)]
pub(super) struct Network {
    world: Arc<Mutex<World>>,
    earlier: Arc<Notify>,
}

/// The store of one client.
#[derive(Clone)]
pub(super) struct Store {
    network: Network,
    client: usize,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store of client {}", self.client)
    }
}

impl Network {
    pub(super) fn new(seed: u64, weather: Weather, keeps_tail: bool) -> Self {
        let server = || Server {
            state: State::default(),
            snapshot: State::default(),
            stepped: 0,
            away_until: 0,
            hangs: false,
            life: 0,
            listeners: HashMap::new(),
            doubtful_since: None,
            lost_data: false,
            queues: HashMap::new(),
        };
        let world = World {
            started: Instant::now(),
            rng: Rng::with_seed(seed),
            queue: BinaryHeap::new(),
            acts: HashMap::new(),
            next: 0,
            lanes: (0..weather.lanes).map(|_| server()).collect(),
            clients: Vec::new(),
            history: History {
                hash: 0xcbf2_9ce4_8422_2325,
                tail: keeps_tail.then(VecDeque::new),
                owners: HashMap::new(),
            },
            freed: HashMap::new(),
            free: HashMap::new(),
            forced: HashMap::new(),
            violations: Vec::new(),
            requests: 0,
            faults: BTreeMap::new(),
            weather,
        };
        Self { world: Arc::new(Mutex::new(world)), earlier: Arc::new(Notify::new()) }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client.
    pub(super) fn client(&self) -> (usize, Arc<dyn Backend>) {
        let network = Arc::downgrade(&self.world);
        let earlier = Arc::clone(&self.earlier);
        let mut world = self.world();
        let client = world.clients.len();
        let hub = Subscriptions::new(move |topic, edge| {
            // Called under the mutex of the hub, which the act needs.
            let (topic, Some(world)) = (topic.clone(), network.upgrade()) else { return };
            let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
            let now = world.now();
            world.at(now, move |world| world.ordered(client, topic, edge));
            earlier.notify_one();
        });
        let lanes = world.lanes.len();
        world.clients.push(Client {
            hub,
            dead: false,
            arrives: vec![0; lanes],
            returns: vec![0; lanes],
            messages: vec![0; lanes],
            executed: vec![0; lanes],
            unconfirmed: HashMap::new(),
            granted: HashMap::new(),
        });
        (client, Arc::new(Store { network: self.clone(), client }))
    }

    /// Executes events until it is dropped.
    pub(super) async fn run(self) {
        loop {
            let next = {
                let mut world = self.world();
                while let Some(act) = world.due() {
                    act(&mut world);
                }
                world
                    .queue
                    .peek()
                    .map(|Reverse((at, _))| world.started + Duration::from_micros(*at))
            };
            let sleep = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.earlier.notified() => {}
                () = sleep => {}
            }
        }
    }
}

impl World {
    pub(super) fn now(&self) -> Micros {
        self.started.elapsed().as_micros() as Micros
    }

    fn due(&mut self) -> Option<Act> {
        let now = self.now();
        let Reverse((_, number)) = *self.queue.peek().filter(|next| next.0.0 <= now)?;
        self.queue.pop();
        self.acts.remove(&number)
    }

    pub(super) fn at(&mut self, at: Micros, act: impl FnOnce(&mut World) + Send + 'static) {
        self.next += 1;
        self.queue.push(Reverse((at, self.next)));
        self.acts.insert(self.next, Box::new(act));
    }

    /// Notes an event, and what it says as text.
    pub(super) fn note(&mut self, name: &LockName, what: u64, text: impl FnOnce() -> String) {
        let now = self.now();
        for number in [now, what, name.as_bytes().iter().map(|b| u64::from(*b)).sum()] {
            self.history.hash = (self.history.hash ^ number).wrapping_mul(0x0100_0000_01b3);
        }
        // The events before the first violation explain it.
        if let Some(tail) = &mut self.history.tail
            && self.violations.is_empty()
        {
            if tail.len() == TAIL {
                tail.pop_front();
            }
            tail.push_back((name.clone(), format!("{:>12.3} ms  {}", now as f64 / 1e3, text())));
        }
    }

    /// The number of an owner, in the order of their first requests.
    fn owner(&mut self, owner: OwnerId) -> u64 {
        let next = self.history.owners.len() as u64;
        *self.history.owners.entry(owner).or_insert(next)
    }

    pub(super) fn fault(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.rng.u32(..1_000_000) < per_million
    }

    pub(super) fn lane(&self, name: &LockName) -> usize {
        let sum: usize = name.as_bytes().iter().map(|byte| usize::from(*byte)).sum();
        sum % self.lanes.len()
    }

    fn lanes_of(&self, topic: &Topic) -> Vec<usize> {
        match (topic, topic.name()) {
            (Topic::Reconnected, _) => Vec::new(),
            (_, Some(name)) => vec![self.lane(name)],
            // A notice may come from any of them.
            (_, None) => (0..self.lanes.len()).collect(),
        }
    }

    /// How long a message is under way.
    fn delay(&mut self) -> Micros {
        let slow = self.weather.slow;
        match self.chance(slow) {
            true => self.rng.u64(..2_000_000),
            false => self.rng.u64(50..self.weather.delay),
        }
    }

    fn fate(&mut self) -> Fate {
        let weather = &self.weather;
        let chances = [
            (weather.lost, Fate::LostBefore, "requests lost before they ran"),
            (weather.lost, Fate::LostAfter, "answers lost"),
            (weather.late, Fate::Late, "requests executed late"),
            (weather.twice, Fate::Twice, "requests delivered twice"),
        ];
        for (chance, fate, word) in chances {
            if self.chance(chance) {
                self.fault(word);
                return fate;
            }
        }
        Fate::Served
    }

    /// When a client's next request arrives: in the order in which they are sent.
    fn arrival(&mut self, client: usize, lane: usize) -> Micros {
        let at = self.now() + self.delay();
        let last = &mut self.clients[client].arrives[lane];
        *last = at.max(*last);
        *last
    }

    fn return_of(&mut self, client: usize, lane: usize) -> Micros {
        let at = self.now() + self.delay();
        let last = &mut self.clients[client].returns[lane];
        *last = at.max(*last);
        *last
    }

    /// The time of a server, in milliseconds.
    fn time(&self, lane: usize) -> u64 {
        // Far from zero, so that it can be stepped back.
        const EPOCH: u64 = 1_000_000_000;
        (EPOCH + self.now() / 1000).saturating_add_signed(self.lanes[lane].stepped)
    }

    /// Notes what must not happen.
    pub(super) fn fail(&mut self, name: &LockName, what: String) {
        let at = Duration::from_micros(self.now());
        self.violations.push((name.clone(), format!("after {at:?}: {what}")));
    }

    /// When the holds of a name that were granted before became doubtful: data were lost, a clock was stepped, or the
    /// lock was force-released.
    pub(super) fn doubtful_since(&self, name: &LockName) -> Option<Micros> {
        self.lanes[self.lane(name)].doubtful_since.max(self.forced.get(name).copied())
    }

    /// From when to when a lock was free before its last grant.
    pub(super) fn was_free(&self, name: &LockName) -> Option<(Micros, Micros)> {
        self.free.get(name).copied()
    }

    /// Whether the server of a name has lost data or time.
    pub(super) fn was_doubtful(&self, name: &LockName) -> bool {
        self.lanes[self.lane(name)].doubtful_since.is_some()
    }

    /// Whether the server of a name has lost data.
    pub(super) fn lost_data(&self, name: &LockName) -> bool {
        self.lanes[self.lane(name)].lost_data
    }

    /// The first violation, and the last events of its name.
    pub(super) fn explain(&self, name: &LockName, what: &str) -> String {
        let tail = self.history.tail.iter().flatten();
        let about = tail.filter(|(other, _)| other == name || other.as_bytes().is_empty());
        let lines: Vec<_> = about.map(|(_, line)| line.as_str()).collect();
        let last = &lines[lines.len().saturating_sub(SHOWN)..];
        if last.is_empty() { what.to_owned() } else { format!("{what}\n{}", last.join("\n")) }
    }

    /// When the server granted a hold.
    pub(super) fn granted_at(&self, client: usize, owner: &OwnerId) -> Micros {
        self.clients[client].granted.get(owner).copied().unwrap_or(0)
    }

    /// Delivers the wake-ups of a request to all who listen, and returns the number of these.
    fn publish(&mut self, lane: usize, wakes: Vec<Wake>) -> u64 {
        let mut woken = 0;
        for Wake { topic, payload } in wakes {
            let listening = self.lanes[lane].listeners.get(&topic).cloned().unwrap_or_default();
            woken += listening.len() as u64;
            let life = self.lanes[lane].life;
            for client in listening {
                let at = self.now() + self.delay();
                let last = &mut self.clients[client].messages[lane];
                *last = at.max(*last);
                let (at, topic, payload) = (*last, topic.clone(), payload.clone());
                self.at(at, move |world| {
                    if world.lanes[lane].life == life {
                        world.clients[client].hub.wake(&topic, &payload);
                    }
                });
            }
        }
        woken
    }

    /// A client joins a topic, or leaves it.
    fn ordered(&mut self, client: usize, topic: Topic, edge: Edge) {
        let lanes = self.lanes_of(&topic);
        if let Topic::Turn(_, owner) = topic {
            self.owner(owner);
        }
        if edge == Edge::First && !lanes.is_empty() {
            let client = &mut self.clients[client];
            client.unconfirmed.insert(topic.clone(), lanes.len() as u32);
            client.hub.requested(&topic);
        }
        for lane in lanes {
            self.order(client, lane, topic.clone(), edge);
        }
    }

    fn order(&mut self, client: usize, lane: usize, topic: Topic, edge: Edge) {
        let at = self.arrival(client, lane);
        self.at(at, move |world| world.listen(client, lane, topic, edge));
    }

    /// The server hears that a client listens, or no longer does.
    fn listen(&mut self, client: usize, lane: usize, topic: Topic, edge: Edge) {
        let (now, server) = (self.now(), &mut self.lanes[lane]);
        if server.away_until > now {
            let at = server.away_until;
            return self.at(at, move |world| world.listen(client, lane, topic, edge));
        }
        let listening = server.listeners.entry(topic.clone()).or_default();
        listening.retain(|other| *other != client);
        if edge == Edge::Last || self.clients[client].dead {
            if listening.is_empty() {
                server.listeners.remove(&topic);
            }
            return;
        }
        listening.push(client);
        let life = server.life;
        let at = self.now() + self.delay();
        let last = &mut self.clients[client].messages[lane];
        *last = at.max(*last);
        let at = *last;
        self.at(at, move |world| {
            if world.lanes[lane].life != life {
                return;
            }
            let client = &mut world.clients[client];
            let Some(left) = client.unconfirmed.get_mut(&topic) else { return };
            *left -= 1;
            if *left == 0 {
                client.unconfirmed.remove(&topic);
                client.hub.confirmed(&topic);
                client.hub.confirm(&topic);
            }
        });
    }

    /// The connections of a lane break: who listened there was not heard, and joins again.
    fn break_lane(&mut self, lane: usize) {
        self.lanes[lane].life += 1;
        let mut listening: Vec<_> =
            std::mem::take(&mut self.lanes[lane].listeners).into_iter().collect();
        // In an order that does not depend on the hash.
        listening.sort_by_cached_key(|(topic, clients)| (topic_text(self, topic), clients.clone()));
        for (topic, clients) in listening {
            for client in clients {
                self.clients[client].hub.broken_of(&topic);
                let left = self.clients[client].unconfirmed.entry(topic.clone()).or_default();
                *left += 1;
                self.order(client, lane, topic.clone(), Edge::First);
            }
        }
    }

    /// A lane dies for a while and comes back with its data, without, or with those of a snapshot; or it hangs.
    pub(super) fn outage(&mut self, lane: usize, span: Micros) {
        let (now, data) = (self.now(), self.rng.u8(..4));
        let hangs = self.rng.bool();
        self.lanes[lane].away_until = now + span;
        self.lanes[lane].hangs = hangs;
        if hangs {
            self.fault("servers hung");
            return;
        }
        self.fault("servers died");
        self.break_lane(lane);
        if self.weather.loses_data && data < 2 {
            let server = &mut self.lanes[lane];
            let old = std::mem::take(&mut server.snapshot);
            let fault =
                if data == 0 { "restarts without data" } else { "restarts with a snapshot" };
            server.state = if data == 0 { State::default() } else { old };
            server.forget_order();
            (server.doubtful_since, server.lost_data) = (Some(now + span), true);
            self.fault(fault);
        }
        self.note(&LockName::from(""), 1, || format!("lane {lane} is dead for {} ms", span / 1000));
        self.at(now + span, move |world| {
            for client in 0..world.clients.len() {
                let message = Lane(lane as u32).message();
                world.clients[client].hub.wake(&Topic::Reconnected, &message);
            }
        });
    }

    pub(super) fn take_snapshot(&mut self, lane: usize) {
        self.lanes[lane].snapshot = self.lanes[lane].state.clone();
    }

    /// The clock of a server steps.
    pub(super) fn step(&mut self, lane: usize, millis: i64) {
        self.fault("server clocks stepped");
        let now = self.now();
        let server = &mut self.lanes[lane];
        server.stepped += millis;
        server.forget_order();
        if millis > 0 {
            server.doubtful_since = Some(now);
        }
        self.note(&LockName::from(""), 2, || {
            format!("the clock of lane {lane} steps by {millis} ms")
        });
    }

    /// The process of a client dies: nothing that it sends later arrives.
    pub(super) fn kill(&mut self, client: usize) {
        self.clients[client].dead = true;
        for server in &mut self.lanes {
            server.listeners.values_mut().for_each(|all| all.retain(|other| *other != client));
        }
    }

    /// Looks at the state of a server without a request.
    pub(super) fn look<T>(
        &mut self,
        name: &LockName,
        with: impl FnOnce(&mut State, u64) -> T,
    ) -> T {
        let lane = self.lane(name);
        let now = self.time(lane);
        with(&mut self.lanes[lane].state, now)
    }

    /// Sends a request. `run` executes it and stores the answer; `done` gives it to the caller, or a fault instead.
    fn send<T: Send + 'static>(
        &mut self,
        client: usize,
        lane: usize,
        latest: u64,
        run: impl FnMut(&mut World, usize) -> T + Send + 'static,
        done: oneshot::Sender<Result<T, Fault>>,
    ) {
        let (sent, fate) = (self.now(), self.fate());
        let arrives = self.arrival(client, lane);
        self.next += 1;
        let number = self.next;
        let request = Sent { client, lane, number, sent, fate, latest, run, done: Some(done) };
        self.at(arrives, move |world| request.arrive(world));
    }
}

/// A topic without the random part of an identity.
fn topic_text(world: &World, topic: &Topic) -> String {
    match topic {
        Topic::Turn(name, owner) => {
            let number = world.history.owners.get(owner).copied().unwrap_or(u64::MAX);
            format!("turn {name} {number}")
        }
        Topic::Notice(_) => "notice".to_owned(),
        topic => format!("{topic:?}"),
    }
}

/// A request under way.
struct Sent<T, F> {
    client: usize,
    lane: usize,
    number: u64,
    sent: Micros,
    fate: Fate,
    /// Until when it may be executed late, in milliseconds after its timeout.
    latest: u64,
    run: F,
    done: Option<oneshot::Sender<Result<T, Fault>>>,
}

impl<T: Send + 'static, F: FnMut(&mut World, usize) -> T + Send + 'static> Sent<T, F> {
    fn arrive(mut self, world: &mut World) {
        let (now, timeout) = (world.now(), self.sent + RESPONSE.as_micros() as u64);
        let server = &world.lanes[self.lane];
        let away = (server.away_until > now).then_some((server.away_until, server.hangs));
        match (away, self.fate) {
            (Some((until, true)), _) => {
                // Its caller gives it up, and the server executes it when it continues.
                if timeout < until {
                    self.fail(world, timeout, true);
                }
                world.at(until, move |world| self.arrive(world));
            }
            (Some((_, false)), _) => {
                let at = world.return_of(self.client, self.lane);
                self.fail(world, at, false);
            }
            (None, Fate::LostBefore) => {
                let at = world.return_of(self.client, self.lane);
                self.fail(world, at, true);
            }
            (None, Fate::Late) => {
                self.fail(world, timeout.max(now), true);
                let late = world.rng.u64(..self.latest.clamp(1, LATE) * 1000);
                self.fate = Fate::Served;
                world.at(timeout.max(now) + late, move |world| self.execute(world));
            }
            (None, _) => self.execute(world),
        }
    }

    fn fail(&mut self, world: &mut World, at: Micros, maybe_ran: bool) {
        let Some(done) = self.done.take() else { return };
        world.at(at, move |_| {
            let fault = Fault::Unreachable { maybe_ran, detail: "no answer".into() };
            let _ = done.send(Err(fault));
        });
    }

    fn execute(mut self, world: &mut World) {
        let client = &world.clients[self.client];
        let revoked = world.weather.revokes && client.executed[self.lane] > self.number;
        if client.dead || self.done.is_none() && revoked {
            return;
        }
        let server = &world.lanes[self.lane];
        if server.away_until > world.now() && !server.hangs {
            // It dies with the server that it was sent to.
            return;
        }
        let executed = &mut world.clients[self.client].executed[self.lane];
        *executed = self.number.max(*executed);
        let answer = (self.run)(world, self.lane);
        if self.fate == Fate::Twice {
            (self.run)(world, self.lane);
        }
        let Some(done) = self.done.take() else { return };
        let timeout = self.sent + RESPONSE.as_micros() as u64;
        let (life, lane) = (world.lanes[self.lane].life, self.lane);
        let at = world.return_of(self.client, self.lane);
        let is_lost = self.fate == Fate::LostAfter || at > timeout;
        world.at(at.min(timeout.max(world.now())), move |world| {
            let answer = match is_lost || world.lanes[lane].life != life {
                true => Err(Fault::Unreachable { maybe_ran: true, detail: "no answer".into() }),
                false => Ok(answer),
            };
            let _ = done.send(answer);
        });
    }
}

impl Store {
    /// One request about a lane, which may be executed late until `latest` milliseconds after its timeout.
    fn call<T: Send + 'static>(
        &self,
        name: LockName,
        latest: u64,
        run: impl FnMut(&mut World, usize) -> T + Send + 'static,
    ) -> BoxFuture<Result<T, Fault>> {
        let Self { network, client } = self.clone();
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            {
                let mut world = network.world();
                let lane = world.lane(&name);
                world.send(client, lane, latest, run, done);
            }
            network.earlier.notify_one();
            // The request of a dead client is never answered.
            answer.await.unwrap_or(Err(Fault::Closed))
        })
    }

    /// The same for a request with an answer that may be a fault.
    fn ask<T: Send + 'static>(
        &self,
        name: LockName,
        latest: u64,
        run: impl FnMut(&mut World, usize) -> Result<T, Fault> + Send + 'static,
    ) -> Answer<T> {
        let call = self.call(name, latest, run);
        Box::pin(async move { call.await? })
    }
}

impl Backend for Store {
    fn capabilities(&self, name: &LockName) -> Capabilities {
        let world = self.network.world();
        let mut capabilities = Capabilities::new(world.weather.revokes, "simulated".into());
        capabilities.takes_together = true;
        capabilities.lane = Lane(world.lane(name) as u32);
        capabilities
    }

    fn acquire(&self, request: Acquire) -> Answer<Attempt> {
        let name = request.resource.name.clone();
        let world = self.network.world();
        if request.also.iter().any(|(other, _)| world.lane(other) != world.lane(&name)) {
            let detail = "in several lanes".into();
            return Box::pin(std::future::ready(Err(Fault::Invalid { detail })));
        }
        drop(world);
        let client = self.client;
        self.ask(name, request.ttl, move |world, lane| world.acquire(client, lane, &request))
    }

    fn release(&self, request: Release) -> Answer<Released> {
        let client = self.client;
        self.ask(request.resource.name.clone(), LATE, move |world, lane| {
            let (now, name) = (world.time(lane), request.resource.name.clone());
            let (answer, wakes) = world.lanes[lane].state.release(&request, now);
            world.requests += 1;
            let number = world.owner(request.owner);
            let Release { keep, leave, undo, .. } = request;
            world.note(&name, 3 + number, || {
                format!("client {client} releases {name} of {number}, keep {keep}, leave {leave}, undo {undo}: {answer:?}")
            });
            if keep == 0 {
                let queue = world.lanes[lane].queues.get_mut(&name);
                queue.into_iter().for_each(|queue| queue.retain(|(owner, _)| *owner != request.owner));
            }
            if matches!(answer, Ok(Released::Freed { .. })) {
                let at = world.now();
                world.freed.entry(name).or_insert(at);
            }
            let woken = world.publish(lane, wakes);
            answer.map(|released| match released {
                Released::Freed { .. } => Released::Freed { listeners: Some(woken) },
                other => other,
            })
        })
    }

    fn renew(&self, batch: Vec<Renew>) -> BoxFuture<Vec<Result<Renewed, Fault>>> {
        let (count, client) = (batch.len(), self.client);
        let name = batch[0].resource.name.clone();
        let latest = batch.iter().filter_map(|renew| renew.ttl).min().unwrap_or(0);
        let call = self.call(name, latest, move |world, lane| {
            let now = world.time(lane);
            world.requests += 1;
            let (answers, wakes) = world.lanes[lane].state.renew(&batch, now);
            for (renew, answer) in batch.iter().zip(&answers) {
                let (number, name) = (world.owner(renew.owner), renew.resource.name.clone());
                world.note(&name, 5 + number, || {
                    format!(
                        "client {client} renews {name} of {number} by {:?}: {answer:?}",
                        renew.ttl
                    )
                });
                if renew.waiting && matches!(answer, Ok(Renewed::Waiting | Renewed::Due)) {
                    world.lanes[lane].heard(&name, renew.owner, now, false);
                }
            }
            world.publish(lane, wakes);
            answers
        });
        Box::pin(async move { call.await.unwrap_or_else(|fault| vec![Err(fault); count]) })
    }

    fn adjust(&self, change: Change) -> Answer<Changed> {
        let name = match &change {
            Change::ForceUnlock { resource, .. }
            | Change::Count { resource, .. }
            | Change::Permits { resource, .. } => resource.name.clone(),
            Change::Announce { .. } | Change::Withdraw { .. } => LockName::from(""),
        };
        let client = self.client;
        // The store remembers the answer to a counter's request for a minute.
        self.ask(name.clone(), LATE, move |world, lane| {
            let now = world.time(lane);
            world.requests += 1;
            let (answer, wakes) = world.lanes[lane].state.adjust(&change, now);
            if matches!((&change, &answer), (Change::ForceUnlock { .. }, Ok(Changed::Done))) {
                let at = world.now();
                world.forced.insert(name.clone(), at);
                world.fault("force-releases");
            }
            if !name.as_bytes().is_empty() {
                world.note(&name, 7, || format!("client {client} changes {name}: {answer:?}"));
            }
            world.publish(lane, wakes);
            answer
        })
    }

    fn inspect(&self, resource: Resource) -> Answer<LockInfo> {
        self.ask(resource.name.clone(), 0, move |world, lane| {
            let now = world.time(lane);
            world.requests += 1;
            world.lanes[lane].state.inspect(&resource, now)
        })
    }

    fn subscribe(&self, topic: Topic) -> Answer<Subscription> {
        let hub = self.network.world().clients[self.client].hub.clone();
        hub.subscribe(topic)
    }

    fn list(&self, request: List) -> Answer<Page> {
        let name = match &request.select {
            Select::Named(name, _) => name.clone(),
            _ => LockName::from(""),
        };
        self.ask(name, 0, move |world, lane| {
            let now = world.time(lane);
            world.requests += 1;
            world.lanes[lane].state.list(&request, now)
        })
    }

    fn check(&self) -> Answer<Vec<Finding>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn close(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// After so long a silence a fair lock's waiter may be passed over: three seconds, and half a second in which the store
/// does not record another heartbeat. Where it then stands in the queue is not judged.
const SILENT: u64 = 2_400;

/// The waiters of a fair lock in the order in which they came, and when each was last heard; `None` if it was silent.
type Queue = Vec<(OwnerId, Option<u64>)>;

impl Server {
    /// Where the waiters of its queues stand is not judged any more.
    fn forget_order(&mut self) {
        self.queues.values_mut().flatten().for_each(|(_, heard)| *heard = None);
    }

    fn heard(&mut self, name: &LockName, owner: OwnerId, now: u64, joins: bool) {
        let queue = self.queues.entry(name.clone()).or_default();
        match queue.iter_mut().find(|(other, _)| *other == owner) {
            Some((_, heard)) => *heard = heard.filter(|heard| heard + SILENT >= now).map(|_| now),
            None if joins => queue.push((owner, Some(now))),
            None => {}
        }
    }
}

impl World {
    fn acquire(&mut self, client: usize, lane: usize, request: &Acquire) -> Result<Attempt, Fault> {
        let (now, Resource { kind, name }) = (self.time(lane), request.resource.clone());
        self.requests += 1;
        let (mut answer, wakes) = self.lanes[lane].state.acquire(request, now);
        let number = self.owner(request.owner);
        let Acquire { count, from, waits, .. } = request;
        self.note(&name, 11 + number, || {
            format!(
                "client {client} acquires {kind} {name} as {number}, count {count}, from another {}, waits {waits}: {answer:?}",
                from.is_some()
            )
        });
        match &mut answer {
            Ok(Attempt::Granted { .. }) => {
                let at = self.now();
                if let Some(since) = self.freed.remove(&name) {
                    self.free.insert(name.clone(), (since, at));
                }
                let owners = request.also.iter().map(|(_, owner)| *owner);
                let granted = &mut self.clients[client].granted;
                for owner in owners.chain([request.owner]) {
                    granted.entry(owner).or_insert(at);
                }
                if kind == Kind::Fair {
                    self.granted_in_turn(lane, &name, request.owner, now);
                }
            }
            Ok(Attempt::Busy { listeners, .. }) if *waits => {
                let rw = matches!(kind, Kind::Read | Kind::Write);
                if let Some(topic) =
                    Topic::shared_by(&request.resource).filter(|_| from.is_none() && !rw)
                {
                    let all = self.lanes[lane].listeners.get(&topic);
                    *listeners = all.map_or(0, |all| all.len() as u64);
                }
                if kind == Kind::Fair {
                    self.lanes[lane].heard(&name, request.owner, now, true);
                }
            }
            _ => {}
        }
        self.publish(lane, wakes);
        answer
    }

    /// First come, first served: no waiter ahead was heard lately.
    fn granted_in_turn(&mut self, lane: usize, name: &LockName, owner: OwnerId, now: u64) {
        // Waiters of a snapshot may come back to their places.
        let server = &mut self.lanes[lane];
        let Some(queue) = server.queues.get_mut(name).filter(|_| !server.lost_data) else { return };
        let Some(index) = queue.iter().position(|(other, _)| *other == owner) else { return };
        let is_heard = |heard: Option<u64>| heard.is_some_and(|heard| heard + SILENT >= now);
        let passed = queue[..index].iter().filter(|(_, heard)| is_heard(*heard)).count();
        let (_, heard) = queue.remove(index);
        if !is_heard(heard) {
            return;
        }
        if passed > 0 {
            self.fail(
                name,
                format!("a grant of {name} has passed {passed} waiters of a fair lock"),
            );
        }
    }
}
