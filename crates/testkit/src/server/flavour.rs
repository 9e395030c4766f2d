//! Which server runs: that of the system, or another one below `target/servers`.

use std::env;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// The environment variable that chooses the flavour of every server started without an explicit one.
const VARIABLE: &str = "LOCKKEEPER_TEST_SERVER";

/// A server to test with. Only that of the system speaks TLS.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Flavour {
    /// `redis-server` on the PATH.
    System,
    /// Redis 6.2.14.
    Redis62,
    /// Valkey 9.1.2.
    Valkey9,
}

impl Default for Flavour {
    fn default() -> Self {
        Self::chosen()
    }
}

impl Flavour {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::System, Self::Redis62, Self::Valkey9];

    /// The flavour that `LOCKKEEPER_TEST_SERVER` names: `system` (also if it is not set), `redis62` or
    /// `valkey9`.
    ///
    /// # Panics
    ///
    /// If it names another one: a test run with a misspelt server must not pass on the usual one.
    pub fn chosen() -> Self {
        let name = env::var_os(VARIABLE).unwrap_or("system".into());
        match &*name.to_string_lossy() {
            "system" => Self::System,
            "redis62" => Self::Redis62,
            "valkey9" => Self::Valkey9,
            name => panic!("{VARIABLE}={name} is no server: choose system, redis62 or valkey9"),
        }
    }

    /// `xtask/src/servers.rs` puts the files there.
    pub(super) fn program(self) -> PathBuf {
        let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
        match self {
            Self::System => PathBuf::from("redis-server"),
            Self::Redis62 => servers.join("redis-6.2.14"),
            Self::Valkey9 => servers.join("valkey-9.1.2"),
        }
    }

    pub(super) fn how_to_get_it(self) -> &'static str {
        match self {
            Self::System => {
                "redis-server is not installed: run `cargo xtask test`, which installs it \
                 (or `apt-get install redis-server`)"
            }
            Self::Redis62 => "Redis 6.2.14 is not installed: run `cargo xtask servers`",
            Self::Valkey9 => "Valkey 9.1.2 is not installed: run `cargo xtask servers`",
        }
    }

    /// Options: listen on 127.0.0.1, open connections from `source`. Redis 6.2 opens them from the first
    /// address that it listens on.
    pub(super) fn addresses(self, source: Option<Ipv4Addr>) -> Vec<String> {
        let mut options = vec!["--bind".to_owned()];
        match (self, source) {
            (Self::Redis62, Some(source)) => options.extend([source.to_string(), LISTEN.into()]),
            (_, Some(source)) => {
                options.extend([LISTEN.into(), "--bind-source-addr".into(), source.to_string()]);
            }
            (_, None) => options.push(LISTEN.into()),
        }
        options
    }
}

const LISTEN: &str = "127.0.0.1";
