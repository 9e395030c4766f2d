//! A server, its address, and how to log in.

use std::fmt;
use std::path::PathBuf;

use super::tls;

#[derive(Clone)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    /// The id of the node of a cluster that must answer there, if it is known.
    pub(super) node: Option<String>,
}

impl Server {
    /// The same login for another server.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let tls = match &self.address {
            Address::Tcp(.., tls) => tls.clone(),
            Address::Unix(_) => None,
        };
        Self { address: Address::Tcp(host.to_owned(), port, tls), ..self.clone() }
    }

    /// Whether it has the same address, and is the same node of a cluster.
    pub(super) fn is_same(&self, other: &Server) -> bool {
        self.address.to_string() == other.address.to_string() && self.node == other.node
    }
}

/// Where a server listens.
#[derive(Clone)]
pub(super) enum Address {
    Tcp(String, u16, Option<tls::Config>),
    Unix(PathBuf),
}

impl Address {
    /// The host and the port; a Unix socket has none.
    pub(super) fn host(&self) -> Option<(&str, u16)> {
        match self {
            Address::Tcp(host, port, _) => Some((host, *port)),
            Address::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port, _) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Without the password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.database)
    }
}
