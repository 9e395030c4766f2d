//! Where the time goes, and why aims are missed. Figures of the rows are computed; the text has only counts that no
//! row has.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::plot::short;
use super::rows::{PageAim, PageRow, Rows};

/// A reason for which aims are missed.
struct Cause {
    heading: &'static str,
    /// Where the time goes.
    time: &'static str,
    /// Changes that would reach the aims.
    remedy: &'static str,
    /// How the names of the workloads begin, the aims, and the numbers of workers.
    aims: &'static [(&'static str, &'static str, RangeInclusive<u64>)],
}

/// Counted by function with callgrind, in which the kernel is not counted.
const INSTRUCTIONS: &[(&str, u32)] = &[
    ("lockkeeper", 7_300),
    ("tokio", 1_350),
    ("memcpy", 700),
    ("lockkeeper, the task of the connection", 590),
    ("the benchmark", 360),
    ("reads of the clock", 310),
    ("malloc and free", 180),
];

const ANY: RangeInclusive<u64> = 0..=u64::MAX;

/// The first that fits counts.
static CAUSES: &[Cause] = &[
    Cause {
        heading: "Few tasks",
        time: "Few requests are under way at once, so batches are small, and system calls and wake-ups of threads \
               dominate; the instructions above matter less. Where neither client nor server uses a whole core, they wait \
               for each other.",
        remedy: "fewer system calls and wake-ups per request, and batches that keep client and server busy at the same \
                 time with few requests. A lone caller writes by itself, others write batches of two or more, and the \
                 task of the connection waits once for more requests before it writes.",
        aims: &[
            ("peers: uncontended", "ratio to rslock", 0..=32),
            ("lock uncontended", "ratio to the driver", ANY),
            ("lock uncontended", "ratio to the raw ceiling", 0..=32),
            ("mutex uncontended", "ratio to the raw ceiling", 0..=32),
        ],
    },
    Cause {
        heading: "Work of the client per pair",
        time: "Most instructions of a pair are lockkeeper's own, as the table above shows. The raw ceiling has almost \
               none: it encodes its commands once and sends them again and again. Client and server share the cores, so \
               work of the client also takes time from the server.",
        remedy: "shorter paths in lockkeeper. Each pair enters the local queue of its name, registers a lease for renewal, \
                 encodes two requests, and undoes the first two.",
        aims: &[
            ("instructions per pair", "instructions", ANY),
            ("lock uncontended", "client CPU µs/pair", ANY),
            ("mutex uncontended", "client CPU µs/pair", ANY),
            ("mutex uncontended", "ratio to the raw ceiling", 64..=256),
        ],
    },
    Cause {
        heading: "The thread of the server",
        time: "The server executes all commands in one thread. With many tasks this thread is the limit, and the client \
               shares the cores with it.",
        remedy: "commands that cost the server less, or a machine on which clients and server do not share cores. Where \
                 the CPU time of the server per pair does not allow the aim, as computed below, a faster client alone \
                 cannot reach it.",
        aims: &[
            ("peers: uncontended", "ratio to rslock", ANY),
            ("peers: uncontended", "ratio to Redisson", ANY),
            ("lock uncontended", "ratio to the raw ceiling", ANY),
            ("mutex uncontended", "ratio to the raw ceiling", ANY),
        ],
    },
    Cause {
        heading: "One hot lock in one process",
        time: "The round trip to the server is the limit. Each acquisition takes about one request (below), and the next \
               one cannot be sent before it is answered: nothing can be sent in batches, and client and server wait for \
               each other.",
        remedy: "a shorter round trip. Fewer requests than one are not possible while the store decides who holds the \
                 lock. Ten times Redisson is out of reach on this machine.",
        aims: &[("peers: hot lock, 1 process", "ratio to Redisson", ANY)],
    },
    Cause {
        heading: "Contended `Mutex`",
        time: "`Mutex` and `Lock` are handed off in one request each. After 64 handoffs or 10 ms a client releases the lock \
               for others. The release of a `Lock` tells whether another client listens. That of a `Mutex` does not, so \
               the client pauses for 1 ms in case another one waits, in at most one of sixteen milliseconds.",
        remedy: "a release of a `Mutex` that tells whether another client listens.",
        aims: &[("hot lock", "ratio to Lock", ANY)],
    },
    Cause {
        heading: "Shares of processes",
        time: "The store has no queue for `Lock` and `Mutex`. A process keeps the lock for up to 64 handoffs or 10 ms, \
               releases it for all and subscribes again, so that the server notifies it after the others. Which process \
               runs first then depends on the machine, which has more processes than cores. A round of about a second \
               has few turns, and rounds differ widely. The cause of single rounds that are far off is not known.",
        remedy: "a queue in the store, as that of `FairLock`, which takes more requests per acquisition.",
        aims: &[("peers: fairness between", "max/min", ANY)],
    },
    Cause {
        heading: "A far process",
        time: "The request of a far process arrives a round trip after the message that the lock is free. Near \
               processes leave pauses for it, of 1 to 64 ms, in at most a quarter of their time; a pause that is shorter \
               than the round trip does not help it. When the far process has the lock, each handoff to another of its \
               workers takes a round trip, and it releases the lock for all after 10 ms: far workers get one or few \
               acquisitions per turn.",
        remedy: "longer turns for a process with a long round trip, which the near ones would pay for; or a `FairLock`.",
        aims: &[("peers: far process, longest wait", "s", ANY)],
    },
    Cause {
        heading: "Handoff between processes",
        time: "Both wait for the same messages of the server. The raw subscriber blocks in its socket and sends the next \
               request from the same thread. In lockkeeper, the task of the subscription reads the message and wakes up \
               the waiting task, which sends the request and is woken up again by the task of the connection.",
        remedy: "fewer wake-ups of threads between the message and the request.",
        aims: &[("peers: handoff", "ratio to the raw subscriber", ANY)],
    },
    Cause {
        heading: "Fair lock",
        time: "A handoff takes about three requests (below): the holder releases, the next waiter acquires, and the \
               former holder queues again. The second waits for the message of the first, so client and server wait for \
               each other, and every request is a script that keeps the queue.",
        remedy: "a release that grants the lock to the next waiter in the store, so that a handoff takes fewer requests.",
        aims: &[("peers: fair lock", "ratio to Redisson", ANY)],
    },
    Cause {
        heading: "Many held locks",
        time: "Each lock is renewed once in 10 s, so a million of them take 100,000 renewals per second beside the pairs, on \
               the same thread of the server and the same cores. The raw ceiling, which holds no locks, is measured in the \
               same rounds (“Growth”): what it loses is not lost in lockkeeper.",
        remedy: "renewals that cost the server less, or longer leases.",
        aims: &[("growth: ", "ratio to 1 name", ANY)],
    },
    Cause {
        heading: "Store in memory",
        time: "A pair takes about 6,000 instructions and reads the clock eight times, at about 45 ns each. There is no \
               server.",
        remedy: "fewer reads of the clock per pair, and the shorter paths that a pair on a server needs, too.",
        aims: &[("memory store", "pairs/s", ANY)],
    },
];

/// The part of the page.
pub(super) fn section(rows: &Rows) -> String {
    let mut text = String::from(
        "\n## Where the time goes\n\nInstructions of the client per uncontended pair of a `Lock`, with 64 tasks, counted \
         by function with callgrind in a run of their own, without the kernel. The code may have changed \
         since: “Counts” has the sum at the measured commit.\n\n| part | instructions |\n|---|--:|\n",
    );
    for (part, count) in INSTRUCTIONS {
        let _ = writeln!(text, "| {part} | {count} |");
    }
    let missed: Vec<_> = rows.aims().filter(|(_, aim)| !aim.reached()).collect();
    if missed.is_empty() {
        return text;
    }
    text +=
        "\nAims that are missed, by how much, and why. In brackets: lowest and highest round.\n";
    for cause in CAUSES {
        let is_its = |(row, aim): &&(&PageRow, &PageAim)| {
            cause_of(row, aim).is_some_and(|found| std::ptr::eq(found, cause))
        };
        let lines: String = missed.iter().filter(is_its).map(|(row, aim)| line(row, aim)).collect();
        if !lines.is_empty() {
            let Cause { heading, time, remedy, .. } = cause;
            let _ = write!(text, "\n**{heading}.** {time} To reach it: {remedy}\n\n{lines}");
        }
    }
    let unknown = missed.iter().filter(|(row, aim)| cause_of(row, aim).is_none());
    let lines: String = unknown.map(|(row, aim)| line(row, aim)).collect();
    if !lines.is_empty() {
        let _ = write!(text, "\n**Other.** The causes are not known yet.\n\n{lines}");
    }
    text
}

fn cause_of(row: &PageRow, aim: &PageAim) -> Option<&'static Cause> {
    CAUSES.iter().find(|cause| {
        cause.aims.iter().any(|(workload, what, workers)| {
            row.workload.starts_with(workload)
                && aim.what == *what
                && workers.contains(&row.workers)
        })
    })
}

/// A missed aim.
fn line(row: &PageRow, aim: &PageAim) -> String {
    let workers = if row.workers == 1 { "worker" } else { "workers" };
    // Most aims are ratios; the others are results, and named like their units.
    let measured = match aim.what == row.unit {
        true => format!("{} {}", aim.measured(), aim.what),
        false => format!("{} {}", aim.what, aim.measured()),
    };
    let mut text = format!(
        "- {}, {}, {} {workers}: {measured} instead of {}, {}.",
        row.title(),
        row.contender,
        row.workers,
        aim.bound(),
        distance(aim),
    );
    if let Some(calls) = row.calls {
        let _ = write!(text, " {} requests per operation.", short(calls));
    }
    if row.unit.ends_with("/s") {
        text += &cores(row);
        text += &out_of_reach(row, aim);
    }
    text.push('\n');
    text
}

/// Between the result and the aim.
fn distance(aim: &PageAim) -> String {
    let Some(range) = aim.range() else { return "without limit".into() };
    let share = (range.median / aim.bound - 1.0).abs() * 100.0;
    let share = if share < 1.0 { "less than 1".into() } else { format!("{share:.0}") };
    let (side, some_reach) = match aim.at_least {
        true => ("below", range.high >= aim.bound),
        false => ("above", range.low <= aim.bound),
    };
    format!("{share} % {side}{}", if some_reach { "; some rounds reach it" } else { "" })
}

/// Cores that are busy at the measured rate.
fn cores(row: &PageRow) -> String {
    let Some(rate) = row.median else { return String::new() };
    let share = |spent: f64| short(spent * rate / 1e6);
    match (row.client_cpu, row.server_cpu) {
        (Some(client), Some(server)) => {
            format!(" The client uses {} of a core, the server {}.", share(client), share(server))
        }
        (Some(client), None) => format!(" The client uses {} of a core.", share(client)),
        _ => String::new(),
    }
}

/// The rate that a ratio to a peer asks for, if the thread of the server cannot do it. Elsewhere the server may be
/// busy with more than the operations.
fn out_of_reach(row: &PageRow, aim: &PageAim) -> String {
    let is_to_peer = row.workload.starts_with("peers: ") && aim.what.starts_with("ratio");
    let ratio = aim.range().filter(|_| aim.at_least && is_to_peer);
    let (Some(ratio), Some(rate), Some(spent)) = (ratio, row.median, row.server_cpu) else {
        return String::new();
    };
    let (needed, limit) = (rate * aim.bound / ratio.median, 1e6 / spent);
    if needed <= limit {
        return String::new();
    }
    format!(
        " The aim is {} {} here; at this CPU time per operation the thread of the server does at most {}.",
        short(needed),
        row.unit,
        short(limit)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(workload: &str, workers: u64, what: &str, values: &[f64], bound: f64) -> Value {
        json!({
            "workload": workload, "contender": "lockkeeper Lock", "workers": workers, "median": 1000.0,
            "unit": "pairs/s", "values": [1000.0], "server_calls_per_op": 2.0,
            "client_cpu_us_per_op": 200.0, "server_cpu_us_per_op": 500.0,
            "aims": [{"what": what, "values": values, "bound": bound, "at_least": true}],
        })
    }

    fn section_of(rows: &[Value]) -> String {
        section(&Rows::parse(&json!(rows)).unwrap())
    }

    #[test]
    fn a_missed_aim_says_by_how_much_and_why() {
        let text = section_of(&[
            row("peers: uncontended", 64, "ratio to Redisson", &[5.0], 15.0),
            row("peers: uncontended", 16, "ratio to rslock", &[0.9, 1.3, 1.0], 1.2),
            row("new", 1, "ratio to rslock", &[0.999], 1.0),
            row("memory store", 1, "pairs/s", &[3.0], 2.0),
        ]);
        let expected = "ratio to Redisson 5 instead of ≥ 15, 67 % below. 2 requests per operation. The client uses \
                        0.20 of a core, the server 0.50. The aim is 3000 pairs/s here; at this CPU time per \
                        operation the thread of the server does at most 2000.\n";
        let server = text.split("**The thread of the server.**").nth(1).unwrap();
        assert!(server.contains(expected), "{text}");
        let few = text.split("**Few tasks.**").nth(1).unwrap().split("**").next().unwrap();
        let expected = "1 (0.90 to 1.30) instead of ≥ 1.20, 17 % below; some rounds reach it.";
        assert!(few.contains(expected), "{text}");
        assert!(!few.contains("The aim is"), "the server can do it: {text}");
        let other = text.split("**Other.**").nth(1).unwrap();
        assert!(other.contains("less than 1 % below."), "{text}");
        assert!(!text.contains("memory store"), "it is reached: {text}");
    }

    #[test]
    fn without_missed_aims_there_are_only_counts() {
        let text = section_of(&[row("memory store", 1, "pairs/s", &[3.0], 2.0)]);
        assert!(text.contains("| tokio | 1350 |") && !text.contains("**"), "{text}");
    }
}
