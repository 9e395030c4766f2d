//! What of a server endangers locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::RedisInner;
use super::cluster::Cluster;
use super::command::Command;
use super::connection::committer::AckTerms;
use super::reply::{Info, Time};
use super::resp::Value;
use super::shard::Shard;
use super::slot::SLOTS;
use crate::backend::{Fault, Finding};

/// The settings that affect locks.
const SETTINGS: [&str; 3] = ["appendfsync", "save", "min-replicas-to-write"];

/// Whether a node refuses all slots while one has no primary.
const COVERAGE: &str = "cluster-require-full-coverage";

impl RedisInner {
    pub(super) async fn check(&self) -> Result<Vec<Finding>, Fault> {
        match (self.route.only(), self.route.cluster()) {
            (Some(shard), _) => self.check_server(shard, None).await,
            (None, Some(cluster)) => self.check_cluster(cluster).await,
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Checks one server. `replicas` is how many could be promoted in a cluster.
    async fn check_server(
        &self,
        shard: &Shard,
        replicas: Option<usize>,
    ) -> Result<Vec<Finding>, Fault> {
        let before = wall();
        // One by one: Redis before 7.0 accepts only one setting per command.
        let setting = |name: &str| Command::plain("CONFIG").arg("GET").arg(name);
        // No connection has this id: the command only checks the permission.
        let kill = Command::plain("CLIENT").arg("KILL").arg("ID").arg(i64::MAX);
        let (time, info, kill, settings) = tokio::try_join!(
            shard.connection.read(vec![Command::plain("TIME")]),
            shard.connection.read(vec![Command::plain("INFO")]),
            shard.connection.read::<Value>(vec![kill]),
            shard.connection.read(SETTINGS.map(setting).into())
        )?;
        let config = Config::of(settings);
        let after = wall();
        if kill.iter().any(Result::is_err) {
            shard.connection.cannot_revoke();
        }

        let mut findings = Vec::new();
        findings.extend(time.into_iter().map(|time| match time {
            Ok(Time(time)) => clock(time, before, after),
            Err(fault) => unseen("clock", "TIME", &fault),
        }));
        let info: Info = match info.into_iter().next().unwrap_or(Err(Fault::Closed)) {
            Ok(info) => info,
            Err(fault) => {
                findings.push(unseen("server", "INFO", &fault));
                findings.extend(self.route.check().await.0);
                return Ok(findings);
            }
        };
        findings.push(version(&info));
        findings.push(role(&info));
        findings.extend(cluster(&info).filter(|_| replicas.is_none()));
        findings.push(eviction(&info));
        findings.extend(memory(&info));
        if self.membership.is_some() {
            // A member that was restarted grants nothing for a while, whatever it has kept.
            findings.extend(replicas_of_member(&info));
            return Ok(findings);
        }
        findings.push(persistence(&info, &config));
        let (found, expected) = self.route.check().await;
        let expected = replicas.or(expected);
        findings.extend(found);
        let terms = match &shard.committer {
            Some(committer) => committer.terms().await,
            None => None,
        };
        findings.extend(replication(&info, &config, terms, expected));
        Ok(findings)
    }

    /// Checks each primary, and what only a cluster has.
    async fn check_cluster(&self, cluster: &Cluster) -> Result<Vec<Finding>, Fault> {
        let mut findings = Vec::new();
        let uncovered = cluster.uncovered();
        findings.push(match uncovered {
            0 => Finding::fine("slots", "each slot has a primary"),
            _ => {
                let detail = format!(
                    "{uncovered} of {SLOTS} slots have no primary: locks in them are refused"
                );
                let remedy =
                    "restore the nodes, or give the slots to others (redis-cli --cluster fix)";
                Finding::danger("slots", detail, remedy)
            }
        });
        let mut strict = Vec::new();
        for (_, shard) in cluster.primaries() {
            let address = shard.primary.address().unwrap_or_default();
            let expected = Some(cluster.replicas(&shard));
            match self.check_server(&shard, expected).await {
                Ok(found) => findings.extend(found.into_iter().map(|one| at(&address, one))),
                Err(fault) => {
                    let detail = format!("does not answer: its locks are out of reach ({fault})");
                    findings.push(Finding::danger(
                        &format!("node {address}"),
                        detail,
                        "restore it",
                    ));
                }
            }
            let nodes = Command::plain("CLUSTER").arg("NODES");
            let coverage = Command::plain("CONFIG").arg("GET").arg(COVERAGE);
            let id = Command::plain("CLUSTER").arg("MYID");
            let (nodes, coverage, id) = tokio::join!(
                shard.connection.call(nodes),
                shard.connection.call(coverage),
                shard.connection.call::<Value>(id)
            );
            findings.extend(nodes.ok().and_then(moving).map(|one| at(&address, one)));
            let denied = id.err().filter(|fault| !fault.may_pass());
            findings.extend(denied.map(|fault| at(&address, unidentified(&fault))));
            if Config::of([coverage]).get(COVERAGE) == Some("yes") {
                strict.push(address);
            }
        }
        if !strict.is_empty() {
            let detail = format!(
                "{COVERAGE} is yes at {}: while one slot has no primary, every lock is refused there",
                strict.join(", ")
            );
            findings.push(Finding::note("slots", detail, &format!("set {COVERAGE} to no")));
        }
        Ok(findings)
    }
}

fn at(address: &str, finding: Finding) -> Finding {
    Finding { detail: format!("{address}: {}", finding.detail), ..finding }
}

/// A node is told from one of another cluster by its address only.
fn unidentified(fault: &Fault) -> Finding {
    let detail = format!(
        "CLUSTER MYID was refused ({fault}): a node of another cluster that gets the address of this one is not \
         told from it, and may grant the same locks"
    );
    Finding::note("nodes", detail, "allow the user CLUSTER MYID")
}

/// Finds slots that are half-migrated, from `CLUSTER NODES`: `[93->-ID]` leaves this node.
fn moving(Info(text): Info) -> Option<Finding> {
    let own = text.lines().find(|line| line.contains("myself"))?;
    let slots = own.split(' ').filter_map(|word| word.strip_prefix('[')?.split_once("->-"));
    let slots: Vec<_> = slots.map(|(slot, _)| slot).collect();
    let detail = format!(
        "slots that are being moved: {}, {} first; until that ends, fenced, fair and read/write locks, \
         semaphores and latches wait there, and other locks are served",
        slots.len(),
        slots.first()?
    );
    Some(Finding::note("slots", detail, "complete the migration (redis-cli --cluster fix)"))
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A finding about a subject that could not be checked.
fn unseen(subject: &str, command: &str, fault: &Fault) -> Finding {
    let detail = format!("could not be looked at: {command} was refused ({fault})");
    Finding::note(subject, detail, &format!("allow the user {command}, for this check alone"))
}

/// The reply of `CONFIG GET`; hosted servers often reject it.
struct Config(Option<Vec<(String, String)>>);

impl Config {
    fn of(answers: impl IntoIterator<Item = Result<Vec<Vec<u8>>, Fault>>) -> Self {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let pair = |pair: &[Vec<u8>]| (text(&pair[0]), text(&pair[1]));
        let pairs = |parts: Vec<Vec<u8>>| parts.chunks_exact(2).map(pair).collect::<Vec<_>>();
        let answers = answers.into_iter().map(|answer| answer.map(pairs));
        Self(answers.collect::<Result<Vec<_>, _>>().ok().map(|all| all.concat()))
    }

    fn get(&self, setting: &str) -> Option<&str> {
        let pair = self.0.as_ref()?.iter().find(|(key, _)| key == setting);
        pair.map(|(_, value)| &value[..])
    }
}

/// How far clocks may differ: tokens use the server's clock, and people compare times.
const CLOCK_NOTE: Duration = Duration::from_secs(1);
const CLOCK_DANGER: Duration = Duration::from_secs(60);

fn clock(theirs: Duration, before: Duration, after: Duration) -> Finding {
    let apart = before.saturating_sub(theirs).max(theirs.saturating_sub(after));
    let apart_by = match apart.as_millis() {
        0 => "less than a millisecond".to_owned(),
        _ => format!("{apart:.1?}"),
    };
    let detail = format!("the server's clock and this machine's are {apart_by} apart");
    let means = "; leases are counted in spans and do not mind, but a server that takes over with \
                 a clock behind would issue smaller tokens, and one that is set right while it runs \
                 ends or lengthens leases";
    let remedy = "let all machines keep time by NTP, slewed rather than stepped";
    match apart {
        apart if apart > CLOCK_DANGER => Finding::danger("clock", detail + means, remedy),
        apart if apart > CLOCK_NOTE => Finding::note("clock", detail + means, remedy),
        _ => Finding::fine("clock", detail),
    }
}

fn version(info: &Info) -> Finding {
    let valkey = info.get("valkey_version");
    let (server, version) = match valkey {
        Some(version) => ("Valkey", version),
        None => ("Redis", info.get("redis_version").unwrap_or("0")),
    };
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let detail = format!("{server} {version}");
    if (major, minor) < (6, 2) {
        let means = ": requests that got no answer cannot be kept from running later";
        return Finding::danger("version", detail + means, "use Redis 6.2 or later");
    }
    if major < 7 {
        let means = ": a mutex takes a script where 7.0 has a command";
        return Finding::note("version", detail + means, "use Redis 7.0 or later");
    }
    Finding::fine("version", detail)
}

fn role(info: &Info) -> Finding {
    match info.get("role") {
        Some("master") => Finding::fine("role", "a primary"),
        Some(role) => {
            let detail = format!("the server is a {role}: nothing can be locked here");
            Finding::danger("role", detail, "give the address of the primary")
        }
        None => Finding::note("role", "the server does not say whether it is a primary", ""),
    }
}

fn cluster(info: &Info) -> Option<Finding> {
    (info.get("cluster_enabled") == Some("1")).then(|| {
        let detail = "a node of a Redis Cluster: names of other nodes cannot be locked through it";
        Finding::danger("cluster", detail, "use redis+cluster:// and the same address")
    })
}

fn eviction(info: &Info) -> Finding {
    let policy = info.get("maxmemory_policy").unwrap_or("unknown");
    let limit = info.number("maxmemory");
    let detail = format!("maxmemory-policy is {policy}");
    let remedy = "set maxmemory-policy to noeviction, or keep locks on a server of their own";
    match (policy, limit) {
        ("noeviction", _) => Finding::fine("eviction", detail + ": no lock is evicted"),
        (_, 0) => {
            let means = ", which evicts locks as soon as maxmemory is set; it is not";
            Finding::note("eviction", detail + means, remedy)
        }
        _ => {
            let means = ": when memory is short the server evicts locks that are held; another \
                         client can then acquire them";
            Finding::danger("eviction", detail + means, remedy)
        }
    }
}

fn memory(info: &Info) -> Option<Finding> {
    let (used, limit) = (info.number("used_memory"), info.number("maxmemory"));
    (limit > 0 && used > limit / 10 * 9).then(|| {
        let detail = format!(
            "{} of {} MiB are used: at the limit new locks are refused; those that are held are \
             still renewed and released",
            used >> 20,
            limit >> 20
        );
        Finding::note("memory", detail, "give the server more memory, or less to keep")
    })
}

fn persistence(info: &Info, config: &Config) -> Finding {
    let remedy = "set appendonly to yes, and after a crash keep the server down for one lease; or \
                  use fenced locks, whose tokens grow even so";
    if config.0.is_none() {
        let on = info.get("aof_enabled") == Some("1");
        let detail = format!(
            "the append-only file is {}; what else is set could not be looked at: CONFIG GET was \
             refused",
            if on { "on" } else { "off" }
        );
        let severity = if on { Finding::note } else { Finding::danger };
        return severity("persistence", detail, "allow the user CONFIG GET, for this check alone");
    }
    if info.get("aof_enabled") == Some("1") {
        return match config.get("appendfsync") {
            Some("no") => {
                let detail = "the append-only file is written when the system flushes it: after a \
                              power loss a lock that was acquired in the last half minute is lost, \
                              and another client can acquire it";
                Finding::note("persistence", detail, "set appendfsync to always")
            }
            Some("always") => {
                Finding::fine("persistence", "every change is on disk before its answer")
            }
            _ => {
                let detail = "the append-only file is written about once a second: after a power \
                              loss a lock that was acquired in the last second is lost, and \
                              another client can acquire it";
                let remedy = "set appendfsync to always, or keep the server down for one lease \
                              after a power loss";
                Finding::note("persistence", detail, remedy)
            }
        };
    }
    let snapshots = config.get("save").is_some_and(|save| !save.is_empty());
    let what = if snapshots {
        "only snapshots now and then: a restart loses the locks that were acquired since the last one"
    } else {
        "none: a restart loses all locks"
    };
    let detail =
        format!("{what}; another client can then acquire them while the holders still work");
    Finding::danger("persistence", detail, remedy)
}

/// A replica as the primary sees it.
struct Replica<'a> {
    ip: &'a str,
    port: &'a str,
    state: &'a str,
    /// For how many seconds it has confirmed nothing; it does so every second.
    lag: u64,
}

/// Beyond this a replica is late.
const LAG_MAX: u64 = 3;

impl<'a> Replica<'a> {
    /// Parses `slave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=0`.
    fn parse(line: &'a str) -> Option<Self> {
        let (number, fields) = line.strip_prefix("slave")?.split_once(':')?;
        number.parse::<u32>().ok()?;
        let field = |name: &str| {
            fields.trim().split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let (ip, port, state) = (field("ip")?, field("port")?, field("state")?);
        Some(Self { ip, port, state, lag: field("lag")?.parse().ok()? })
    }

    fn is_late(&self) -> bool {
        self.state != "online" || self.lag > LAG_MAX
    }

    fn late(&self) -> Finding {
        let Self { ip, port, state, lag } = self;
        let detail = format!(
            "the replica {ip}:{port} is late ({state}, nothing confirmed for {lag} s): it \
             acknowledges no lock, and if it is promoted, newer locks may be held by two clients"
        );
        Finding::note("replication", detail, "find out what keeps it or its network busy")
    }
}

/// Returns what replicas mean for locks. `expected` is how many could be promoted, where that is known.
fn replication(
    info: &Info,
    config: &Config,
    terms: Option<AckTerms>,
    expected: Option<usize>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let connected: Vec<_> = info.0.lines().filter_map(Replica::parse).collect();
    let late: Vec<_> = connected.iter().filter(|replica| replica.is_late()).collect();
    findings.extend(late.iter().map(|replica| replica.late()));
    let in_time = connected.len() - late.len();
    let all = expected.unwrap_or_default().max(connected.len());
    let count = match all {
        1 => "1 replica".to_owned(),
        _ => format!("{all} replicas"),
    };
    if connected.len() < all {
        let detail = format!(
            "{} of {count} connected: one that is away has no newer locks, and if it is promoted \
             they may be held by two clients",
            connected.len()
        );
        findings.push(Finding::note("replication", detail, "start the replicas that are away"));
    }
    let minimum = config.get("min-replicas-to-write").and_then(|count| count.parse().ok());
    if let Some(minimum @ 1..) = minimum
        && info.number("min_slaves_good_slaves") < minimum
    {
        let detail = format!(
            "min-replicas-to-write is {minimum}, and fewer replicas are in time: the primary \
             rejects every lock"
        );
        findings.push(Finding::danger("replication", detail, "restore the replicas"));
    }
    if let Some(AckTerms { replicas, is_strict: true, .. }) = terms
        && in_time < replicas as usize
    {
        let detail = format!(
            "{replicas} must acknowledge each lock, and {in_time} of {count} can: no lock is granted"
        );
        let remedy = "restore the replicas, or let fewer acknowledge (acknowledged_by)";
        findings.push(Finding::danger("replication", detail, remedy));
    }
    if all > 0 {
        findings.push(acknowledgement(&count, all, terms));
    } else if expected.is_some() {
        let detail = "no replica: nothing can take over for a primary that fails";
        findings.push(Finding::note("replication", detail, "start a replica"));
    }
    findings
}

/// A member of a quorum needs no replica.
fn replicas_of_member(info: &Info) -> Option<Finding> {
    let count = info.number("connected_slaves");
    let detail = format!(
        "it has {count} of them: one that is promoted may lack the last locks, and so grants nothing for \
         one longest lease, as a restarted member would"
    );
    let remedy = "make it a member of its own, or remove it";
    (count > 0).then(|| Finding::note("replication", detail, remedy))
}

/// Returns what acknowledgement by replicas proves.
fn acknowledgement(count: &str, all: usize, terms: Option<AckTerms>) -> Finding {
    let fenced = "use fenced locks where it must not happen";
    let ask = format!("let all of them acknowledge each lock (acknowledged_by), or {fenced}");
    let detail = match terms {
        None => format!(
            "{count}, and none must acknowledge a lock: what the primary answered last may not have \
             reached them when one takes over, so that a lock may be held by two clients"
        ),
        Some(AckTerms { replicas, is_strict: true, .. }) if replicas as usize >= all => {
            let detail = format!(
                "{count}, and all must acknowledge each lock: whichever is promoted has it; no lock \
                 is granted while one of them is away"
            );
            return Finding::fine("replication", detail);
        }
        Some(AckTerms { is_strict: false, .. }) if all == 1 => format!(
            "{count}, which acknowledges each lock while it is connected: a lock acquired without it \
             may be held by two clients after a failover"
        ),
        Some(AckTerms { replicas, .. }) => format!(
            "{count}, and {replicas} must acknowledge each lock: it survives if one that \
             acknowledged it is promoted, and may be held by two clients if another one is"
        ),
    };
    Finding::note("replication", detail, &ask)
}
