//! A program ends: whatever its `main` dropped is released.

use std::env;
use std::io::stdin;
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::ClientOptions;
use lockkeeper::blocking::{self, Wait};
use testkit::{ChildProcess, RedisServer, Stopwatch};

use crate::lockfile::LockFile;
use crate::{PATIENCE, PROGRAM, Test};

pub(crate) const TESTS: &[Test] = &[
    ("exit::a_program_that_drops_guard_and_client_leaves_the_lock_free", leaves_it_free),
    ("exit::an_exit_waits_for_one_response_timeout_at_most", waits_for_one_response_timeout),
];

const URL: &str = "LOCKKEEPER_TEST_URL";
const RESPONSE: Duration = Duration::from_secs(3);

/// The programs, each a `main` that holds a lock when it says so and ends with the next line of its
/// input.
pub(crate) fn program(name: &str) {
    let url = env::var(URL).expect("a program is told its store");
    let options = ClientOptions::new().response_timeout(RESPONSE);
    let client = blocking::connect_with(&url, options).expect("the store is there");
    let guard = client.lock("it").lock().wait().expect("it is free");
    println!("held");
    stdin().read_line(&mut String::new()).expect("it is told to end");
    match name {
        "guard first" => drop((guard, client)),
        "client first" => drop((client, guard)),
        "panics" => {
            std::panic::set_hook(Box::new(|_| {}));
            panic!("as it is meant to");
        }
        "in a task" => tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime without anything")
            .block_on(async { drop((guard, client)) }),
        "shut down" => client.shutdown().wait(),
        _ => unreachable!("no such program"),
    }
}

fn start(program: &str, url: &str) -> ChildProcess {
    let mut command = Command::new(env::current_exe().expect("the path of this program is known"));
    command.env(PROGRAM, program).env(URL, url);
    let child = ChildProcess::from_command(command);
    child.expect_line("held");
    child
}

/// Ends it; answers how long that took.
fn end(mut child: ChildProcess) -> Duration {
    let begun = Instant::now();
    child.write_line("");
    child.wait(PATIENCE).expect("it ends");
    begun.elapsed()
}

fn leaves_it_free() {
    let (server, file) = (RedisServer::start(), LockFile::new());
    for url in [server.url(), file.url()] {
        let observer = blocking::connect(&url).expect("the store is there").lock("it");
        let held = |program: &&&str| {
            let child = start(program, &url);
            assert!(observer.is_locked().wait().expect("the store answers"));
            end(child);
            observer.is_locked().wait().expect("the store answers")
        };
        let programs = ["guard first", "client first", "panics", "in a task", "shut down"];
        let runs = programs.iter().cycle().take(20);
        let left: Vec<_> = runs
            .clone()
            .filter(|program| {
                let held = held(program);
                if held {
                    observer.force_unlock("").wait().expect("the store answers");
                }
                held
            })
            .collect();
        assert!(left.is_empty(), "still held on {url} after {left:?}");
    }
}

fn waits_for_one_response_timeout() {
    let server = RedisServer::start();
    let child = start("guard first", &server.url());
    server.pause();
    let watch = Stopwatch::start();
    let took = end(child);
    let awake = watch.elapsed();
    server.resume();
    assert!(took >= RESPONSE / 2, "it did not wait: {took:?}");
    assert!(awake < RESPONSE * 2, "{took:?}");
}
