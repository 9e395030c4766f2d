//! Text from a store is untrusted: no subcommand prints its control or bidirectional characters.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::schema;
use crate::support::{JAVA_CLIENT, Stand, eventually};
use crate::terminal::Terminal;

/// An escape sequence, a bell, a C1 sequence, a line break, bidirectional and hidden characters, a NUL.
const EVIL: &[u8] =
    "e\u{1b}[31m\u{7}\u{9b}2J\r\nlockkeeper: \u{202e}\u{2066}\u{200b}\u{7f}\0vil".as_bytes();

/// The same with bytes that are not UTF-8.
fn evil() -> Vec<u8> {
    [EVIL, b"\xff\xc3"].concat()
}

/// The same without the NUL, which no argument can contain.
fn evil_name() -> Vec<u8> {
    evil().into_iter().filter(|byte| *byte != 0).collect()
}

/// Asserts that the output is safe for a terminal.
#[track_caller]
fn assert_escaped(what: &str, printed: &[u8]) -> String {
    let text = std::str::from_utf8(printed);
    let text = text.unwrap_or_else(|error| panic!("{what}: {error}: {printed:?}"));
    let bad = |c: char| {
        c != '\n' && c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(bad), "{what}: {text:?}");
    assert!(!text.contains("\nlockkeeper: \u{202e}"), "{what} forges a line: {text:?}");
    text.to_owned()
}

/// Runs a command; asserts that its output and its errors are escaped.
#[track_caller]
fn printed(command: &mut Command) -> (String, String) {
    let output = command.output().expect("the binary can be started");
    let what = format!("{command:?}");
    let out = assert_escaped(&what, &output.stdout);
    (out, assert_escaped(&what, &output.stderr))
}

/// A store in which every text is hostile: names, holders, clients, waiters, force-releases.
fn hostile() -> Stand {
    let stand = Stand::redis();
    let mut redis = stand.server().connection();
    let (name, evil) = (evil_name(), evil());
    let holder = [JAVA_CLIENT.as_bytes(), b":1", &evil].concat();
    redis.cmd(&[b"HSET", &name[..], &holder, b"1"]).ok();
    redis.cmd(&[b"PEXPIRE", &name[..], b"600000"]).ok();
    redis.cmd(&[b"HSET", &b"known"[..], format!("{JAVA_CLIENT}:2").as_bytes(), b"1"]).ok();
    redis.cmd(&[&b"PEXPIRE"[..], b"known", b"600000"]).ok();
    let queue = [b"redisson_lock_queue:{", &name[..], b"}"].concat();
    redis.cmd(&[b"RPUSH", &queue[..], &holder]).ok();
    redis.cmd(&[b"SET", &b"mutex"[..], &evil, b"PX", b"600000"]).ok();
    let note = format!("lockkeeper_client:{JAVA_CLIENT}");
    let fields: [&[u8]; 12] = [
        b"host", &evil, b"pid", b"7", b"program", &evil, b"start", b"1", b"ttl", b"600000",
        b"every", b"200000",
    ];
    redis.cmd(&[&[b"HSET", note.as_bytes()], &fields[..]].concat()).ok();
    redis.cmd(&[b"PEXPIRE", note.as_bytes(), b"600000"]).ok();
    redis
        .cmd(&[&b"ZADD"[..], b"lockkeeper_clients", b"99999999999999", JAVA_CLIENT.as_bytes()])
        .ok();
    let log = "redis.call('LPUSH', KEYS[1], cjson.encode({ at = '1700000000000', by = ARGV[1], \
               reason = ARGV[1], holders = { ARGV[1] }, \
               clients = { { host = ARGV[1], pid = '1', program = ARGV[1], start = '1' } } }))";
    for of in [&name[..], b"known"] {
        let key = [b"lockkeeper_forced:{", of, b"}"].concat();
        redis.cmd(&[b"EVAL", log.as_bytes(), b"1", &key, &evil]).ok();
    }
    stand
}

fn named(args: &[&str], name: &[u8]) -> Vec<std::ffi::OsString> {
    let name = OsStr::from_bytes(&[b"--name=", name].concat()).to_owned();
    args.iter().map(Into::into).chain([name]).collect()
}

#[test]
fn ls_and_inspect_escape_text() {
    let stand = hostile();
    let (table, _) = printed(&mut stand.command(["ls"]));
    assert_eq!(table.lines().count(), 3, "one line per lock: {table}");
    assert!(table.contains("e\\u{1b}[31m"), "{table}");
    for name in [&evil_name()[..], b"known"] {
        let (text, _) = printed(&mut stand.command(named(&["inspect"], name)));
        assert!(text.contains("held by") && text.contains("reason: e\\u{1b}[31m"), "{text}");
        let (_, errors) = printed(&mut stand.command(named(&["unlock", "--yes"], name)));
        assert!(errors.is_empty() || errors.contains("\\u{1b}"), "{errors}");
        stand.java_holds(name, 2);
    }
    let mutex = ["inspect", "mutex", "--kind", "mutex"];
    assert!(printed(&mut stand.command(mutex)).0.contains("\\u{1b}"));
    let (_, errors) = printed(&mut stand.command(["-vv", "inspect", "mutex", "--kind", "lock"]));
    assert!(errors.contains("mutex"), "{errors}");
}

#[test]
fn json_documents_escape_text() {
    let stand = hostile();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (evil, name) = (text(&evil()), text(&evil_name()));
    let (text, _) = printed(&mut stand.command(["ls", "--json"]));
    let document = schema::checked("ls", &text);
    let names: Vec<_> = document["locks"].as_array().unwrap().iter().collect();
    assert!(names.iter().any(|lock| lock["name"] == name), "{document:#}");
    let (text, _) = printed(&mut stand.command(["inspect", "--json", "known"]));
    let document = schema::checked("inspect", &text);
    assert_eq!(document["holders"][0]["host"], evil);
    assert_eq!(document["holders"][0]["program"], evil);
    assert_eq!(document["forced"][0]["reason"], evil);
    assert_eq!(document["forced"][0]["victims"][0]["program"], evil);
    let args = ["unlock", "known", "--yes", "--force", "--json", "--reason", "\u{1b}[2J\u{202e}"];
    let (text, _) = printed(&mut stand.command(args));
    assert_eq!(schema::checked("unlock", &text)["reason"], "\u{1b}[2J\u{202e}");
}

#[test]
fn watch_escapes_text() {
    let stand = hostile();
    for more in [&[][..], &["--json"]] {
        let args = [&["watch", "--interval", "50ms"], more].concat();
        let mut watch = stand.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap());
        for _ in 0..2 {
            let mut line = Vec::new();
            lines.read_until(b'\n', &mut line).unwrap();
            let line = assert_escaped("watch", &line);
            assert!(line.contains("appeared"), "{line}");
            if !more.is_empty() {
                serde_json::from_str::<Value>(&line).unwrap();
            }
        }
        watch.kill().unwrap();
        watch.wait().unwrap();
    }
    let terminal = Terminal::running(&stand, 150, "lk watch");
    let screen = terminal.shows("e\\u{1b}[31m");
    assert!(screen.contains("\\u{202e}"), "{screen}");
}

#[test]
fn the_confirmation_escapes_text() {
    let stand = hostile();
    let terminal = Terminal::running(&stand, 250, "lk unlock known");
    let screen = terminal.shows("[y/N]");
    assert!(screen.contains("  e\\u{1b}[31m\\u{7}\\u{9b}2J\\r\\nlockkeeper: "), "{screen}");
}

#[test]
fn run_escapes_text() {
    let stand = hostile();
    for more in [&["-w", "1"][..], &["-n"], &["-s", "-n"]] {
        let args = [&["-vv", "run", "known"], more, &["--", "true"]].concat();
        let (_, errors) = printed(&mut stand.command(&args));
        assert!(more != ["-w", "1"] || errors.contains("held by e\\u{1b}[31m"), "{errors}");
    }
}

/// Any client can publish a notice: the holder loses its lock, and the line gets an escaped reason.
#[test]
fn the_loss_reason_is_escaped_and_reaches_the_line() {
    let stand = Stand::redis();
    let line = "printf %s \"$LOCKKEEPER_REASON\"";
    let args = ["run", "a", "--on-lost", line, "--", "sh", "-c", "echo held; exec sleep 100"];
    let mut command = stand.command(args);
    command.env("PATH", "/usr/bin:/bin").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap());
    let mut held = String::new();
    lines.read_line(&mut held).unwrap();
    assert_eq!(held, "held\n");
    let owner = stand.inspected("a")["holders"][0]["id"].as_str().unwrap().to_owned();
    let channel = format!("lockkeeper_notice:{}", owner.split_once(':').unwrap().0);
    let notice = [format!("revoked {owner} ").as_bytes(), &evil()].concat();
    eventually("a subscriber", || {
        let receivers = stand.server().cli(&[b"PUBLISH", channel.as_bytes(), &notice]).int();
        (receivers > 0).then_some(())
    });
    let (mut reason, mut errors) = (Vec::new(), Vec::new());
    lines.read_to_end(&mut reason).unwrap();
    run.stderr.take().unwrap().read_to_end(&mut errors).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(76));
    let reason = assert_escaped("the reason", &reason);
    assert!(reason.contains("e\\u{1b}[31m") && reason.contains("\\u{0}vil"), "{reason}");
    let errors = assert_escaped("the errors", &errors);
    assert!(errors.contains("e\\u{1b}[31m"), "{errors}");
}

/// Starts a proxy that adds hostile text to each NOPERM error; returns its port.
fn hostile_server(stand: &Stand) -> u16 {
    let (listener, port) = (TcpListener::bind("127.0.0.1:0").unwrap(), stand.server().port());
    let local = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
            std::thread::spawn(move || answer(server, client));
        }
    });
    local
}

fn answer(server: TcpStream, mut client: TcpStream) {
    let evil = [b"-NOPERM ", EVIL].concat();
    // An error of Redis is one line of text.
    let evil: Vec<_> = evil.into_iter().filter(|byte| !b"\r\n\0".contains(byte)).collect();
    let (mut server, mut line) = (BufReader::new(server), Vec::new());
    while server.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let refused = line.strip_prefix(b"-NOPERM").map(|rest| [&evil[..], rest].concat());
        if client.write_all(&refused.unwrap_or(line)).is_err() {
            return;
        }
        line = Vec::new();
    }
}

#[test]
fn errors_of_a_server_are_escaped() {
    let stand = hostile();
    let acl = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-set"];
    stand.server().cli(&acl).ok();
    let url = format!("redis://app:secret@127.0.0.1:{}", hostile_server(&stand));
    for command in [&["doctor"][..], &["doctor", "--json"]] {
        let args = [&["--url", &url], command].concat();
        let (text, _) = printed(&mut stand.command(&args));
        let escaped = if command.len() == 1 { "e\\u{1b}[31m" } else { "e\\u001b[31m" };
        assert!(text.contains("permissions") && text.contains(escaped), "{text}");
    }
    stand.server().cli(&["ACL", "SETUSER", "app", "-scan", "-evalsha", "-eval"]).ok();
    for command in [
        &["ls"][..],
        &["inspect", "known", "--kind", "lock"],
        &["unlock", "known", "--yes", "--force", "--kind", "lock"],
        &["watch", "--json"],
        &["run", "known", "-n", "--", "true"],
    ] {
        let args = [&["-vv", "--url", &url], command].concat();
        let (_, errors) = printed(&mut stand.command(&args));
        assert!(errors.contains("e\\u{1b}[31m"), "{command:?}: {errors}");
    }
}
