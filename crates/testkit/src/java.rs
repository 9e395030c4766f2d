//! A real Redisson on the other side.
//!
//! [`JavaPeer`] is a Java process with one Redisson client, built from `java/` when it is first needed.
//! It runs commands on named threads ([`JavaPeer::on`]), since in Redisson the owner of a lock is a
//! thread. Every command is sent at once and gives a [`Pending`] answer, so that what blocks on the
//! other side need not block here:
//!
//! ```no_run
//! use testkit::{JavaPeer, RedisServer, Redisson};
//!
//! let server = RedisServer::start();
//! let peer = JavaPeer::start(Redisson::Newest, &server.url());
//! let (one, two) = (peer.on("one"), peer.on("two"));
//! one.lock("x").lock().ok();
//! let waits = two.lock("x").lock();
//! assert!(two.lock("y").lock().is_pending(), "a worker does one thing after the other");
//! one.lock("x").unlock().ok();
//! println!("granted at {:?}", waits.answer().ended);
//! ```

mod build;
mod objects;
mod worker;

use std::fmt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

pub use crate::peer::{Answer, Pending, Thrown};
pub use build::Redisson;
pub use objects::{Latch, Lock, Permits, Semaphore, Stress};
pub use worker::Worker;

use crate::peer::Peer;
use build::HOW_TO_GET_IT;

/// It runs for seconds: code that is compiled quickly beats code that is compiled well.
const JVM: &[&str] = &["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"];

/// A Java process with a Redisson client; killed and reaped on `Drop`.
///
/// It cannot outlive this process. Its error output goes where this process's goes.
pub struct JavaPeer {
    peer: Peer,
    client_id: String,
}

impl JavaPeer {
    /// Starts a peer for one server. The first call for a version may have to build it.
    ///
    /// # Panics
    ///
    /// If it cannot be built, started or connected; the message says why and what to do.
    pub fn start(redisson: Redisson, url: &str) -> Self {
        Self::builder(redisson).start(url)
    }

    /// A peer with options.
    pub fn builder(redisson: Redisson) -> JavaPeerBuilder {
        JavaPeerBuilder { redisson, options: Vec::new() }
    }

    /// A thread of the peer, created when its name is first used.
    pub fn on(&self, worker: &str) -> Worker<'_> {
        Worker::new(self, worker)
    }

    /// The client's id: owners in Redis are `<client id>:<thread id>`, see [`Worker::owner`].
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The version of Redisson, in full.
    pub fn redisson_version(&self) -> &str {
        self.peer.greeting()
    }

    /// How far the peer's times, as given in an [`Answer`], may be off.
    pub fn clock_error(&self) -> Duration {
        self.peer.clock_error()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.peer.process().pid()
    }

    /// Stops it (SIGSTOP), watchdogs included; returns when it has stopped.
    pub fn pause(&self) {
        self.peer.process().pause();
    }

    /// Continues it (SIGCONT).
    pub fn resume(&self) {
        self.peer.process().resume();
    }

    /// Kills it (SIGKILL), even if it is paused, and returns when it is gone.
    pub fn kill(self) {
        drop(self);
    }

    /// Closes its input, whereupon it ends without releasing anything.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn close(self) -> ExitStatus {
        self.peer.close()
    }

    fn send<T>(&self, worker: &str, words: &[&str], read: fn(&[String]) -> T) -> Pending<T> {
        self.peer.send(worker, words, read)
    }
}

impl fmt::Debug for JavaPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut peer = f.debug_struct("JavaPeer");
        peer.field("redisson", &self.redisson_version()).field("client_id", &self.client_id);
        peer.field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// Options of a [`JavaPeer`].
#[derive(Clone, Debug)]
pub struct JavaPeerBuilder {
    redisson: Redisson,
    options: Vec<String>,
}

impl JavaPeerBuilder {
    /// `lockWatchdogTimeout`, 30 s by default: the lease of locks without one, which the watchdog
    /// renews every third of it.
    #[must_use]
    pub fn watchdog(self, timeout: Duration) -> Self {
        self.option("--watchdog", &timeout.as_millis().to_string())
    }

    /// `fairLockWaitTimeout`, 5 min by default: what a waiter in a fair queue may take before the next
    /// one may pass. [`Redisson::Newest`] only; older ones refuse to start with it.
    #[must_use]
    pub fn fair_wait(self, timeout: Duration) -> Self {
        self.option("--fair-wait", &timeout.as_millis().to_string())
    }

    /// What Redisson logs to this process's error output: `trace`, `debug`, `info`, `warn`, `error`.
    #[must_use]
    pub fn log(self, level: &str) -> Self {
        self.option("--log", level)
    }

    /// Starts a peer for one server.
    ///
    /// # Panics
    ///
    /// If it cannot be built, started or connected; the message says why and what to do.
    pub fn start(self, url: &str) -> JavaPeer {
        self.launch(&[url])
    }

    /// Starts a peer for a cluster; some of its nodes suffice.
    ///
    /// # Panics
    ///
    /// If it cannot be built, started or connected; the message says why and what to do.
    pub fn start_cluster(self, urls: &[&str]) -> JavaPeer {
        self.launch(&[&["--cluster"], urls].concat())
    }

    fn option(mut self, name: &str, value: &str) -> Self {
        self.options.extend([name.to_owned(), value.to_owned()]);
        self
    }

    fn launch(self, servers: &[&str]) -> JavaPeer {
        let mut command = Command::new(build::java());
        command.args(JVM).arg("-cp").arg(self.redisson.build()).arg("peer.Main");
        command.args(self.options).args(servers);
        let peer = Peer::start(command, HOW_TO_GET_IT);
        let client_id = peer.send("main", &["id"], |words| words[0].clone()).ok();
        JavaPeer { peer, client_id }
    }
}
