//! Options of a server.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::flavour::Flavour;
use super::launch::{self, Failure, Port, Site};
use super::{RedisServer, temporary_directory};
use crate::certificates::Certificates;
use crate::port::{self, Reservation};

/// How often a port of our own choosing may turn out to be taken.
const PORT_ATTEMPTS: usize = 5;

/// How clients reach the server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Transport {
    #[default]
    Tcp,
    Tls {
        client_certificate_required: bool,
    },
    Unix,
}

#[derive(Debug, Default)]
pub(super) struct Config {
    pub(super) flavour: Flavour,
    pub(super) sentinel: bool,
    /// Where connections that the server opens come from.
    pub(super) source: Option<Ipv4Addr>,
    pub(super) password: Option<String>,
    pub(super) args: Vec<(String, String)>,
    pub(super) persistent: bool,
    pub(super) movable_clock: bool,
    pub(super) transport: Transport,
}

/// Options of a [`RedisServer`].
#[derive(Debug, Default)]
#[must_use = "nothing runs before start()"]
pub struct RedisServerBuilder {
    config: Config,
    port: Option<Port>,
    /// Names and contents.
    files: Vec<(&'static str, String)>,
    certificates: Option<Certificates>,
}

impl RedisServerBuilder {
    /// Listens on this port instead of a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(Port::Given(port));
        self
    }

    /// Requires this password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.config.password = Some(password.into());
        self
    }

    /// Passes an option to `redis-server`, as in `.arg("--maxmemory", "10mb")`.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.args.push((name.into(), value.into()));
        self
    }

    /// Keeps a dump (RDB) in the server's directory, so that data can survive a restart. It is
    /// written by `SAVE` and by [`RedisServer::restart`], never on the server's own initiative.
    pub fn persistent(mut self, persistent: bool) -> Self {
        self.config.persistent = persistent;
        self
    }

    /// Runs on a wall clock that [`RedisServer::move_clock`] moves, by libfaketime.
    pub fn movable_clock(mut self) -> Self {
        self.config.movable_clock = true;
        self
    }

    /// Listens on a Unix socket and on no port.
    pub fn unix_socket(mut self) -> Self {
        self.config.transport = Transport::Unix;
        self
    }

    /// Speaks TLS only, with certificates of its own; a client may present one.
    pub fn tls(mut self) -> Self {
        self.config.transport = Transport::Tls { client_certificate_required: false };
        self
    }

    /// Speaks TLS only, with certificates of its own; a client must present one.
    pub fn tls_with_client_certificate(mut self) -> Self {
        self.config.transport = Transport::Tls { client_certificate_required: true };
        self
    }

    /// Runs this server, whatever the environment says.
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.config.flavour = flavour;
        self
    }

    pub(crate) fn reserved_port(mut self, port: Reservation) -> Self {
        self.port = Some(Port::Ours(port));
        self
    }

    /// Opens connections from this address.
    pub(crate) fn source(mut self, source: Option<Ipv4Addr>) -> Self {
        self.config.source = source;
        self
    }

    /// Starts with a configuration file. What the server writes to it outlasts a restart.
    pub(crate) fn config_file(self, text: String) -> Self {
        self.file(launch::CONFIG_FILE, text)
    }

    /// Starts with a file in its directory.
    pub(crate) fn file(mut self, name: &'static str, text: String) -> Self {
        self.files.push((name, text));
        self
    }

    pub(crate) fn sentinel(mut self) -> Self {
        self.config.sentinel = true;
        self
    }

    /// Speaks TLS only, with the certificates of another server.
    pub(crate) fn certificates(mut self, certificates: Certificates) -> Self {
        self.certificates = Some(certificates);
        self.tls()
    }

    /// Starts the server; returns when it answers.
    ///
    /// # Panics
    ///
    /// If it cannot be started; the message says why and what to do.
    pub fn start(mut self) -> RedisServer {
        let directory = temporary_directory();
        let certificates = matches!(self.config.transport, Transport::Tls { .. }).then(|| {
            self.certificates.take().unwrap_or_else(|| Certificates::create(directory.path()))
        });
        let port_is_fixed = self.port.is_some();
        let mut site = Site { directory, certificates, port: Port::None };
        for (name, text) in &self.files {
            fs::write(site.directory.path().join(name), text).expect("the directory is ours");
        }
        for _ in 0..PORT_ATTEMPTS {
            site.port = self.choose_port();
            match launch::launch(&self.config, &site) {
                Ok(process) => {
                    let (process, paused) = (Mutex::new(Some(process)), AtomicBool::new(false));
                    return RedisServer { config: self.config, process, paused, site };
                }
                // Somebody was faster. A port that was asked for cannot be replaced.
                Err(Failure::PortTaken(_)) if !port_is_fixed => {}
                Err(failure) => panic!("{failure}"),
            }
        }
        panic!("redis-server found {PORT_ATTEMPTS} free ports taken, one after the other")
    }

    fn choose_port(&mut self) -> Port {
        match (self.config.transport, self.port.take()) {
            (Transport::Unix, _) => Port::None,
            (_, Some(port)) => port,
            (_, None) => Port::Ours(port::reserve()),
        }
    }
}
