//! A `redis-server` of one's own.
//!
//! Every server also listens on a Unix socket in its own temporary directory. That is how the tests
//! look inside ([`RedisServer::cli`]), whatever the clients under test use, TLS included. It also
//! settles whose server answers: a port may have been taken by a stranger between choosing it and
//! binding it, the socket cannot.

mod builder;
mod clock;
mod flavour;
mod launch;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use tempfile::TempDir;

pub use builder::RedisServerBuilder;
pub use flavour::Flavour;

use crate::certificates::Certificates;
use crate::process::{Process, eventually};
use crate::{Cli, Reply, lock, percent};
use builder::{Config, Transport};
use launch::Site;

/// A running `redis-server` on loopback; killed, reaped and its files removed on `Drop`.
#[derive(Debug)]
pub struct RedisServer {
    config: Config,
    /// `None` between [`kill`](Self::kill) and [`restart`](Self::restart). Before `site`, so that
    /// the process is gone before its directory is.
    process: Mutex<Option<Process>>,
    paused: AtomicBool,
    site: Site,
}

impl RedisServer {
    /// Starts a server without password or persistence on a free port.
    ///
    /// # Panics
    ///
    /// If it cannot be started; the message says why and what to do.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with options.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// The URL for clients, with the password if there is one.
    pub fn url(&self) -> String {
        match &self.config.password {
            Some(password) => self.url_with("", password),
            None => self.address(""),
        }
    }

    /// The URL of a topology that this server belongs to: `kind` follows the scheme.
    pub(crate) fn url_of(&self, kind: &str, hosts: &str) -> String {
        let password = self.config.password.as_deref().map(percent::encoded);
        let credentials = password.map(|password| format!(":{password}@")).unwrap_or_default();
        let scheme = if self.site.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}{kind}://{credentials}{hosts}")
    }

    /// The URL for clients, with these credentials; the user may be empty.
    pub fn url_with(&self, user: &str, password: &str) -> String {
        let (user, password) = (percent::encoded(user), percent::encoded(password));
        match self.config.transport {
            Transport::Unix if user.is_empty() => format!("{}?pass={password}", self.address("")),
            Transport::Unix => format!("{}?user={user}&pass={password}", self.address("")),
            _ => self.address(&format!("{user}:{password}@")),
        }
    }

    /// The TCP port.
    ///
    /// # Panics
    ///
    /// If the server listens on a Unix socket only.
    pub fn port(&self) -> u16 {
        self.site.port.number().expect("a server started with unix_socket() has no TCP port")
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// If the server has been killed.
    pub fn pid(&self) -> u32 {
        self.with_process(Process::pid)
    }

    /// Stops the process (SIGSTOP): connections stay open, nothing is answered. Returns when it has
    /// stopped.
    pub fn pause(&self) {
        self.with_process(Process::pause);
        self.paused.store(true, Ordering::SeqCst);
    }

    /// Continues a paused process (SIGCONT).
    pub fn resume(&self) {
        self.with_process(Process::resume);
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Kills the process (SIGKILL) and waits until it is gone. Harmless when it already is.
    pub fn kill(&self) {
        drop(self.process().take());
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Starts the server again on the same port: empty, or with its data if it is persistent.
    ///
    /// A persistent server that is still running is made to save first. One that was
    /// [killed](Self::kill) comes back as of its last `SAVE`, which is how to get an old dump.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn restart(&self) {
        let running = self.process().is_some();
        if running && self.config.persistent {
            self.resume();
            self.cli(&["SAVE"]).ok();
        }
        self.kill();
        self.launch();
    }

    /// Starts the server again on the same port, without data.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn restart_empty(&self) {
        self.kill();
        let _ = fs::remove_file(self.site.dump());
        self.launch();
    }

    /// Sets the server's wall clock ahead of this machine's, or behind it, by so many seconds; returns when
    /// the server has noticed. It stays so over a restart.
    ///
    /// # Panics
    ///
    /// If the server was not started with `movable_clock()`, or does not follow.
    #[track_caller]
    pub fn move_clock(&self, seconds: i64) {
        assert!(
            self.config.movable_clock,
            "only a server started with movable_clock() has such a clock"
        );
        clock::set(&self.site.clock(), seconds);
        let shown = || self.cli(&["TIME"]).array()[0].int() - clock::seconds_of_this_machine();
        eventually("the server has noticed", || (shown() - seconds).abs() <= 1);
    }

    fn launch(&self) {
        let process = launch::launch(&self.config, &self.site);
        *self.process() = Some(process.unwrap_or_else(|failure| panic!("{failure}")));
    }

    /// Whether it has not been killed.
    pub(crate) fn is_running(&self) -> bool {
        self.process().is_some()
    }

    /// Whether it was neither killed nor paused.
    pub(crate) fn is_answering(&self) -> bool {
        self.is_running() && !self.paused.load(Ordering::SeqCst)
    }

    /// The password, if there is one.
    pub(crate) fn password(&self) -> Option<&str> {
        self.config.password.as_deref()
    }

    /// Replaces the configuration file, for the next restart.
    pub(crate) fn replace_config_file(&self, text: &str) {
        fs::write(self.site.config_file(), text).expect("the directory is ours");
    }

    /// Sends one command over a connection of its own.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached, or does not answer within ten seconds.
    #[track_caller]
    pub fn cli(&self, args: &[impl AsRef<[u8]>]) -> Reply {
        self.connection().cmd(args)
    }

    /// A connection for several commands, or for pub/sub.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached.
    #[track_caller]
    pub fn connection(&self) -> Cli {
        Cli::connect(&self.site.socket(), self.config.password.as_deref())
            .unwrap_or_else(|error| panic!("no connection to the server: {error}"))
    }

    /// How often the server has executed a command (lower case), scripts' own calls included.
    #[track_caller]
    pub fn commandstats(&self, command: &str) -> u64 {
        let info = self.cli(&["INFO", "commandstats"]);
        let Some(stats) = field(info.text(), &format!("cmdstat_{command}")) else {
            return 0;
        };
        let calls = stats.split(',').find_map(|pair| pair.strip_prefix("calls="));
        calls.and_then(|calls| calls.parse().ok()).expect("commandstats counts calls")
    }

    /// One field of `INFO section`.
    ///
    /// # Panics
    ///
    /// If there is no such field.
    #[track_caller]
    pub fn info_field(&self, section: &str, name: &str) -> String {
        let info = self.cli(&["INFO", section]);
        field(info.text(), name)
            .unwrap_or_else(|| panic!("INFO {section} has no field {name}"))
            .to_owned()
    }

    /// The certificate of the CA that signed the server's, for a server started with `tls()`.
    pub fn ca_pem(&self) -> Vec<u8> {
        read(&self.certificates().ca)
    }

    /// A client's certificate that the server accepts, for a server started with `tls()`.
    pub fn client_cert_pem(&self) -> Vec<u8> {
        read(&self.certificates().client_certificate)
    }

    /// The key of [`client_cert_pem`](Self::client_cert_pem).
    pub fn client_key_pem(&self) -> Vec<u8> {
        read(&self.certificates().client_key)
    }

    pub(crate) fn shared_certificates(&self) -> Option<&Certificates> {
        self.site.certificates.as_ref()
    }

    fn certificates(&self) -> &Certificates {
        self.shared_certificates().expect("only a server started with tls() has certificates")
    }

    fn address(&self, credentials: &str) -> String {
        match self.config.transport {
            Transport::Tcp => format!("redis://{credentials}127.0.0.1:{}", self.port()),
            Transport::Tls { .. } => format!("rediss://{credentials}127.0.0.1:{}", self.port()),
            Transport::Unix => format!("redis+unix://{}", self.site.socket().display()),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.process)
    }

    #[track_caller]
    fn with_process<T>(&self, act: impl FnOnce(&Process) -> T) -> T {
        act(self.process().as_ref().expect("the server has been killed"))
    }
}

fn read(path: &std::path::Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn temporary_directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("testkit-redis-").tempdir().expect("a temporary directory can be created")
}
