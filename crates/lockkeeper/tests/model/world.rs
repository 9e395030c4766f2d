//! A server and the model, driven side by side.

use std::fmt;

use lockkeeper::backend::model::State;
use lockkeeper::backend::redis::Redis;
use lockkeeper::backend::{
    Acquire, Attempt, Backend, Change, Changed, ClientInfo, Fault, Kind, Release, Released, Renew,
    Renewed, Resource, Snapshot, Ttl,
};
use lockkeeper::{ClientOptions, LockName, OwnerId};
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

/// Takes time off everything that ends: ARGV[1] milliseconds.
const PASS: &str = "
    for _, key in ipairs(redis.call('KEYS', '*')) do
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
    Inspect(Resource),
}

/// What both said to it.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Acquire(Result<Attempt, Fault>),
    Release(Result<Released, Fault>),
    Renew(Vec<Result<Renewed, Fault>>),
    ForceUnlock(Result<Changed, Fault>),
    Inspect(Result<Stored, Fault>),
}

/// Who holds a lock how often, and for how long: by owner, so that two of them can be compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) holders: Vec<(String, u64)>,
    pub(crate) ttl: Option<Ttl>,
}

impl From<Snapshot> for Stored {
    fn from(snapshot: Snapshot) -> Self {
        let text = |id: Vec<u8>| String::from_utf8(id).expect("an owner id is text");
        let holders = snapshot.holders.into_iter();
        Self {
            holders: holders.map(|entry| (text(entry.id), entry.count)).collect(),
            ttl: snapshot.ttl,
        }
    }
}

pub(crate) struct World {
    runtime: Runtime,
    redis: Redis,
    cli: Cli,
    _server: RedisServer,
    model: State,
    pub(crate) now: u64,
    trace: Vec<String>,
}

impl World {
    pub(crate) fn new() -> Self {
        let server = RedisServer::start();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let (url, options) = (server.url(), ClientOptions::new());
        let redis = runtime.block_on(Redis::connect(&url, &options));
        Self {
            redis: redis.expect("the server was started just now"),
            cli: server.connection(),
            runtime,
            _server: server,
            model: State::default(),
            now: 0,
            trace: Vec::new(),
        }
    }

    /// Both are as new.
    pub(crate) fn reset(&mut self) {
        self.cli.cmd(&["FLUSHALL"]).ok();
        (self.model, self.now) = (State::default(), 1_000_000);
        self.trace.clear();
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
        let expected = self.ask_model(request);
        let answer = self.ask_redis(request);
        self.trace.push(format!("  {request:?}\n    -> {answer:?}"));
        if same(&expected, &answer) {
            return Ok(expected);
        }
        Err(self.failure(format!("the model says {expected:?}, Redis {answer:?}")))
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
            "string" => Some(Kind::Mutex),
            _ => None,
        }
    }

    fn read(&mut self, resource: &Resource) -> Stored {
        let name = resource.name.as_bytes();
        let ttl = match self.cli.cmd(&[b"PTTL", name]).int() {
            -2 => None,
            -1 => Some(Ttl::Forever),
            left => Some(Ttl::Millis(left.unsigned_abs())),
        };
        let holders = match resource.kind {
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
        Stored { holders, ttl }
    }

    fn ask_model(&mut self, request: &Request) -> Answer {
        let (model, now) = (&mut self.model, self.now);
        match request {
            Request::Acquire(acquire) => Answer::Acquire(model.acquire(acquire, now)),
            Request::Release(release) => Answer::Release(model.release(release, now).0),
            Request::Renew(batch) => {
                Answer::Renew(batch.iter().map(|renew| model.renew(renew, now)).collect())
            }
            Request::ForceUnlock(resource) => {
                Answer::ForceUnlock(model.adjust(&forced(resource), now).0)
            }
            Request::Inspect(resource) => {
                Answer::Inspect(model.inspect(resource, now).map(Stored::from))
            }
        }
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
            Request::Inspect(resource) => {
                let snapshot = runtime.block_on(redis.inspect(resource));
                Answer::Inspect(snapshot.map(Stored::from))
            }
        }
    }
}

fn forced(resource: &Resource) -> Change {
    Change::ForceUnlock {
        resource: resource.clone(),
        reason: "because".to_owned(),
        by: ClientInfo::of_this_process(),
    }
}

/// Whether two answers say the same.
fn same(expected: &Answer, found: &Answer) -> bool {
    match (expected, found) {
        (Answer::Acquire(a), Answer::Acquire(b)) => both(a, b, |a, b| match (a, b) {
            (Attempt::Busy(a), Attempt::Busy(b)) => same_ttl(*a, *b),
            (a, b) => a == b,
        }),
        (Answer::Release(a), Answer::Release(b)) => both(a, b, |a, b| match (a, b) {
            // Who listens is not the model's business.
            (Released::Freed { .. }, Released::Freed { .. }) => true,
            (a, b) => a == b,
        }),
        (Answer::Renew(a), Answer::Renew(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_renewal(a, b))
        }
        (Answer::ForceUnlock(a), Answer::ForceUnlock(b)) => both(a, b, |a, b| a == b),
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

fn same_stored(a: &Stored, b: &Stored) -> bool {
    a.holders == b.holders && same_ttl(a.ttl, b.ttl)
}

pub(crate) fn same_ttl(a: Option<Ttl>, b: Option<Ttl>) -> bool {
    match (a, b) {
        (Some(Ttl::Millis(a)), Some(Ttl::Millis(b))) => a.abs_diff(b) <= TOLERANCE,
        (a, b) => a == b,
    }
}

/// One line each, without the parts that say nothing.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Acquire(Acquire { resource, owner, count, ttl, from }) => {
                write!(
                    f,
                    "acquire {resource} as {} x{count} for {ttl}",
                    short(owner),
                    resource = Named(resource)
                )?;
                from.as_ref().map_or(Ok(()), |from| write!(f, " from {}", short(from)))
            }
            Request::Release(Release { resource, owner, keep, ttl, leave }) => write!(
                f,
                "release {} as {} keep {keep} ttl {ttl:?} leave {leave}",
                Named(resource),
                short(owner)
            ),
            Request::Renew(batch) => {
                f.write_str("renew")?;
                batch.iter().try_for_each(|renew| {
                    let (resource, owner) = (Named(&renew.resource), short(&renew.owner));
                    write!(f, " [{resource} as {owner} for {:?}]", renew.ttl)
                })
            }
            Request::ForceUnlock(resource) => write!(f, "force-unlock {}", Named(resource)),
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
