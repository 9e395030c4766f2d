//! A child process is read, written, paused, and gone.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use testkit::ChildProcess;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(10);
const NONE: [&str; 0] = [];

#[test]
fn lines_go_in_and_come_out() {
    let mut child = ChildProcess::spawn("cat", NONE);
    child.write_line("one");
    child.write_line("two");
    assert_eq!(child.next_line(LONG).as_deref(), Some("one"));
    assert_eq!(child.expect_line("tw"), "two");
    child.close_input();
    assert!(child.wait(LONG).unwrap().success());
    assert_eq!(child.next_line(LONG), None);
}

#[test]
fn a_paused_child_does_nothing_until_it_is_resumed() {
    let mut child = ChildProcess::spawn("cat", NONE);
    child.pause();
    child.write_line("hello");
    assert_eq!(child.next_line(SHORT), None);
    child.resume();
    assert_eq!(child.next_line(LONG).as_deref(), Some("hello"));
}

#[test]
fn a_killed_child_is_gone_even_if_it_was_paused() {
    let child = ChildProcess::spawn("cat", NONE);
    let pid = Pid::from_raw(child.pid().try_into().unwrap()).unwrap();
    child.pause();
    child.kill();
    assert_eq!(test_kill_process(pid), Err(Errno::SRCH));
}

#[test]
fn a_child_can_be_asked_to_end() {
    let mut child = ChildProcess::spawn("cat", NONE);
    assert!(child.wait(Duration::ZERO).is_none());
    child.terminate();
    assert!(!child.wait(LONG).unwrap().success());
}
