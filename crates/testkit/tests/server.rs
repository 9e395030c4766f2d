//! A server starts, answers, pauses, restarts and is gone.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, io};

use common::{eventually, is_open};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use testkit::{ChildProcess, RedisServer, Reply};

/// Set in a process that is to keep its server until it is killed.
const KEEP: &str = "TESTKIT_KEEP_SERVER";

/// Sends a line to a port and returns the first line of the answer.
fn ask(port: u16, line: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

fn process_is_gone(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    test_kill_process(pid) == Err(Errno::SRCH)
}

#[test]
fn a_started_server_answers_on_its_port() {
    let server = RedisServer::start();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(ask(server.port(), "PING", Duration::from_secs(5)).unwrap(), "+PONG");
    assert_eq!(server.info_field("server", "process_id"), server.pid().to_string());
    if env::var_os(KEEP).is_some() {
        println!("\nport {}", server.port());
        io::stdin().read_line(&mut String::new()).unwrap();
    }
}

#[test]
fn a_dropped_server_leaves_neither_process_nor_files_even_if_paused() {
    let server = RedisServer::start();
    let pid = server.pid();
    let directory = server.cli(&["CONFIG", "GET", "dir"]).array()[1].text().to_owned();
    assert!(Path::new(&directory).exists());
    server.pause();
    drop(server);
    assert!(process_is_gone(pid));
    assert!(!Path::new(&directory).exists());
}

#[test]
fn a_server_does_not_survive_a_test_process_that_is_killed() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_started_server_answers_on_its_port", "--nocapture"]);
    command.env(KEEP, "1");
    let child = ChildProcess::from_command(command);
    let line = child.expect_line("port ");
    let port: u16 = line.trim_start_matches("port ").parse().unwrap();
    assert!(is_open(port));
    child.kill();
    eventually("the orphan is killed", || !is_open(port));
}

#[test]
fn a_missing_redis_server_is_a_failure_that_says_how_to_get_it() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_started_server_answers_on_its_port", "--nocapture"]);
    let output = command.env("PATH", "/nonexistent").output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("run `cargo xtask test`, which installs it"), "{message}");
}

#[test]
fn a_paused_server_keeps_silent_until_it_is_resumed() {
    let server = RedisServer::start();
    server.pause();
    let silence = ask(server.port(), "PING", Duration::from_millis(50)).unwrap_err();
    assert_eq!(silence.kind(), io::ErrorKind::WouldBlock);
    server.resume();
    assert_eq!(ask(server.port(), "PING", Duration::from_secs(5)).unwrap(), "+PONG");
}

#[test]
fn a_killed_server_comes_back_empty_on_the_same_port() {
    let server = RedisServer::start();
    let (pid, port) = (server.pid(), server.port());
    server.cli(&["SET", "key", "value"]).ok();
    server.cli(&["SAVE"]).ok();
    server.kill();
    assert!(process_is_gone(pid));
    assert!(!is_open(port));
    server.restart();
    assert_eq!(server.port(), port);
    assert!(server.cli(&["GET", "key"]).is_nil());
    assert_eq!(ask(port, "PING", Duration::from_secs(5)).unwrap(), "+PONG");
}

#[test]
fn a_persistent_server_keeps_all_over_a_restart_and_the_last_dump_over_a_kill() {
    let server = RedisServer::builder().persistent(true).start();
    server.cli(&["SET", "key", "old"]).ok();
    server.restart();
    assert_eq!(server.cli(&["GET", "key"]).text(), "old");
    server.cli(&["SET", "key", "new"]).ok();
    server.kill();
    server.restart();
    assert_eq!(server.cli(&["GET", "key"]).text(), "old");
}

#[test]
fn a_password_is_required_and_part_of_the_url() {
    let server = RedisServer::builder().password("pa:s/s").start();
    assert_eq!(server.url(), format!("redis://:pa%3As%2Fs@127.0.0.1:{}", server.port()));
    let refusal = ask(server.port(), "GET key", Duration::from_secs(5)).unwrap();
    assert!(refusal.starts_with("-NOAUTH"), "{refusal}");
    assert_eq!(server.cli(&["GET", "key"]), Reply::Nil);
    assert!(server.url_with("user", "x").contains("//user:x@"));
}

#[test]
fn a_unix_server_has_a_socket_and_no_port() {
    let server = RedisServer::builder().unix_socket().start();
    let url = server.url();
    let path = url.strip_prefix("redis+unix://").unwrap();
    std::os::unix::net::UnixStream::connect(path).unwrap();
    assert_eq!(server.cli(&["CONFIG", "GET", "port"]).array()[1].int(), 0);
}

#[test]
fn extra_arguments_reach_the_server() {
    let server = RedisServer::builder().arg("--maxmemory", "7mb").start();
    assert_eq!(server.info_field("memory", "maxmemory"), (7 << 20).to_string());
}

#[test]
#[should_panic(expected = "the port is taken")]
fn a_given_port_is_not_replaced_by_another() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    RedisServer::builder().port(taken.local_addr().unwrap().port()).start();
}

#[test]
#[should_panic(expected = "no-such-option")]
fn a_refused_option_is_reported_in_the_servers_own_words() {
    RedisServer::builder().arg("--no-such-option", "1").start();
}

#[test]
fn calls_are_counted_by_command() {
    let server = RedisServer::start();
    assert_eq!(server.commandstats("get"), 0);
    let mut cli = server.connection();
    assert!(cli.cmd(&["GET", "a"]).is_nil());
    assert!(cli.cmd(&["GET", "b"]).is_nil());
    assert_eq!(server.commandstats("get"), 2);
}

#[test]
fn replies_keep_their_kind() {
    let server = RedisServer::start();
    assert_eq!(server.cli(&["INCR", "n"]).int(), 1);
    assert_eq!(server.cli(&["GET", "n"]).int(), 1);
    assert_eq!(server.cli(&[b"SET".as_slice(), b"b", b"\r\n\0\xff"]).text(), "OK");
    assert_eq!(server.cli(&["GET", "b"]), Reply::Bulk(b"\r\n\0\xff".to_vec()));
    assert!(server.cli(&["LPUSH", "n", "x"]).error().starts_with("WRONGTYPE"));
    assert_eq!(server.cli(&["EVAL", "return {1, {'a'}}", "0"]).array()[1].array()[0].text(), "a");
}

#[test]
fn a_subscriber_receives_what_is_published_after_it_subscribed() {
    let server = RedisServer::start();
    let mut subscriber = server.connection();
    subscriber.subscribe(&["one", "two"]);
    assert_eq!(subscriber.next_message(Duration::from_millis(10)), None);
    assert_eq!(server.cli(&["PUBLISH", "two", "hello"]).int(), 1);
    let message = subscriber.next_message(Duration::from_secs(5));
    assert_eq!(message, Some(("two".to_owned(), b"hello".to_vec())));
}
