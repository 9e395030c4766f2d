//! A server or a sentinel among others, at the address that the others know.
//!
//! With a proxy, that address is the proxy's: clients, replicas and sentinels all come through it. The
//! proxy tells them apart by where they come from: each node opens its connections from its own address
//! in 127.0.0.0/8, while clients come from 127.0.0.1. (Linux has all of these addresses; macOS does not.)

use std::net::{IpAddr, Ipv4Addr};

use crate::port::{self, Reservation};
use crate::server::{RedisServer, RedisServerBuilder};
use crate::{FaultProxy, Reply};

/// What a node can be cut off from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The clients.
    Clients,
    /// The other servers and the sentinels.
    Peers,
}

/// A server or a sentinel among others. Its process is killed on `Drop`.
#[derive(Debug)]
pub struct Node {
    server: RedisServer,
    proxy: Option<FaultProxy>,
    source: Option<Ipv4Addr>,
}

impl Node {
    /// A server, and the proxy before it with the address that the server's own connections come from.
    pub(crate) fn new(server: RedisServer, proxy: Option<(FaultProxy, Ipv4Addr)>) -> Self {
        let (proxy, source) = proxy.unzip();
        Self { server, proxy, source }
    }

    /// The process: to ask, pause, kill and restart.
    pub fn server(&self) -> &RedisServer {
        &self.server
    }

    /// The proxy in front of it.
    ///
    /// # Panics
    ///
    /// If the nodes were not started with `proxied()`.
    #[track_caller]
    pub fn proxy(&self) -> &FaultProxy {
        self.proxy.as_ref().expect("only nodes started with proxied() have proxies")
    }

    /// The port that the others know: the proxy's, if there is one.
    pub fn port(&self) -> u16 {
        self.proxy.as_ref().map_or_else(|| self.server.port(), FaultProxy::port)
    }

    /// The URL of this node alone.
    pub fn url(&self) -> String {
        self.server.url_of("", &self.host())
    }

    /// Whether it says that it is a primary. One that was killed says nothing.
    ///
    /// # Panics
    ///
    /// If it is paused.
    #[track_caller]
    pub fn is_primary(&self) -> bool {
        self.server.is_running() && role(&self.server.cli(&["ROLE"]).ok()) == "master"
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Replicates from another node; with `None` it becomes a primary. A restart does not change that.
    #[track_caller]
    pub(crate) fn replicate(&self, from: Option<&Self>) {
        let port = from.map(|node| node.port().to_string());
        let (host, port) = port.as_deref().map_or(("NO", "ONE"), |port| ("127.0.0.1", port));
        let mut cli = self.server.connection();
        cli.cmd(&["REPLICAOF", host, port]).ok();
        cli.cmd(&["CONFIG", "REWRITE"]).ok();
    }

    /// Cuts it off from a side of these nodes, or connects it again.
    #[track_caller]
    pub(crate) fn separate<'a>(&self, nodes: impl Iterator<Item = &'a Self>, side: Side, on: bool) {
        if side == Side::Clients {
            return self.proxy().separate(IpAddr::V4(Ipv4Addr::LOCALHOST), on);
        }
        for other in nodes.filter(|other| other.port() != self.port()) {
            self.proxy().separate(other.source(), on);
            other.proxy().separate(self.source(), on);
        }
    }

    fn source(&self) -> IpAddr {
        IpAddr::V4(self.source.expect("a node with a proxy has a source"))
    }
}

fn role(reply: &Reply) -> &str {
    reply.array()[0].text()
}

/// The address of a node that has not been started: others can be told of it.
#[derive(Debug)]
pub(crate) enum Site {
    Direct(Reservation),
    Proxied(FaultProxy, Ipv4Addr),
}

impl Site {
    /// `source` is where the node's own connections come from.
    pub(crate) fn new(proxied: bool, source: Ipv4Addr) -> Self {
        match proxied {
            false => Self::Direct(port::reserve()),
            // The node's own port is not known before it has started.
            true => Self::Proxied(FaultProxy::start_blocking(0), source),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Direct(reservation) => reservation.port(),
            Self::Proxied(proxy, _) => proxy.port(),
        }
    }

    pub(crate) fn start(self, builder: RedisServerBuilder) -> Node {
        match self {
            Self::Direct(reservation) => {
                Node::new(builder.reserved_port(reservation).start(), None)
            }
            Self::Proxied(proxy, source) => {
                let server = builder.source(Some(source)).start();
                proxy.redirect(server.port());
                Node::new(server, Some((proxy, source)))
            }
        }
    }
}
