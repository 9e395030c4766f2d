//! Options of a server.

use std::sync::Mutex;

use super::launch::{self, Failure, Port, Site};
use super::{RedisServer, temporary_directory};
use crate::certificates::Certificates;
use crate::port;

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
    pub(super) password: Option<String>,
    pub(super) args: Vec<(String, String)>,
    pub(super) persistent: bool,
    pub(super) transport: Transport,
}

/// Options of a [`RedisServer`].
#[derive(Debug, Default)]
#[must_use = "nothing runs before start()"]
pub struct RedisServerBuilder {
    config: Config,
    port: Option<u16>,
}

impl RedisServerBuilder {
    /// Listens on this port instead of a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
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

    /// Starts the server; returns when it answers.
    ///
    /// # Panics
    ///
    /// If it cannot be started; the message says why and what to do.
    pub fn start(self) -> RedisServer {
        let directory = temporary_directory();
        let certificates = matches!(self.config.transport, Transport::Tls { .. })
            .then(|| Certificates::create(directory.path()));
        let mut site = Site { directory, certificates, port: Port::None };
        for _ in 0..PORT_ATTEMPTS {
            site.port = self.choose_port();
            match launch::launch(&self.config, &site) {
                Ok(process) => {
                    let process = Mutex::new(Some(process));
                    return RedisServer { config: self.config, process, site };
                }
                // Somebody was faster. A port that was asked for cannot be replaced.
                Err(Failure::PortTaken(_)) if self.port.is_none() => {}
                Err(failure) => panic!("{failure}"),
            }
        }
        panic!("redis-server found {PORT_ATTEMPTS} free ports taken, one after the other")
    }

    fn choose_port(&self) -> Port {
        match (self.config.transport, self.port) {
            (Transport::Unix, _) => Port::None,
            (_, Some(port)) => Port::Given(port),
            (_, None) => Port::Ours(port::reserve()),
        }
    }
}
