//! What the themes share.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::time::Duration;

pub(crate) use crate::support::{LONG, PATIENCE, SOON, eventually, ms};
use lockkeeper::{Client, FairLock, LockGuard};
pub(crate) use testkit::Stopwatch;
use testkit::{Cli, RedisServer, Reply};
use tokio::task::JoinHandle;

/// How long Redisson's waiters keep their places, in ms.
pub(crate) const WAIT: i64 = 300_000;

/// A waiter without a heartbeat for three seconds is skipped, and the next heartbeat comes within about a
/// second.
pub(crate) const DEATH: Duration = Duration::from_millis(4_500);

/// The same where the machine stood still meanwhile: a silence of all is forgiven once.
pub(crate) const DEATH_AT_WORST: Duration = Duration::from_millis(7_500);

/// The outcome of a task, which must come within `limit`; its panic is the test's.
pub(crate) async fn within<T>(limit: Duration, what: &str, task: JoinHandle<T>) -> T {
    let watch = Stopwatch::start();
    while !task.is_finished() {
        assert!(watch.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    task.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// A server and one lock on it.
pub(crate) struct Rig {
    pub(crate) server: RedisServer,
    pub(crate) name: String,
    cli: std::sync::Mutex<Cli>,
}

impl Rig {
    pub(crate) fn new(name: &str) -> Self {
        let server = RedisServer::start();
        let cli = std::sync::Mutex::new(server.connection());
        Self { server, name: name.to_owned(), cli }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.server.url()).await.expect("the server is there")
    }

    pub(crate) async fn lock(&self) -> FairLock {
        self.client().await.fair_lock(&self.name)
    }

    #[track_caller]
    pub(crate) fn cmd(&self, args: &[impl AsRef<[u8]>]) -> Reply {
        let mut cli = self.cli.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        cli.cmd(args).ok()
    }

    /// After the server was started anew.
    pub(crate) fn reconnect(&self) {
        *self.cli.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            self.server.connection();
    }

    /// Redisson's rule for derived names.
    pub(crate) fn key(&self, prefix: &str) -> String {
        match self.name.contains('{') {
            true => format!("{prefix}:{}", self.name),
            false => format!("{prefix}:{{{}}}", self.name),
        }
    }

    pub(crate) fn queue_key(&self) -> String {
        self.key("redisson_lock_queue")
    }

    pub(crate) fn timeouts_key(&self) -> String {
        self.key("redisson_lock_timeout")
    }

    pub(crate) fn seen_key(&self) -> String {
        self.key("lockkeeper_seen")
    }

    pub(crate) fn channel(&self) -> String {
        self.key("redisson_lock__channel")
    }

    /// The channel of one waiter.
    pub(crate) fn channel_of(&self, owner: &str) -> String {
        format!("{}:{owner}", self.channel())
    }

    /// The queue, head first, with stale waiters.
    pub(crate) fn queue(&self) -> Vec<String> {
        let ids = self.cmd(&["LRANGE", &self.queue_key(), "0", "-1"]);
        ids.array().iter().map(|id| id.text().to_owned()).collect()
    }

    fn zset(&self, key: &str) -> BTreeMap<String, i64> {
        let pairs = self.cmd(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
        let pairs = pairs.array().chunks(2);
        pairs.map(|pair| (pair[0].text().to_owned(), pair[1].int())).collect()
    }

    /// Until when each keeps its place, in ms. That they are plain digits is checked by the way.
    pub(crate) fn scores(&self) -> BTreeMap<String, i64> {
        self.zset(&self.timeouts_key())
    }

    /// When ours were last heard of.
    pub(crate) fn seen(&self) -> BTreeMap<String, i64> {
        self.zset(&self.seen_key())
    }

    /// The server's time in ms.
    pub(crate) fn now(&self) -> i64 {
        let time = self.cmd(&["TIME"]);
        time.array()[0].int() * 1000 + time.array()[1].int() / 1000
    }

    /// When the lock ends by itself, in the server's time.
    pub(crate) fn ends(&self) -> i64 {
        self.cmd(&["PEXPIRETIME", &self.name]).int()
    }

    pub(crate) fn holder(&self) -> Option<String> {
        let fields = self.cmd(&["HKEYS", &self.name]);
        fields.array().first().map(|id| id.text().to_owned())
    }

    pub(crate) fn listeners(&self, channel: &str) -> i64 {
        self.cmd(&["PUBSUB", "NUMSUB", channel]).array()[1].int()
    }

    /// Takes the lock for longer than any test.
    pub(crate) async fn held(&self) -> LockGuard {
        let lock = self.lock().await;
        lock.lease(LONG).lock().await.expect("it is free")
    }

    /// Waits for the lock until it has it. Returns its id once it stands at the end of the queue and
    /// listens.
    pub(crate) async fn waiter(&self, lock: &FairLock) -> (String, JoinHandle<LockGuard>) {
        let before = self.queue();
        let lock = lock.clone();
        let task = tokio::spawn(async move { lock.lease(LONG).lock().await.expect("reachable") });
        let mut queue = Vec::new();
        eventually(SOON, "it stands in the queue", || {
            queue = self.queue();
            queue.len() > before.len()
        })
        .await;
        assert_eq!(queue[..before.len()], before, "at the end, and nothing else has changed");
        let id = queue.pop().expect("it is longer than before");
        let channel = self.channel_of(&id);
        eventually(SOON, "it listens", || self.listeners(&channel) == 1).await;
        (id, task)
    }

    /// Everything that is stored, but what is said about clients, and that a silence was forgiven.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = self.cmd(&["KEYS", "*"]);
        let keys = keys.array().iter().map(|key| key.text().to_owned());
        let passing = ["lockkeeper_client", "lockkeeper_grace"];
        keys.filter(|key| !passing.iter().any(|prefix| key.starts_with(prefix))).collect()
    }

    pub(crate) async fn nothing_is_left(&self) {
        let token = self.key("redisson_lock_token");
        let watch = Stopwatch::start();
        while self.keys().iter().any(|key| *key != token) {
            let left = (self.keys(), self.holder(), self.queue(), self.scores(), self.seen());
            assert!(watch.elapsed() < SOON, "left over at {}: {left:?}", self.now());
            tokio::time::sleep(ms(5)).await;
        }
    }

    /// Subscribes to the channels of these waiters, and to the channel of the plain lock.
    pub(crate) fn listen(&self, owners: &[&str]) -> Listener {
        let mut cli = self.server.connection();
        let mut channels: Vec<_> = owners.iter().map(|owner| self.channel_of(owner)).collect();
        channels.push(self.channel());
        cli.subscribe(&channels);
        Listener { cli, common: self.channel() }
    }

    /// Who was told since, each once: as long as the lock is free, its next waiter is told again
    /// about once a second.
    pub(crate) fn told(&self, listener: &mut Listener) -> Vec<String> {
        const END: &str = "that is all";
        self.cmd(&["PUBLISH", &listener.common, END]);
        let mut told: Vec<String> = Vec::new();
        loop {
            let next = listener.cli.next_message(PATIENCE);
            let (channel, text) = next.expect("the end is published");
            if text == END.as_bytes() {
                return told;
            }
            assert_eq!(text, b"0", "on {channel}");
            let whom = channel.strip_prefix(&listener.common).expect("one of the lock's channels");
            let whom = whom.trim_start_matches(':').to_owned();
            if !told.contains(&whom) {
                told.push(whom);
            }
        }
    }
}

pub(crate) struct Listener {
    cli: Cli,
    common: String,
}

/// A waiter as Redisson has them (WIRE 3.2 to 3.5).
pub(crate) struct Java<'a> {
    rig: &'a Rig,
    pub(crate) id: String,
    wait: i64,
}

/// Drops whose time is over from the front, as the first step of all.
const CLEAN: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    while true do
      local first = redis.call('LINDEX', KEYS[2], 0)
      local ends = first and redis.call('ZSCORE', KEYS[3], first)
      if not ends or tonumber(ends) > now then break end
      redis.call('ZREM', KEYS[3], first)
      redis.call('LPOP', KEYS[2])
    end";

impl<'a> Java<'a> {
    /// With a timeout in ms.
    pub(crate) fn new(rig: &'a Rig, number: u32, wait: i64) -> Self {
        Self { rig, id: format!("6e0c1b7a-3f0e-4a53-9c1d-7d8f0a2b4c6e:{number}"), wait }
    }

    fn eval(&self, script: &str, more: &[&str]) -> Reply {
        let script = format!("{CLEAN}\n{script}");
        let (queue, timeouts, wait) =
            (self.rig.queue_key(), self.rig.timeouts_key(), self.wait.to_string());
        let keys = ["EVAL", &script, "3", &self.rig.name, &queue, &timeouts, &self.id, &wait];
        self.rig.cmd(&[&keys[..], more].concat())
    }

    /// Whether it got the lock; otherwise it stands in the queue.
    pub(crate) fn take(&self) -> bool {
        const TAKE: &str = "
            local first = redis.call('LINDEX', KEYS[2], 0)
            local free = redis.call('EXISTS', KEYS[1]) == 0
            if free and (not first or first == ARGV[1]) then
              redis.call('LPOP', KEYS[2])
              redis.call('ZREM', KEYS[3], ARGV[1])
              for _, other in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
                redis.call('ZINCRBY', KEYS[3], -ARGV[2], other)
              end
              redis.call('HSET', KEYS[1], ARGV[1], 1)
              redis.call('PEXPIRE', KEYS[1], 60000)
              return 1
            end
            if redis.call('ZSCORE', KEYS[3], ARGV[1]) then return 0 end
            local last = redis.call('LINDEX', KEYS[2], -1)
            local left = redis.call('PTTL', KEYS[1])
            if last and last ~= ARGV[1] and redis.call('ZSCORE', KEYS[3], last) then
              left = redis.call('ZSCORE', KEYS[3], last) - now
            end
            local ends = string.format('%.0f', left + ARGV[2] + now)
            redis.call('ZADD', KEYS[3], ends, ARGV[1])
            redis.call('RPUSH', KEYS[2], ARGV[1])
            return 0";
        self.eval(TAKE, &[]).int() == 1
    }

    pub(crate) fn unlock(&self) {
        const UNLOCK: &str = "
            if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
            redis.call('DEL', KEYS[1])
            local first = redis.call('LINDEX', KEYS[2], 0)
            if first then redis.call('PUBLISH', ARGV[3] .. ':' .. first, 0) end
            return 1";
        assert_eq!(self.eval(UNLOCK, &[&self.rig.channel()]).int(), 1, "it holds the lock");
    }

    /// A place without any arithmetic.
    pub(crate) fn place(&self, ends: i64) {
        self.rig.cmd(&["ZADD", &self.rig.timeouts_key(), &ends.to_string(), &self.id]);
        self.rig.cmd(&["RPUSH", &self.rig.queue_key(), &self.id]);
    }
}

/// Cancels a task.
pub(crate) async fn cancel<T>(task: JoinHandle<T>) {
    task.abort();
    // Ended, one way or the other: what it had is dropped.
    drop(task.await);
}
