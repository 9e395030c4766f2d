//! The text of the page.

use serde_json::Value;

use super::rows::PageRow;
use super::{Drawing, Section};
use crate::machine;

/// Column, workload and number of workers of the first table.
pub(super) const GLANCE: &[(&str, &str, Option<u64>)] = &[
    ("uncontended, 64 workers, pairs/s", "peers: uncontended", Some(64)),
    ("uncontended, 1024 workers, pairs/s", "peers: uncontended", Some(1024)),
    ("one hot lock, 64 workers, acquisitions/s", "peers: hot lock, 1 process", None),
    ("one hot lock, 8 processes × 8, acquisitions/s", "peers: hot lock, 8 processes", None),
    ("handoff between processes, p50, µs", "peers: handoff p50", None),
    ("memory per waiter, bytes", "peers: memory per waiter", None),
    ("new client until it has a lock, ms", "peers: connect, new client", None),
    ("three independent servers, 64 workers, pairs/s", "quorum: uncontended, 3 members", Some(64)),
];

/// The most important aims: what it is called, workload, contender, numbers of workers, and the aim there.
pub(super) const AIMS: &[(&str, &str, &str, &[u64], &str)] = &[
    (
        "`Lock` with 64 / 1024 tasks, ratio to the raw ceiling",
        "lock uncontended",
        "lockkeeper Lock",
        &[64, 1024],
        "ratio to the raw ceiling",
    ),
    (
        "`Mutex` with 64 / 1024 tasks, ratio to its raw ceiling",
        "mutex uncontended",
        "lockkeeper Mutex",
        &[64, 1024],
        "ratio to the raw ceiling",
    ),
    (
        "`Mutex` with 16 / 64 / 1024 tasks, ratio to rslock",
        "peers: uncontended",
        "lockkeeper Mutex",
        &[16, 64, 1024],
        "ratio to rslock",
    ),
    (
        "client instructions per uncontended pair, 64 tasks",
        "instructions per pair",
        "lockkeeper Lock",
        &[64],
        "instructions",
    ),
    (
        "allocations per uncontended pair",
        "allocations per pair",
        "lockkeeper Lock",
        &[64],
        "allocations",
    ),
    (
        "handoff to a waiter in another process, ratio to the raw subscriber",
        "peers: handoff p50",
        "lockkeeper Lock",
        &[2],
        "ratio to the raw subscriber",
    ),
    (
        "one hot `Lock`, 64 tasks, ratio to Redisson with 64 threads",
        "peers: hot lock, 1 process",
        "lockkeeper Lock",
        &[64],
        "ratio to Redisson",
    ),
    (
        "fair lock with 100 / 1000 waiters, ratio to Redisson",
        "peers: fair lock",
        "lockkeeper FairLock",
        &[101, 1001],
        "ratio to Redisson",
    ),
    (
        "contended `Mutex`, 64 local tasks, ratio to contended `Lock`",
        "hot lock",
        "lockkeeper Mutex",
        &[64],
        "ratio to Lock",
    ),
    (
        "pairs beside 1,000,000 renewed locks, ratio to beside one",
        "growth: 1000000 names held",
        "lockkeeper Lock",
        &[64],
        "ratio to 1 name",
    ),
    (
        "requests per pair on three servers, 1 / 64 tasks",
        "quorum: uncontended, 3 members",
        "lockkeeper Lock",
        &[1, 64],
        "requests/pair",
    ),
    (
        "`Lock` again after two of five servers were killed, ms",
        "quorum: members die",
        "lockkeeper Lock",
        &[1],
        "ms",
    ),
    (
        "requests per pair on a cluster, 1 / 64 / 1024 tasks",
        "cluster: uncontended",
        "lockkeeper Lock, three primaries",
        &[1, 64, 1024],
        "requests/pair",
    ),
    (
        "`Lock` again after the ordered failover of a shard, worst, ms",
        "cluster: failover, worst",
        "lockkeeper Lock",
        &[1],
        "ms",
    ),
    (
        "`FencedLock` again after an ordered failover by sentinels, worst, ms",
        "failover: worst",
        "lockkeeper FencedLock",
        &[1],
        "ms",
    ),
    ("store in memory, one task, pairs/s", "memory store", "lockkeeper Lock", &[1], "pairs/s"),
];

/// The parts of the results.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        heading: "Uncontended",
        about: "Each worker acquires and releases a lock of its own, all in one process.",
        plot: Some(Drawing {
            file: "uncontended.svg",
            title: "Uncontended: acquire and release",
            unit: "pairs per second over the number of workers; more is better",
            lines: true,
            places: &[("peers: uncontended", "")],
        }),
        workloads: &["peers: uncontended"],
    },
    Section {
        heading: "One hot lock",
        about: "All workers acquire and release the same lock: 64 in one process, and 8 in each of several \
                processes. Libraries that poll do not hand the lock over: the worker that has released it \
                acquires it again while the others sleep. Read this with the fairness below.",
        plot: Some(Drawing {
            file: "hot.svg",
            title: "One hot lock",
            unit: "acquisitions per second; more is better",
            lines: false,
            places: &[
                ("peers: hot lock, 1 process", "64 workers in one process"),
                ("peers: hot lock, 8 processes", "8 processes with 8 workers each"),
            ],
        }),
        workloads: &["peers: hot lock"],
    },
    Section {
        heading: "Fairness of the hot lock",
        about: "Acquisitions of the worker with the most, over those of the worker with the fewest acquisitions, in \
                the runs above: 1 is even, ∞ means that one worker had none. The same between processes.",
        plot: None,
        workloads: &["peers: fairness"],
    },
    Section {
        heading: "Handoff between two processes",
        about: "From the start of a release in one process until a waiter in another process has the lock. \
                Percentiles for which there are too few samples are left out: libraries that poll take long.",
        plot: Some(Drawing {
            file: "handoff.svg",
            title: "Handoff between two processes",
            unit: "microseconds; less is better",
            lines: false,
            places: &[
                ("peers: handoff p50", "p50"),
                ("peers: handoff p99", "p99"),
                ("peers: handoff p99.9", "p99.9"),
            ],
        }),
        workloads: &["peers: handoff"],
    },
    Section {
        heading: "A far process",
        about: "Eight processes with eight workers each on one hot lock. Traffic of the far process is delayed \
                by 1, 3 or 10 ms in each direction. Longest wait: the longest time in which a worker of the far one \
                did not get the lock, looked at every 10 ms for 3 s. Near ones: the acquisitions of the other seven \
                processes. While the far one has the lock, the others wait for its round trips.",
        plot: None,
        workloads: &["peers: far process"],
    },
    Section {
        heading: "Fair lock",
        about: "A lock that is granted in the order of arrival, with ever more waiters. Only Redisson has one, \
                too.",
        plot: Some(Drawing {
            file: "fair.svg",
            title: "Fair lock",
            unit: "handoffs per second over the number of workers; more is better",
            lines: true,
            places: &[("peers: fair lock", "")],
        }),
        workloads: &["peers: fair lock"],
    },
    Section {
        heading: "Readers and writers",
        about: "64 workers on one read/write lock; the shares are of reads and writes. Only Redisson has one, \
                too.",
        plot: Some(Drawing {
            file: "read_write.svg",
            title: "Readers and writers of one lock",
            unit: "operations per second; more is better",
            lines: false,
            places: &[
                ("peers: read/write 90:10", "90 % reads"),
                ("peers: read/write 50:50", "50 % reads"),
            ],
        }),
        workloads: &["peers: read/write"],
    },
    Section {
        heading: "Held locks",
        about: "One process holds many locks and does nothing else; the library renews them. A renewal is \
                missed when the key has less time left than it has after a renewal that was on time. rslock and \
                redsync do not renew; python-redis-lock has a thread per lock.",
        plot: None,
        workloads: &["peers: held locks"],
    },
    Section {
        heading: "Recovery after the holder is killed",
        about: "From SIGKILL until a waiter in another process has the lock, with a lease of 2 s; and how long \
                after the lease has expired that is.",
        plot: None,
        workloads: &["peers: recovery"],
    },
    Section {
        heading: "Time to connect",
        about: "From no client until it has its first lock, in a process that runs and has had clients before; \
                and from the start of a process.",
        plot: None,
        workloads: &["peers: connect"],
    },
    Section {
        heading: "Memory per waiter",
        about: "Resident memory that 1,000 waiters for one lock add to their process and to the server, each \
                divided by 1,000.",
        plot: Some(Drawing {
            file: "memory.svg",
            title: "Memory per waiter",
            unit: "bytes; less is better",
            lines: false,
            places: &[
                ("peers: memory per waiter", "in the client"),
                ("peers: server memory per waiter", "in the server"),
            ],
        }),
        workloads: &["peers: memory per waiter", "peers: server memory per waiter"],
    },
    Section {
        heading: "Waiting for a replica",
        about: "Uncontended pairs on a primary with one replica on the same machine. Redisson waits for the replica by \
                itself; lockkeeper does if configured.",
        plot: None,
        workloads: &["acknowledged"],
    },
    Section {
        heading: "A quorum of independent servers",
        about: "Three or five servers that know nothing of each other, of which a majority decides, all on this machine: \
                with the client there are more processes than cores. Each library asks every member for each acquire \
                and release, so a pair takes 2N requests, and a handoff of ours N. Leases are 3 s. Hot lock and \
                fairness are as above. “Members die”: from the death of two of five servers until the next grant that was \
                asked for afterwards, while a process acquires and releases one lock after the other. The servers are \
                killed, which ends their connections at once; of a machine that vanishes, a library learns by its \
                timeouts. Only lockkeeper keeps a restarted member from voting until all holds that it may have \
                forgotten have expired, and asks it by a script whether it has restarted.",
        plot: None,
        workloads: &["quorum: "],
    },
    Section {
        heading: "A cluster",
        about: "lockkeeper alone. Uncontended: pairs of one client on a cluster of three primaries, and on one server in \
                the same rounds, without waiting for replicas. Two cores carry the client and all nodes, so more \
                primaries bring no more throughput here; the ratio shows what routing to three nodes costs. Renewals: CPU \
                time of a client that holds locks in all slots and does nothing else, as a share of one core, and its \
                requests; every lock is renewed once in 10 s. Failover: three primaries with one replica each, and a \
                write counts when the replica has it. The replica of one shard is ordered to take over (`CLUSTER \
                FAILOVER`), while one task acquires and releases locks of that shard, with 1 ms between two. The time is \
                that from the moment at which the replica says that it is a primary, looked at every 1 ms, to the next \
                grant in that shard. The median of all failovers, and the worst. A primary that vanishes costs the node \
                timeout of the cluster in addition, which is not measured.",
        plot: None,
        workloads: &["cluster: "],
    },
    Section {
        heading: "Failover by sentinels",
        about: "lockkeeper alone. A primary with two replicas and three sentinels. A sentinel is ordered to fail over \
                (`SENTINEL FAILOVER`), while one task acquires and releases fenced locks, under a new name each time, with \
                1 ms between two; a write counts when a replica has it. The time is that from the first announcement of \
                any sentinel, as a subscriber receives it, to the first grant by the new primary. The median of all \
                failovers, and the worst. Two cores carry the client and all six servers. The failover is ordered: a \
                primary that vanishes costs the time in addition after which the sentinels take it for down, which is not \
                measured.",
        plot: None,
        workloads: &["failover: "],
    },
    Section {
        heading: "Ceiling and driver",
        about: "lockkeeper in the process of the benchmark, against a raw ceiling (a minimal client that does nothing \
                but pipeline the same commands, two batches in flight) and the `redis` crate, used plainly, with the \
                same commands. “of the first” is the ratio to the ceiling.",
        plot: Some(Drawing {
            file: "ceiling.svg",
            title: "Lock: ceiling, driver and lockkeeper",
            unit: "pairs per second over the number of tasks; more is better",
            lines: true,
            places: &[("lock uncontended", "")],
        }),
        workloads: &["lock uncontended", "mutex uncontended"],
    },
    Section {
        heading: "Handoffs in one process",
        about: "64 tasks of one client on one lock. The reference is a single raw task that acquires and releases with \
                nothing in its way: two round trips. A handoff to a local waiter takes one.",
        plot: None,
        workloads: &["hot lock"],
    },
    Section {
        heading: "Growth",
        about: "Timeouts: CPU time of each of many waiters whose wait limits pass at the same moment. Names held: \
                uncontended pairs on 64 other names while the same client holds and renews so many locks, each once in 10 s; \
                all turns together take as long.",
        plot: None,
        workloads: &["growth: "],
    },
    Section {
        heading: "Without a server",
        about: "The store in memory, one task: what is left is the library itself.",
        plot: None,
        workloads: &["memory store"],
    },
    Section {
        heading: "Command line",
        about: "Time that running `true` under a lock adds to running it: `lockkeeper run` and flock(1), which knows \
                one machine only.",
        plot: None,
        workloads: &["run adds to"],
    },
    Section {
        heading: "Counts",
        about: "Counts that do not depend on the speed of the machine: instructions (callgrind) and allocations of \
                the client per uncontended pair.",
        plot: None,
        workloads: &["instructions per pair", "allocations per pair"],
    },
];

pub(super) const METHOD: &str = "
## Method

- One redis-server, or those of a quorum or a cluster, without persistence on the same machine, over loopback TCP. Every
  library runs in a process of its own, lockkeeper too, and is driven over a pipe. A worker is a task (lockkeeper,
  rslock), a goroutine (redsync) or a thread (Redisson, python-redis-lock). lockkeeper and rslock have two threads
  for their tasks.
- The libraries take turns within each round, and every other round goes backwards, so that a slow minute hits
  all. A result is the median of the rounds; spread is (largest − smallest) / median; “of the first” is the
  median of the ratios within each round to the first library of that workload, in brackets the lowest and the
  highest of them. Where there is no spread, there was one measurement.
- A turn starts the workers, lets them settle, and counts in the middle. Five turns of 0.2 s each where nothing
  else is said; 0.8 s on a hot lock, and 1.2 s if several processes use it. Twenty failovers are ordered, one after
  the other.
- Redisson runs before it is measured, until its code is compiled. Each library has the settings that its
  documentation shows: the JVM and Redisson have their defaults, but for subscriptions per connection, which its
  documentation says to raise for many waiters; rslock and redsync have their default retries, and a call that
  gives up is made again; python-redis-lock renews only where renewal is measured, and its driver waits for
  answers without a limit, because a waiter waits in one for as long as the lease. Leases are 30 s where nothing
  else is said. lockkeeper and Redisson renew their locks in all workloads.
- Requests per operation are counted by `MONITOR` in a turn that is not timed. Commands inside a script do not
  count. CPU time is that of the processes, as the kernel and the server say.
- `cargo xtask bench --peers --docs docs/bench` measures all of this and writes this page; `rows.json` has every
  number, `machine.json` the versions. The programs are in `crates/bench`.
";

pub(super) const LIMITS: &str = "
## Limits

- The authors of lockkeeper wrote this benchmark and the programs that use the other libraries. Readers who know a
  library better are asked to correct `crates/bench/peers`.
- The libraries do not do the same. lockkeeper's `Lock` and Redisson's locks are reentrant, publish their release
  and are renewed. lockkeeper's `Mutex`, rslock, redsync and python-redis-lock keep a plain key. rslock and
  redsync are made for several independent servers and poll, with 200 ms and 50 to 250 ms between attempts by
  default: that decides every result with contention, and a user may choose other values.
- Client and server share the cores of one machine. A library that needs much CPU time, as Redisson does, loses
  more by that than one that needs little; with more cores it would come closer. There is no network: a round trip takes microseconds here
  and much longer in most places, which makes libraries with equal numbers of round trips more alike.
- One machine, one version of Redis. Machines like this one are noisy: a difference below the spread, or below
  10 %, is not a result.
- Memory is resident memory. A JVM takes memory in large steps and keeps it.
- CPU time of a client in a process of its own is rounded by the kernel to 10 ms per turn.
- Fairness is that of one turn. A library that grants few acquisitions per second cannot give each of 64 workers
  an equal share in that time.
";

/// The beginning of the page.
pub(super) fn head(runs: &[Value]) -> String {
    let text = "<!-- Made by `cargo xtask bench --page docs/bench` from rows.json and machine.json. Do not edit. -->\n\n\
         # lockkeeper beside other lock libraries\n\n";
    format!("{text}{}{}", warning(runs), mixture(runs))
}

/// That the results are of several runs; nothing if there was one.
fn mixture(runs: &[Value]) -> String {
    if runs.len() == 1 {
        return String::new();
    }
    let runs: Vec<_> = runs.iter().map(when).collect();
    format!(
        "The results are those of {} runs: {}. Each part of the results says in which of them it was measured. All \
         ratios and comparisons are within one run.\n\n",
        runs.len(),
        runs.join("; ")
    )
}

/// What to say of runs that are not results.
pub(super) fn warning(runs: &[Value]) -> String {
    let quick: Vec<_> = runs.iter().filter(|run| run["quick"] == true).map(names).collect();
    if quick.is_empty() {
        return String::new();
    }
    let what = if quick.len() == runs.len() { "This".into() } else { quick.join(", ") };
    format!(
        "**{what} was a quick run, which shows that the benchmark works. It is not a result.**\n\n"
    )
}

/// The workloads that a run has measured.
fn names(run: &Value) -> String {
    machine::workloads(run).map(quoted).collect::<Vec<_>>().join(", ")
}

/// When some rows were measured, and with which state of the code; nothing if there was one run.
pub(super) fn measured(runs: &[Value], rows: &[&PageRow]) -> String {
    let is_here = |workload: &machine::Measured<'_>| {
        workload.rows().any(|name| rows.iter().any(|row| row.workload == name))
    };
    let found = runs.iter().filter_map(|run| {
        let names: Vec<_> = machine::workloads(run).filter(is_here).map(quoted).collect();
        (!names.is_empty()).then(|| (names.join(", "), when(run)))
    });
    let found: Vec<_> = found.collect();
    match &found[..] {
        _ if runs.len() == 1 => String::new(),
        [] => String::new(),
        [(_, when)] => format!("\nMeasured {when}.\n"),
        several => {
            let several: Vec<_> =
                several.iter().map(|(names, when)| format!("{names} {when}")).collect();
            format!("\nMeasured in several runs: {}.\n", several.join("; "))
        }
    }
}

fn quoted(workload: machine::Measured<'_>) -> String {
    format!("“{}”", workload.name)
}

fn when(run: &Value) -> String {
    format!("on {} at commit {}", fact(run, "date"), fact(run, "commit"))
}

/// A fact about a run.
pub(super) fn fact(run: &Value, name: &str) -> String {
    match &run[name] {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".into(),
        other => other.to_string(),
    }
}

/// What the runs ran on.
pub(super) fn machine(runs: &[Value]) -> String {
    let mut text = String::from("\n## The machine and the versions\n");
    for run in runs {
        text += &machine_of(run, &runs[0], runs.len() > 1);
    }
    text
}

fn machine_of(run: &Value, first: &Value, is_one_of_many: bool) -> String {
    const SURROUNDINGS: [&str; 10] = [
        "cpu",
        "cores",
        "memory_gib",
        "system",
        "kernel",
        "redis",
        "rust",
        "flock",
        "valgrind",
        "libraries",
    ];
    let is_first = std::ptr::eq(run, first);
    let is_same = !is_first && SURROUNDINGS.iter().all(|name| run[name] == first[name]);
    let fact = |name: &str| fact(run, name);
    let mut text = match is_same {
        true => "\nThe same machine and versions.".into(),
        false => format!(
            "\n{}, {} cores, {} GiB; {}, {}; Redis {}; {}; {}; {}.",
            fact("cpu"),
            fact("cores"),
            fact("memory_gib"),
            fact("system"),
            fact("kernel"),
            fact("redis"),
            fact("rust"),
            fact("flock"),
            fact("valgrind"),
        ),
    };
    text += &format!(" Measured {}", when(run));
    // Workloads that were measured again are no longer part of the run.
    text += &match run["seconds"].as_f64() {
        Some(seconds) if seconds < 100.0 => format!(", in a run of {seconds:.0} s"),
        Some(seconds) => format!(", in a run of {:.0} minutes", seconds / 60.0),
        None => String::new(),
    };
    // Older results do not have them.
    if let (Some(rounds), Some(turn)) = (run["rounds"].as_u64(), run["turn_seconds"].as_f64()) {
        text += &format!(", {rounds} rounds with turns of {turn} s where nothing else is said");
    }
    text += &if is_one_of_many { format!(": {}.\n", names(run)) } else { ".\n".into() };
    let libraries = run["libraries"].as_object().filter(|_| !is_same);
    for (number, (name, version)) in libraries.into_iter().flatten().enumerate() {
        text += if number == 0 { "\n" } else { "" };
        text += &format!("- {name} {}\n", version.as_str().unwrap_or("unknown"));
    }
    for (workload, error) in run["failed"].as_object().into_iter().flatten() {
        let error = error.as_str().unwrap_or("unknown");
        text += &format!("\n“{workload}” failed and has no results of this run: {error}\n");
    }
    let busy = run["other_cores"].as_object().into_iter().flatten();
    let busy = busy.map(|(workload, cores)| format!("{cores} during “{workload}”"));
    let busy: Vec<_> = busy.collect();
    if !busy.is_empty() {
        text += &format!("\nCores that were busy with other processes: {}.\n", busy.join(", "));
    }
    text
}
