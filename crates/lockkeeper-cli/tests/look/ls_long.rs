//! Long lists.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Duration;

use testkit::FaultProxy;

use crate::schema;
use crate::support::{Completed, Stand, eventually};

/// Creates many locks by a script on the server.
fn make(stand: &Stand, count: u32) {
    let script = "for i = 1, ARGV[2] do \
                    redis.call('HSET', 'job:' .. i, ARGV[1] .. ':' .. i, 1) \
                    redis.call('PEXPIRE', 'job:' .. i, 600000) \
                  end";
    let mut redis = stand.server().connection();
    redis.cmd(&["EVAL", script, "0", crate::support::JAVA_CLIENT, &count.to_string()]).ok();
}

/// Its peak memory so far, in kilobytes.
fn peak(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it is alive");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_long_list_contains_each_lock_once() {
    let stand = Stand::redis();
    make(&stand, 2_500);
    let document = stand.run(["ls", "--json"]).document("ls");
    let names: Vec<_> = document["locks"].as_array().unwrap().iter().map(|l| &l["name"]).collect();
    let different: HashSet<_> = names.iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!((names.len(), different.len()), (2_500, 2_500));
    assert_eq!(document["complete"], true);

    let table = stand.run(["ls"]).ok();
    let names: HashSet<_> = table.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!((table.lines().count(), names.len()), (2_501, 2_501));
}

#[test]
fn memory_does_not_grow_with_the_list() {
    let stand = Stand::redis();
    make(&stand, 60_000);
    let mut child = stand.command(["ls"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The pipe is smaller than the rest, so the binary waits for the reader.
    assert_eq!(lines.by_ref().take(5_000).count(), 5_000);
    let early = peak(&child);
    assert_eq!(lines.by_ref().take(50_000).count(), 50_000);
    let late = peak(&child);
    assert_eq!(lines.count(), 5_001);
    assert!(child.wait().unwrap().success());
    assert!(late < early + 2_000, "{early} kB after 5 000 locks, {late} kB after 55 000");
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let stand = Stand::redis();
    make(&stand, 5_000);
    for args in [&["ls"][..], &["ls", "--json"]] {
        let mut child =
            stand.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        drop(output);
        let ran = Completed::from(child.wait_with_output().unwrap());
        assert_eq!((ran.code, &ran.err[..]), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn an_interrupted_list_is_reported_and_well_formed() {
    let stand = Stand::redis();
    make(&stand, 20_000);
    let mut command = stand.command(["ls", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    // The list has started, and cannot end before the rest is read.
    output.read_line(&mut text).unwrap();
    stand.server().kill();
    output.read_to_string(&mut text).unwrap();
    let ran = Completed::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(69), "{ran:?}");
    assert!(ran.err.contains("unreachable"), "{ran:?}");
    let document = schema::checked("ls", &text);
    assert_eq!(document["complete"], false);
    let seen = document["locks"].as_array().unwrap().len();
    assert!((1..20_000).contains(&seen), "{seen}");
}

#[test]
fn a_list_interrupted_before_the_first_output_prints_its_rows() {
    let stand = Stand::redis();
    make(&stand, 100);
    let script = "for i = 1, 3000 do redis.call('SET', 'data:' .. i, 'x') end";
    stand.server().cli(&["EVAL", script, "0"]).ok();
    let proxy = FaultProxy::start_blocking(stand.server().port());
    // Enough time to act between a request and its answer.
    proxy.delay(Duration::from_millis(200));
    let first_page = proxy.expect_request(b"NUMSUB");
    let mut command = stand.command(["ls", "--json", "--url", &proxy.url()]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the end of the first page", || (first_page.count() > 0).then_some(()));
    let second_page = proxy.expect_request(b"SCAN");
    eventually("the second page", || (second_page.count() > 0).then_some(()));
    proxy.refuse(true);
    proxy.cut();
    let ran = Completed::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(69), "{ran:?}");
    let document = schema::checked("ls", &ran.out);
    assert_eq!(document["complete"], false);
    let seen = document["locks"].as_array().unwrap().len();
    assert!((1..100).contains(&seen), "{seen}");
}
