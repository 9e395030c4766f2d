//! A process of ours that is killed while it holds something, or waits for it.

use std::env;
use std::future::pending;
use std::process::Command;
use std::time::Duration;

use lockkeeper::{AnyLock, Client, ClientOptions};
use testkit::{ChildProcess, RedisServer};

use crate::support::ms;

/// What such a process is to do: `URL KIND MS NAME`.
const TASK: &str = "LOCKKEEPER_INTEROP_KILLED_PROCESS";

/// Asks for `name` with a lease; says `held` when it has it. Kill it with `kill()`.
pub(crate) fn killed_process(
    server: &RedisServer,
    kind: &str,
    lease: Duration,
    name: &str,
) -> ChildProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "killed_process::holds_until_it_is_killed", "--nocapture"]);
    command.env(TASK, format!("{} {kind} {} {name}", server.url(), lease.as_millis()));
    ChildProcess::from_command(command)
}

/// Does nothing unless [`killed_process`] has started it.
#[tokio::test]
async fn holds_until_it_is_killed() {
    let Ok(task) = env::var(TASK) else { return };
    let [url, kind, lease, name] = *task.splitn(4, ' ').collect::<Vec<_>>() else {
        panic!("no task: {task}");
    };
    let lease = ms(lease.parse().unwrap());
    let options = ClientOptions::new().watchdog_timeout(lease);
    let client = Client::connect_with(url, options).await.unwrap();
    if kind == "semaphore" {
        let _permit = client.semaphore(name).acquire(1).await.unwrap();
        println!("\nheld");
        return pending().await;
    }
    let lock: AnyLock = match kind {
        "fair" => client.fair_lock(name).into(),
        "read" => client.rw_lock(name).reader(),
        _ => panic!("unknown: {kind}"),
    };
    let guard = lock.lease(lease).lock().await.unwrap();
    println!("\nheld {}", guard.owner_id());
    pending().await
}
