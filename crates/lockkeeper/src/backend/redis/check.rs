//! What of a server endangers locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use super::{Inner, bulk, number, strings, unexpected};
use crate::backend::{Fault, Finding};

/// The settings that affect locks.
const SETTINGS: [&str; 3] = ["appendfsync", "save", "min-replicas-to-write"];

impl Inner {
    pub(super) async fn check(&self) -> Result<Vec<Finding>, Fault> {
        let before = wall();
        // One by one: Redis before 7.0 accepts only one setting per command.
        let setting = |name: &str| {
            let mut get = redis::cmd("CONFIG");
            get.arg("GET").arg(name);
            get
        };
        // No connection has this id: the command only checks the permission.
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(i64::MAX);
        let mut reads = vec![redis::cmd("TIME"), redis::cmd("INFO"), kill];
        reads.extend(SETTINGS.map(setting));
        let mut answers = self.link.read(reads).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let (time, info, kill) = (next(), next(), next());
        let config = Config::of(SETTINGS.map(|_| next()));
        let after = wall();
        if kill.is_err() {
            self.link.never_fences();
        }

        let mut findings = Vec::new();
        findings.push(match time {
            Ok(Value::Array(parts)) => clock(&parts, before, after),
            Ok(other) => return Err(unexpected(&other)),
            Err(fault) => unseen("clock", "TIME", &fault),
        });
        let info = match info {
            Ok(Value::BulkString(text)) => Info(String::from_utf8_lossy(&text).into_owned()),
            Ok(Value::VerbatimString { text, .. }) => Info(text),
            Ok(other) => return Err(unexpected(&other)),
            Err(fault) => {
                findings.push(unseen("server", "INFO", &fault));
                return Ok(findings);
            }
        };
        findings.push(version(&info));
        findings.push(role(&info));
        findings.extend(cluster(&info));
        findings.push(eviction(&info));
        findings.extend(memory(&info));
        findings.push(persistence(&info, &config));
        findings.extend(replicas(&info, &config));
        Ok(findings)
    }
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A finding about a subject that could not be checked.
fn unseen(subject: &str, command: &str, fault: &Fault) -> Finding {
    let detail = format!("could not be looked at: {command} was refused ({fault:?})");
    Finding::note(subject, detail, &format!("allow the user {command}, for this check alone"))
}

/// The reply of `INFO`: lines of `field:value`.
struct Info(String);

impl Info {
    fn get(&self, field: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
    }

    fn number(&self, field: &str) -> u64 {
        self.get(field).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

/// The reply of `CONFIG GET`; hosted servers often reject it.
struct Config(Option<Vec<(String, String)>>);

impl Config {
    fn of(answers: [Result<Value, Fault>; SETTINGS.len()]) -> Self {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let mut pairs = Vec::new();
        for answer in answers {
            match answer {
                Ok(Value::Map(map)) => pairs.extend(map.into_iter().filter_map(|(key, value)| {
                    Some((text(&bulk(key).ok()?), text(&bulk(value).ok()?)))
                })),
                Ok(other) => {
                    let parts = strings(other).unwrap_or_default();
                    let pair = |pair: &[Vec<u8>]| (text(&pair[0]), text(&pair[1]));
                    pairs.extend(parts.chunks_exact(2).map(pair));
                }
                Err(_) => return Self(None),
            }
        }
        Self(Some(pairs))
    }

    fn get(&self, setting: &str) -> Option<&str> {
        let pair = self.0.as_ref()?.iter().find(|(key, _)| key == setting);
        pair.map(|(_, value)| &value[..])
    }
}

/// How far clocks may differ: tokens use the server's clock, and people compare times.
const CLOCK_NOTE: Duration = Duration::from_secs(1);
const CLOCK_DANGER: Duration = Duration::from_secs(60);

fn clock(parts: &[Value], before: Duration, after: Duration) -> Finding {
    let [seconds, micros] = parts else {
        return Finding::note("clock", "the server's clock could not be read", "");
    };
    let theirs = Duration::from_secs(number(seconds)) + Duration::from_micros(number(micros));
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
        Finding::danger("cluster", detail, "use a single server, or one outside of the cluster")
    })
}

fn eviction(info: &Info) -> Finding {
    let policy = info.get("maxmemory_policy").unwrap_or("unknown");
    let limit = info.number("maxmemory");
    let detail = format!("maxmemory-policy is {policy}");
    let remedy = "set maxmemory-policy to noeviction, or keep locks on a server of their own";
    match (policy, limit) {
        ("noeviction", _) => Finding::fine("eviction", detail + ": no lock is thrown out"),
        (_, 0) => {
            let means = ", which throws locks out as soon as maxmemory is set; it is not";
            Finding::note("eviction", detail + means, remedy)
        }
        _ => {
            let means = ": when memory is short the server throws out locks that are held, and \
                         gives them to the next who ask";
            Finding::danger("eviction", detail + means, remedy)
        }
    }
}

fn memory(info: &Info) -> Option<Finding> {
    let (used, limit) = (info.number("used_memory"), info.number("maxmemory"));
    (limit > 0 && used > limit / 10 * 9).then(|| {
        let detail = format!(
            "{} of {} MiB are used: at the limit new locks are refused; those that are held are \
             still renewed and given back",
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
                let detail = "the append-only file is written whenever the system likes: after a \
                              power loss a lock taken in the last half minute is not known any \
                              more, and is given to the next who asks";
                Finding::note("persistence", detail, "set appendfsync to always")
            }
            Some("always") => {
                Finding::fine("persistence", "every change is on disk before its answer")
            }
            _ => {
                let detail = "the append-only file is written about once a second: after a power \
                              loss a lock taken in the last second is not known any more, and is \
                              given to the next who asks";
                let remedy = "set appendfsync to always, or keep the server down for one lease \
                              after a power loss";
                Finding::note("persistence", detail, remedy)
            }
        };
    }
    let snapshots = config.get("save").is_some_and(|save| !save.is_empty());
    let what = if snapshots {
        "only snapshots now and then: a server that starts again does not know the locks that were \
         taken since the last one"
    } else {
        "none: a server that starts again knows no locks"
    };
    let detail = format!("{what}, and gives them to the next who ask while the holders still work");
    Finding::danger("persistence", detail, remedy)
}

fn replicas(info: &Info, config: &Config) -> Option<Finding> {
    let replicas = info.number("connected_slaves");
    let waits = config.get("min-replicas-to-write").is_some_and(|count| count != "0");
    (replicas > 0).then(|| {
        let detail = format!(
            "{replicas} {}: what the primary answered last may not have reached them when one takes \
             over, so that a lock is given twice{}",
            if replicas == 1 { "replica" } else { "replicas" },
            if waits { "; min-replicas-to-write narrows that, and does not close it" } else { "" }
        );
        Finding::note("replication", detail, "use fenced locks where it must not happen")
    })
}
