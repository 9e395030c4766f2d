//! The number of requests of waiters and of an acquire.

use lockkeeper::{Client, LockGuard};
use tokio::task::JoinHandle;

use super::support::*;

/// Calls of scripts, and of commands that only our scripts use: what they do inside.
fn scripts(rig: &Rig) -> (u64, u64) {
    let info = rig.cmd(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = info.text().lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let mut pairs = line.split(',');
        pairs.find_map(|pair| pair.strip_prefix("calls=")?.parse::<u64>().ok()).unwrap_or(0)
    };
    let inside = ["hset", "hdel", "lindex", "lpop", "zscore", "zrem", "zincrby", "zadd"];
    let inside = inside.iter().map(|name| calls(&format!("cmdstat_{name}:"))).sum();
    (calls("cmdstat_evalsha:"), inside)
}

/// Java asks again at once, as long as the lock is free and the head does not come (WIRE Q4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_behind_a_slow_redisson_head_do_not_poll_in_a_tight_loop() {
    let rig = Rig::new("a");
    let java = Java::new(&rig, 1, WAIT);
    java.place(rig.now() + WAIT);
    let (one, two) = (rig.lock().await, rig.lock().await);
    let mut tasks = Vec::new();
    for number in 0..20 {
        tasks.push(rig.waiter(if number % 2 == 0 { &one } else { &two }).await.1);
    }
    let (watch, (before, _)) = (Stopwatch::start(), scripts(&rig));
    // Each looks again after 2.5 to 5 s, and each client speaks for its waiters every 0.8 s.
    eventually(PATIENCE, "time passes", || watch.elapsed() > ms(3_000)).await;
    let asked = scripts(&rig).0 - before;
    assert!((4..60).contains(&asked) || watch.stalled(), "{asked} scripts in 3 s");
    assert_eq!(rig.queue().len(), 21);
    assert!(java.take());
    java.unlock();
    for task in tasks {
        within(SOON, "its turn", task).await.release().await.unwrap();
    }
    assert_eq!(rig.keys(), [""; 0]);
}

/// A queue of waiters.
struct Line {
    rig: Rig,
    clients: Vec<Client>,
    tasks: Vec<JoinHandle<LockGuard>>,
    guard: Option<LockGuard>,
}

impl Line {
    async fn of(count: usize) -> Self {
        let rig = Rig::new("a");
        let guard = Some(rig.held().await);
        let client = rig.client().await;
        let mut tasks = Vec::new();
        for _ in 0..count {
            let lock = client.fair_lock(&rig.name);
            tasks.push(tokio::spawn(async move { lock.lease(LONG).lock().await.unwrap() }));
        }
        eventually(PATIENCE, "all wait", || rig.queue().len() == count).await;
        let last = || rig.queue().iter().all(|id| rig.listeners(&rig.channel_of(id)) == 1);
        eventually(PATIENCE, "all listen", last).await;
        Self { rig, clients: vec![client], tasks, guard }
    }

    /// Calls, and commands inside them, for each of so many takes, which are done as fast as possible. Whoever takes
    /// lines up again, so that the line stays as long as it is.
    async fn takes(&mut self, count: usize) -> (f64, f64) {
        let mut again = Vec::new();
        let (calls, inside) = scripts(&self.rig);
        for _ in 0..count {
            self.guard.take().expect("somebody holds it").release().await.unwrap();
            let next = || self.tasks.iter().position(|task| task.is_finished());
            let watch = Stopwatch::start();
            let next = loop {
                match next() {
                    Some(next) => break next,
                    None => assert!(watch.elapsed() < SOON, "nobody has taken it"),
                }
                tokio::task::yield_now().await;
            };
            self.guard = Some(self.tasks.swap_remove(next).await.unwrap());
            again.push(());
        }
        let (calls, inside) = (scripts(&self.rig).0 - calls, scripts(&self.rig).1 - inside);
        for () in again {
            let lock = self.clients[0].fair_lock(&self.rig.name);
            self.tasks.push(tokio::spawn(async move { lock.lease(LONG).lock().await.unwrap() }));
        }
        let length = self.tasks.len();
        eventually(PATIENCE, "all wait again", || self.rig.queue().len() == length).await;
        (calls as f64 / count as f64, inside as f64 / count as f64)
    }

    /// The cheapest of several measurements: the others had keep-alives and re-checks in between.
    async fn cheapest(&mut self) -> (f64, f64) {
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..12 {
            let (calls, inside) = self.takes(5).await;
            best = (best.0.min(calls), best.1.min(inside));
        }
        best
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_costs_the_same_for_any_queue_length() {
    let mut costs = Vec::new();
    for count in [10, 100, 1_000] {
        let mut cost = (f64::MAX, f64::MAX);
        // Before long all of a line look by themselves. A machine that is slow to set it up measures that,
        // and has to try again.
        for _ in 0..5 {
            let (calls, inside) = Line::of(count).await.cheapest().await;
            cost = (cost.0.min(calls), cost.1.min(inside));
            if cost.0 <= 2.0 {
                break;
            }
        }
        costs.push((count, cost));
    }
    let (_, (_, inside)) = costs[0];
    for (count, cost) in &costs {
        assert_eq!(cost.0, 2.0, "a release and a take, with {count} waiting: {costs:?}");
        assert_eq!(cost.1, inside, "with {count} waiting: {costs:?}");
    }
}
