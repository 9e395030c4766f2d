//! The examples run, on the embedded store and on a server, and say what they are meant to show.

use std::path::PathBuf;
use std::process::Command;

use testkit::RedisServer;

/// Where cargo has put an example when it built this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.ancestors().nth(2).expect("it is in target/<profile>/deps");
    folder.join("examples").join(name)
}

/// What an example prints on its way to a good end.
fn run(name: &str, url: Option<&str>) -> String {
    let output = Command::new(example(name)).args(url).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{text}{errors}", output.status);
    text
}

/// Runs an example on both stores; each line of `shows` must be a line of what it prints.
fn check(name: &str, shows: &[&str]) {
    let server = RedisServer::start();
    for url in [None, Some(server.url())] {
        let text = run(name, url.as_deref());
        for line in shows {
            assert!(text.lines().any(|found| found == *line), "{name} on {url:?}:\n{text}");
        }
    }
}

#[test]
fn fair() {
    let order = |text: String| {
        let served = text.lines().filter_map(|line| line.strip_suffix(" is served"));
        served.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = ["customer 1", "customer 2", "customer 4", "customer 5"];
    assert_eq!(order(run("fair", None)), expected);
    let server = RedisServer::start();
    assert_eq!(order(run("fair", Some(&server.url()))), expected);
}

#[test]
fn rw() {
    check(
        "rw",
        &[
            "two read at once: true",
            "nobody may write meanwhile: true",
            "the only reader may write: true",
            "a writer that reads on lets others read: true",
        ],
    );
}

#[test]
fn fenced() {
    check(
        "fenced",
        &[
            "the next holder has a greater one: true",
            "its write is admitted: true",
            "the stale write is refused: somebody newer was here",
        ],
    );
}

#[test]
fn spin() {
    check("spin", &["the second one is seated"]);
}

#[test]
fn multi() {
    check("multi", &["300 transfers later there is 300 in all"]);
}

#[test]
fn semaphore() {
    check("semaphore", &["never more than three at once: true", "all permits are back: true"]);
}

#[test]
fn permits() {
    check("permits", &["both are taken: true", "free: 2 of 2"]);
}

#[test]
fn latch() {
    check("latch", &["the server opens"]);
}

/// It checks its claims by itself.
#[test]
fn tour() {
    let text = run("tour", None);
    for act in ["Contention", "Queue", "Crash", "Loss", "Fencing"] {
        assert!(text.contains(act), "{text}");
    }
    assert_eq!(text.matches('✓').count(), 9, "{text}");
}
