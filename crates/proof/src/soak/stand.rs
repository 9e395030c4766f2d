//! The servers of a soak, and what happens to them.

use std::time::Duration;

use fastrand::Rng;
use testkit::{Cluster, FaultProxy, Quorum, RedisServer, Replicated, Sentinels, Shape};

use super::Store;

/// The servers of one store.
pub(super) enum Stand {
    Redis(Box<RedisServer>, FaultProxy),
    Sentinel(Sentinels),
    Cluster(Cluster),
    Quorum(Quorum),
    File(tempfile::TempDir),
}

/// What has happened: a word, and whether locks may be lost by it, as the manual says.
pub(super) type Happened = (&'static str, bool);

impl Stand {
    pub(super) fn start(store: Store) -> Self {
        match store {
            Store::Redis => {
                let server = RedisServer::builder().persistent(true).start();
                let proxy = FaultProxy::start_blocking(server.port());
                Self::Redis(Box::new(server), proxy)
            }
            Store::Sentinel => {
                Self::Sentinel(Replicated::builder().replicas(2).sentinels().start())
            }
            Store::Cluster => Self::Cluster(Cluster::start(Shape::Replicated)),
            Store::Quorum3 => Self::Quorum(Quorum::builder(3).proxied().start()),
            Store::Quorum5 => Self::Quorum(Quorum::builder(5).proxied().start()),
            Store::File => Self::File(tempfile::tempdir().expect("a directory")),
        }
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Redis(_, proxy) => proxy.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Quorum(quorum) => quorum.url(),
            Self::File(folder) => format!("file:{}", folder.path().join("locks").display()),
        }
    }

    /// Lets one thing happen, and repairs it; returns what it was. `None` for a store without servers.
    pub(super) fn happens(&self, rng: &mut Rng) -> Option<Happened> {
        let mut span = |least: u64, most: u64| Duration::from_millis(rng.u64(least..most));
        let (short, long) = (span(10, 400), span(500, 4_000));
        let wait = std::thread::sleep;
        Some(match self {
            Self::File(_) => return None,
            Self::Redis(server, proxy) => match rng.u8(..8) {
                0 => {
                    proxy.cut();
                    ("connections cut", false)
                }
                1 => {
                    proxy.black_hole(true);
                    wait(long);
                    proxy.black_hole(false);
                    proxy.cut();
                    ("network silent", false)
                }
                2 => {
                    proxy.drop_replies(true);
                    wait(short);
                    proxy.drop_replies(false);
                    proxy.cut();
                    ("answers lost", false)
                }
                3 | 4 => {
                    server.pause();
                    wait(long);
                    server.resume();
                    ("server paused", false)
                }
                5 => {
                    server.restart();
                    ("server restarted with its data", false)
                }
                6 => {
                    server.cli(&["FLUSHALL"]).ok();
                    ("server flushed", true)
                }
                _ if rng.bool() => {
                    server.restart_empty();
                    ("server restarted empty", true)
                }
                _ => {
                    server.kill();
                    wait(short);
                    server.restart();
                    ("server restarted with an old snapshot", true)
                }
            },
            Self::Sentinel(sentinels) => {
                let servers = sentinels.servers();
                if rng.bool() {
                    let replica = rng.usize(..servers.replicas().len());
                    let paused = servers.replicas()[replica].server();
                    paused.pause();
                    wait(long.min(Duration::from_secs(2)));
                    paused.resume();
                    servers.await_in_sync(2);
                    return Some(("replica paused", false));
                }
                sentinels.failover();
                servers.await_in_sync(2);
                ("failover ordered", false)
            }
            Self::Cluster(cluster) => {
                let shard = rng.usize(..3);
                match rng.u8(..4) {
                    0 => {
                        cluster.failover(shard);
                        cluster.await_agreement();
                        ("shard failed over", false)
                    }
                    1 => {
                        let old = cluster.primary(shard).port();
                        cluster.fail_over_by_killing(shard);
                        let index = cluster.nodes().iter().position(|node| node.port() == old);
                        cluster.restart(index.expect("it is a node"));
                        ("shard failed over by a kill", false)
                    }
                    2 => {
                        let paused = cluster.primary(shard).server();
                        paused.pause();
                        wait(short);
                        paused.resume();
                        ("shard paused", false)
                    }
                    _ => {
                        cluster.reshard_all(1);
                        ("all slots moved", false)
                    }
                }
            }
            Self::Quorum(quorum) => {
                let member = rng.usize(..quorum.nodes().len());
                let server = quorum.server(member);
                match rng.u8(..6) {
                    0 => {
                        server.pause();
                        wait(long);
                        server.resume();
                        ("member paused", false)
                    }
                    1 => {
                        quorum.cut(member);
                        wait(long);
                        quorum.heal(member);
                        ("member cut off", false)
                    }
                    2 => {
                        server.cli(&["FLUSHALL"]).ok();
                        ("member flushed", false)
                    }
                    3 => {
                        server.restart_empty();
                        ("member restarted empty", false)
                    }
                    4 => {
                        quorum.save(member);
                        wait(long);
                        quorum.restore(member);
                        ("member restarted with an old snapshot", false)
                    }
                    _ => {
                        quorum.nodes()[member].proxy().cut();
                        ("connections cut", false)
                    }
                }
            }
        })
    }
}
