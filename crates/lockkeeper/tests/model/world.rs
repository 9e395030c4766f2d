//! A server and the model, driven side by side.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use lockkeeper::backend::{
    Acquire, Attempt, Backend, Change, Changed, ClientInfo, Fault, Kind, LockInfo, Release,
    Released, Renew, Renewed, Resource, Ttl,
};
use lockkeeper::stores::Redis;
use lockkeeper::stores::{State, Wake};
use lockkeeper::{LockName, OwnerId};
use testkit::{Cli, RedisServer, Reply};
use tokio::runtime::Runtime;

/// Half of the grid on which all times lie, in milliseconds.
pub(crate) const HALF: u64 = 50_000;

/// Two times closer than this are the same: far more than a run takes, far less than the grid.
pub(crate) const TOLERANCE: u64 = HALF / 2;

/// The times to live, all odd multiples of [`HALF`].
pub(crate) const TTLS: [u64; 5] = [HALF, 3 * HALF, 5 * HALF, 7 * HALF, 9 * HALF];

/// The steps of time, all even multiples of [`HALF`].
pub(crate) const STEPS: [u64; 3] = [2 * HALF, 4 * HALF, 6 * HALF];

/// Takes time off everything that ends and off every time that is a score: ARGV[1] milliseconds.
const PASS: &str = "
    for _, key in ipairs(redis.call('KEYS', '*')) do
      if redis.call('TYPE', key).ok == 'zset' then
        for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
          redis.call('ZINCRBY', key, -ARGV[1], member)
        end
      end
      if string.find(key, 'lockkeeper_replies', 1, true) then
        for _, id in ipairs(redis.call('HKEYS', key)) do
          local at, answer = string.match(redis.call('HGET', key, id), '^(%d+)(:.*)')
          redis.call('HSET', key, id, string.format('%.0f%s', at - ARGV[1], answer))
        end
      end
      local left = redis.call('PTTL', key)
      if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
    end";

/// One request.
#[derive(Clone)]
pub(crate) enum Request {
    Acquire(Acquire),
    Release(Release),
    Renew(Vec<Renew>),
    ForceUnlock(Resource),
    Adjust(Change),
    Inspect(Resource),
}

/// What both said to it.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Acquire(Result<Attempt, Fault>),
    Release(Result<Released, Fault>),
    Renew(Vec<Result<Renewed, Fault>>),
    ForceUnlock(Result<Changed, Fault>),
    Adjust(Result<Changed, Fault>),
    Inspect(Result<Stored, Fault>),
}

/// Who holds a lock how often, and for how long: by owner, so that two of them can be compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) holders: Vec<(String, u64)>,
    pub(crate) ttl: Option<Ttl>,
    pub(crate) queue: Vec<String>,
    pub(crate) count: Option<i64>,
    pub(crate) taken: u64,
}

impl From<LockInfo> for Stored {
    fn from(lock: LockInfo) -> Self {
        let LockInfo { holders, ttl, queue, count, taken, .. } = lock;
        let holders = holders.into_iter().map(|holder| {
            let id = if holder.shared { shared(&holder.id) } else { holder.id };
            (id, holder.hold_count)
        });
        let queue = queue.into_iter().map(|waiter| waiter.id);
        Self { holders: holders.collect(), ttl, queue: queue.collect(), count, taken }
    }
}

/// A holder that shares the lock.
pub(crate) fn shared(id: &str) -> String {
    format!("{id} shared")
}

pub(crate) struct World {
    runtime: Runtime,
    redis: Redis,
    connected: Instant,
    cli: Cli,
    server: RedisServer,
    model: State,
    /// Whom the model has woken.
    pub(crate) wakes: Vec<Wake>,
    pub(crate) now: u64,
    trace: Vec<String>,
    /// The last token of each name, in the model and in Redis.
    tokens: HashMap<LockName, [u64; 2]>,
}

fn connect(runtime: &Runtime, server: &RedisServer) -> Redis {
    let (url, options) = (server.url(), crate::options());
    let redis = runtime.block_on(Redis::connect(&url, &options));
    redis.expect("the server was started just now")
}

impl World {
    pub(crate) fn new() -> Self {
        let server = RedisServer::start();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        Self {
            redis: connect(&runtime, &server),
            connected: Instant::now(),
            cli: server.connection(),
            runtime,
            server,
            model: State::default(),
            wakes: Vec::new(),
            now: 0,
            trace: Vec::new(),
            tokens: HashMap::new(),
        }
    }

    /// Both are as new.
    pub(crate) fn reset(&mut self) {
        // Ids are used again and again here. A client tells the store, some seconds later, which it
        // will not use again: one that is younger has nothing to tell.
        if self.connected.elapsed() > Duration::from_secs(1) {
            self.redis = connect(&self.runtime, &self.server);
            self.connected = Instant::now();
        }
        self.cli.cmd(&["FLUSHALL"]).ok();
        (self.model, self.now) = (State::default(), 1_000_000);
        self.trace.clear();
        self.wakes.clear();
        self.tokens.clear();
    }

    /// Another connection to the server.
    pub(crate) fn connection(&self) -> Cli {
        self.server.connection()
    }

    /// The server itself, past our own scripts.
    pub(crate) fn cli(&mut self) -> &mut Cli {
        &mut self.cli
    }

    /// A failure with everything that led to it.
    pub(crate) fn failure(&self, what: impl fmt::Display) -> String {
        format!("{what}\nrequests and answers:\n{}", self.trace.join("\n"))
    }

    /// `span` milliseconds go by.
    pub(crate) fn pass(&mut self, span: u64) {
        self.trace.push(format!("  {span} ms pass"));
        self.cli.cmd(&["EVAL", PASS, "0", &span.to_string()]).ok();
        self.now += span;
    }

    /// Sends a request to both; the answer, if they agree.
    pub(crate) fn send(&mut self, request: &Request) -> Result<Answer, String> {
        let (expected, answer) = self.ask(request);
        if !same(&expected, &answer) {
            return Err(self.failure(format!("the model says {expected:?}, Redis {answer:?}")));
        }
        self.tokens_grow(request, [&expected, &answer])?;
        Ok(expected)
    }

    /// Each answer has a greater token than all before it: also a repetition, whose caller has not seen the
    /// first answer.
    fn tokens_grow(&mut self, request: &Request, answers: [&Answer; 2]) -> Result<(), String> {
        let Request::Acquire(Acquire { resource, .. }) = request else { return Ok(()) };
        let last = self.tokens.entry(resource.name.clone()).or_default();
        for (answer, last) in answers.into_iter().zip(last) {
            if let Answer::Acquire(Ok(Attempt::Granted { token: Some(token) })) = answer {
                let before = std::mem::replace(last, *token);
                if *token <= before {
                    return Err(self.failure(format!("token {token} after {before}")));
                }
            }
        }
        Ok(())
    }

    /// Sends a request to both: what the model says, and what Redis does.
    pub(crate) fn ask(&mut self, request: &Request) -> (Answer, Answer) {
        let (expected, woken) = ask_waking(&mut self.model, request, self.now);
        self.wakes.extend(woken);
        let answer = self.ask_redis(request);
        self.trace.push(format!("  {request:?}\n    -> {answer:?}"));
        (expected, answer)
    }

    /// What is stored, if both agree on it; read past our own scripts.
    pub(crate) fn stored(&mut self, resource: &Resource) -> Result<Stored, String> {
        let expected = match self.model.inspect(resource, self.now) {
            Ok(snapshot) => Stored::from(snapshot),
            Err(fault) => return Err(self.failure(format!("the model says {fault:?}"))),
        };
        let found = self.read(resource);
        if same_stored(&expected, &found) {
            return Ok(found);
        }
        Err(self.failure(format!("the model has {expected:?}, Redis {found:?}")))
    }

    /// The kind of what is stored under a name, as the server's own commands see it.
    pub(crate) fn kind(&mut self, name: &LockName) -> Option<Kind> {
        match self.cli.cmd(&[b"TYPE", name.as_bytes()]).text() {
            "hash" => Some(Kind::Lock),
            // Counters of all kinds look the same.
            "string" => match self.cli.cmd(&[b"GET", name.as_bytes()]).text().parse::<i64>() {
                Ok(_) => Some(Kind::Semaphore),
                Err(_) => Some(Kind::Mutex),
            },
            _ => None,
        }
    }

    fn read(&mut self, resource: &Resource) -> Stored {
        let name = resource.name.as_bytes();
        let ttl = match self.cli.cmd(&[b"PTTL", name]).int() {
            -2 => None,
            -1 => Some(Ttl::Forever),
            left => Some(Ttl::For(Duration::from_millis(left.unsigned_abs()))),
        };
        let holders = match resource.kind {
            Kind::Read | Kind::Write => return self.read_rw(&resource.name, ttl),
            Kind::Semaphore | Kind::Permits | Kind::Latch => {
                let (count, taken) = self.read_counter(resource);
                return Stored { ttl, count, taken, ..Stored::default() };
            }
            Kind::Mutex => match self.cli.cmd(&[b"GET", name]) {
                Reply::Nil => Vec::new(),
                id => vec![(id.text().to_owned(), 1)],
            },
            _ => {
                let fields = self.cli.cmd(&[b"HGETALL", name]).ok();
                let pairs = fields.array().chunks(2);
                pairs
                    .map(|pair| (pair[0].text().to_owned(), pair[1].int().unsigned_abs()))
                    .collect()
            }
        };
        Stored { holders, ttl, ..Stored::default() }
    }

    /// The writer, then the readers that have a key of a hold left. Where the writer's lease has ended
    /// before theirs, it is not one any more, and the lock ends with the last of them.
    fn read_rw(&mut self, name: &LockName, ttl: Option<Ttl>) -> Stored {
        let fields = self.cli.cmd(&[b"HGETALL", name.as_bytes()]).ok();
        let name = String::from_utf8_lossy(name.as_bytes());
        let tag = if name.contains('{') { name.into_owned() } else { format!("{{{name}}}") };
        let (mut holders, mut readers) = (Vec::new(), Vec::new());
        let (mut over, mut longest) = (false, None);
        for pair in fields.array().chunks(2).filter(|pair| pair[0].text() != "mode") {
            let (owner, count) = (pair[0].text(), pair[1].int().unsigned_abs());
            if let Some(owner) = owner.strip_suffix(":write") {
                over = self.is_over(&format!("{tag}:{owner}:lockkeeper_write_end"));
                holders.push((owner.to_owned(), count));
                continue;
            }
            let holds = (1..=count).map(|i| format!("{tag}:{owner}:rwlock_timeout:{i}"));
            let left = holds.map(|hold| self.cli.cmd(&["PTTL", &hold]).int()).max();
            if let Some(left) = left.and_then(|left| u64::try_from(left).ok()) {
                longest = longest.max(Some(left));
                readers.push((shared(owner), count));
            }
        }
        let ttl =
            if over { longest.map(|left| Ttl::For(Duration::from_millis(left))) } else { ttl };
        holders.retain(|_| !over);
        holders.extend(readers);
        Stored { holders, ttl, ..Stored::default() }
    }

    /// Whether a writer's own lease has ended.
    fn is_over(&mut self, write_end: &str) -> bool {
        match self.cli.cmd(&["ZSCORE", write_end, "end"]) {
            Reply::Nil => false,
            ends => ends.int().unsigned_abs() < self.server_time(),
        }
    }

    /// In milliseconds.
    fn server_time(&mut self) -> u64 {
        let time = self.cli.cmd(&["TIME"]).ok();
        let [seconds, micros] = [0, 1].map(|i| time.array()[i].text().parse().unwrap_or(0_u64));
        seconds * 1000 + micros / 1000
    }

    /// What a counter says, with the permits that have ended; and how many have not.
    fn read_counter(&mut self, resource: &Resource) -> (Option<i64>, u64) {
        let name = resource.name.as_bytes();
        let count = match self.cli.cmd(&[b"GET", name]) {
            Reply::Nil => None,
            count => Some(count.text().parse().expect("a counter is a number")),
        };
        if resource.kind != Kind::Permits {
            return (count, 0);
        }
        let now = self.server_time().to_string();
        let ends = [&b"{"[..], name, b"}:timeout"].concat();
        let mut members = |from: &str, to: &str| {
            self.cli.cmd(&[b"ZCOUNT", &ends[..], from.as_bytes(), to.as_bytes()]).int()
        };
        let (ended, taken) = (members("-inf", &now), members(&format!("({now}"), "+inf"));
        (count.map(|count: i64| count + ended), taken.unsigned_abs())
    }

    fn ask_redis(&mut self, request: &Request) -> Answer {
        let (redis, runtime) = (&self.redis, &self.runtime);
        match request.clone() {
            Request::Acquire(acquire) => Answer::Acquire(runtime.block_on(redis.acquire(acquire))),
            Request::Release(release) => Answer::Release(runtime.block_on(redis.release(release))),
            Request::Renew(batch) => Answer::Renew(runtime.block_on(redis.renew(batch))),
            Request::ForceUnlock(resource) => {
                Answer::ForceUnlock(runtime.block_on(redis.adjust(forced(&resource))))
            }
            Request::Adjust(change) => Answer::Adjust(runtime.block_on(redis.adjust(change))),
            Request::Inspect(resource) => {
                let snapshot = runtime.block_on(redis.inspect(resource));
                Answer::Inspect(snapshot.map(Stored::from))
            }
        }
    }
}

/// What the model says to a request.
pub(crate) fn ask(model: &mut State, request: &Request, now: u64) -> Answer {
    ask_waking(model, request, now).0
}

/// And whom it wakes.
fn ask_waking(model: &mut State, request: &Request, now: u64) -> (Answer, Vec<Wake>) {
    fn both<T, A>(answer: impl FnOnce(T) -> A, (said, woken): (T, Vec<Wake>)) -> (A, Vec<Wake>) {
        (answer(said), woken)
    }
    match request {
        Request::Acquire(acquire) => both(Answer::Acquire, model.acquire(acquire, now)),
        Request::Release(release) => both(Answer::Release, model.release(release, now)),
        Request::Renew(batch) => both(Answer::Renew, model.renew(batch, now)),
        Request::ForceUnlock(resource) => {
            both(Answer::ForceUnlock, model.adjust(&forced(resource), now))
        }
        Request::Adjust(change) => both(Answer::Adjust, model.adjust(change, now)),
        Request::Inspect(resource) => {
            (Answer::Inspect(model.inspect(resource, now).map(Stored::from)), Vec::new())
        }
    }
}

fn forced(resource: &Resource) -> Change {
    Change::ForceUnlock {
        resource: resource.clone(),
        reason: "because".to_owned(),
        by: ClientInfo::of_this_process(),
        from: None,
    }
}

/// Whether two answers say the same.
pub(crate) fn same(expected: &Answer, found: &Answer) -> bool {
    match (expected, found) {
        (Answer::Acquire(a), Answer::Acquire(b)) => both(a, b, |a, b| match (a, b) {
            (Attempt::Busy { ttl: a, .. }, Attempt::Busy { ttl: b, .. }) => same_ttl(*a, *b),
            // The clocks differ, and so do the tokens. Both must grow.
            (Attempt::Granted { token: a }, Attempt::Granted { token: b }) => {
                a.is_some() == b.is_some()
            }
            (a, b) => a == b,
        }),
        (Answer::Release(a), Answer::Release(b)) => both(a, b, |a, b| match (a, b) {
            // The model does not know subscriptions.
            (Released::Freed { .. }, Released::Freed { .. }) => true,
            (a, b) => a == b,
        }),
        (Answer::Renew(a), Answer::Renew(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_renewal(a, b))
        }
        (Answer::ForceUnlock(a), Answer::ForceUnlock(b))
        | (Answer::Adjust(a), Answer::Adjust(b)) => both(a, b, |a, b| a == b),
        (Answer::Inspect(a), Answer::Inspect(b)) => both(a, b, same_stored),
        _ => false,
    }
}

fn both<T>(a: &Result<T, Fault>, b: &Result<T, Fault>, same: impl FnOnce(&T, &T) -> bool) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => same(a, b),
        // How a store names what it found instead is its own affair.
        (Err(a), Err(b)) => std::mem::discriminant(a) == std::mem::discriminant(b),
        _ => false,
    }
}

fn same_renewal(expected: &Result<Renewed, Fault>, found: &Result<Renewed, Fault>) -> bool {
    match (expected, found) {
        // A key that has become something else is held by somebody else: the engine reads both so.
        (Ok(Renewed::Taken), Err(Fault::WrongKind { .. })) => true,
        _ => both(expected, found, |a, b| match (a, b) {
            (Renewed::Held(a), Renewed::Held(b)) => same_ttl(Some(*a), Some(*b)),
            (a, b) => a == b,
        }),
    }
}

pub(crate) fn same_stored(a: &Stored, b: &Stored) -> bool {
    let rest = |stored: &Stored| (stored.queue.clone(), stored.count, stored.taken);
    a.holders == b.holders && same_ttl(a.ttl, b.ttl) && rest(a) == rest(b)
}

/// The milliseconds of a TTL that is finite.
pub(crate) fn millis(ttl: Ttl) -> Option<u64> {
    match ttl {
        Ttl::For(left) => Some(left.as_millis() as u64),
        Ttl::Forever => None,
    }
}

pub(crate) fn same_ttl(a: Option<Ttl>, b: Option<Ttl>) -> bool {
    match (a, b) {
        (Some(Ttl::For(a)), Some(Ttl::For(b))) => a.abs_diff(b) <= Duration::from_millis(TOLERANCE),
        (a, b) => a == b,
    }
}

/// One line each, without the parts that say nothing.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Acquire(acquire) => {
                let Acquire { resource, owner, count, ttl, from, beside, waits, .. } = acquire;
                write!(
                    f,
                    "acquire {resource} as {} x{count} for {ttl}",
                    short(owner),
                    resource = Named(resource)
                )?;
                let fenced = acquire.fenced.is_some();
                write!(f, "{}", if *waits { " waiting" } else { "" })?;
                write!(f, "{}", if fenced { " fenced" } else { "" })?;
                beside.as_ref().map_or(Ok(()), |other| write!(f, " beside {}", short(other)))?;
                from.as_ref().map_or(Ok(()), |from| write!(f, " from {}", short(from)))
            }
            Request::Release(Release { resource, owner, count, keep, ttl, leave, undo }) => write!(
                f,
                "release {} as {} x{count} keep {keep} ttl {ttl:?} leave {leave} undo {undo}",
                Named(resource),
                short(owner)
            ),
            Request::Renew(batch) => {
                f.write_str("renew")?;
                batch.iter().try_for_each(|renew| {
                    let (resource, owner) = (Named(&renew.resource), short(&renew.owner));
                    let waiting = if renew.waiting { " waiting" } else { "" };
                    write!(f, " [{resource} as {owner} for {:?}{waiting}]", renew.ttl)
                })
            }
            Request::ForceUnlock(resource) => write!(f, "force-unlock {}", Named(resource)),
            Request::Adjust(change) => write!(f, "{change:?}"),
            Request::Inspect(resource) => write!(f, "inspect {}", Named(resource)),
        }
    }
}

struct Named<'a>(&'a Resource);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.0.kind, self.0.name)
    }
}

fn short(owner: &OwnerId) -> String {
    let text = owner.to_string();
    text[text.len() - 6..].to_owned()
}
