//! Starting the process and waiting until it answers.

use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::builder::{Config, Transport};
use super::clock;
use super::flavour::Flavour;
use crate::certificates::Certificates;
use crate::port::Reservation;
use crate::process::{POLL_INTERVAL, Process};
use crate::{Cli, Reply};

/// An idle machine needs 20 ms; a loaded one with two cores has been seen to need a second.
const START_LIMIT: Duration = Duration::from_secs(20);

pub(super) const CONFIG_FILE: &str = "redis.conf";

/// Where a server lives; the same over all its restarts.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) directory: TempDir,
    pub(super) certificates: Option<Certificates>,
    pub(super) port: Port,
}

/// The TCP port of a server, restarts included.
#[derive(Debug)]
pub(super) enum Port {
    /// A Unix socket only.
    None,
    Given(u16),
    Ours(Reservation),
}

impl Port {
    pub(super) fn number(&self) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Given(port) => Some(*port),
            Self::Ours(reservation) => Some(reservation.port()),
        }
    }
}

impl Site {
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.directory.path().join(CONFIG_FILE)
    }

    pub(super) fn dump(&self) -> PathBuf {
        self.directory.path().join("dump.rdb")
    }

    pub(super) fn clock(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("redis.log")
    }
}

/// Why a server did not start.
#[derive(Debug)]
pub(super) enum Failure {
    Missing(Flavour),
    PortTaken(String),
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(flavour) => f.write_str(flavour.how_to_get_it()),
            Self::PortTaken(text) => write!(f, "the port is taken: {text}"),
            Self::Other(text) => write!(f, "redis-server did not start: {text}"),
        }
    }
}

/// Starts a server at its site; returns when it answers.
pub(super) fn launch(config: &Config, site: &Site) -> Result<Process, Failure> {
    if !config.persistent {
        // A dump is there only if a test called SAVE; a restart must come up empty all the same.
        let _ = fs::remove_file(site.dump());
    }
    let log = File::create(site.log_path()).map_err(|error| Failure::Other(error.to_string()))?;
    let errors = log.try_clone().map_err(|error| Failure::Other(error.to_string()))?;
    let mut command = command(config, site);
    if config.movable_clock {
        clock::prepare(&mut command, &site.clock());
    }
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    let mut process =
        Process::spawn(&mut command, Some(site.directory.path())).map_err(|error| {
            match error.kind() {
                ErrorKind::NotFound => Failure::Missing(config.flavour),
                _ => Failure::Other(error.to_string()),
            }
        })?;
    let ready = await_ready(&mut process, config, site);
    if config.movable_clock {
        clock::tidy(process.pid());
    }
    ready.map(|()| process)
}

fn command(config: &Config, site: &Site) -> Command {
    let mut command = Command::new(config.flavour.program());
    if site.config_file().exists() {
        command.arg(site.config_file());
    }
    if config.sentinel {
        command.arg("--sentinel");
    }
    command.args(config.flavour.addresses(config.source));
    command.args(["--daemonize", "no", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(site.directory.path());
    command.arg("--unixsocket").arg(site.socket());
    if let Some(password) = &config.password {
        command.args(["--requirepass", password]);
    }
    listen(&mut command, config.transport, site);
    command.args(config.args.iter().flat_map(|(name, value)| [name, value]));
    command
}

fn listen(command: &mut Command, transport: Transport, site: &Site) {
    let port = site.port.number().unwrap_or(0).to_string();
    let Some(files) = &site.certificates else {
        command.args(["--port", &port]);
        return;
    };
    let required = matches!(transport, Transport::Tls { client_certificate_required: true });
    command.args(["--port", "0", "--tls-port", &port]);
    command.args(["--tls-auth-clients", if required { "yes" } else { "optional" }]);
    let file = |command: &mut Command, option: &str, path: &Path| {
        command.arg(option).arg(path);
    };
    file(command, "--tls-ca-cert-file", &files.ca);
    file(command, "--tls-cert-file", &files.server_certificate);
    file(command, "--tls-key-file", &files.server_key);
    // For the connections of replicas, sentinels and the bus of a cluster.
    command.args(["--tls-replication", "yes", "--tls-cluster", "yes"]);
    file(command, "--tls-client-cert-file", &files.client_certificate);
    file(command, "--tls-client-key-file", &files.client_key);
}

/// The server listens everywhere before it serves anyone, so an answer on the Unix socket means that
/// the port is open too.
fn await_ready(process: &mut Process, config: &Config, site: &Site) -> Result<(), Failure> {
    let deadline = Instant::now() + START_LIMIT;
    while !answers(config, site) {
        if let Some(status) = process.exit_status() {
            return Err(exited(&format!("{status}; its log:\n{}", site.log())));
        }
        if Instant::now() > deadline {
            let log = site.log();
            return Err(Failure::Other(format!("no PONG within {START_LIMIT:?}; its log:\n{log}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn answers(config: &Config, site: &Site) -> bool {
    let connection = Cli::connect(&site.socket(), config.password.as_deref());
    // Anything but PONG, such as LOADING, means: not yet.
    let pong = Reply::Status("PONG".to_owned());
    connection.and_then(|mut cli| cli.request(&["PING"])).is_ok_and(|reply| reply == pong)
}

fn exited(text: &str) -> Failure {
    match text.contains("Address already in use") {
        true => Failure::PortTaken(text.to_owned()),
        false => Failure::Other(text.to_owned()),
    }
}
