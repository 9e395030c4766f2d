//! Exit codes.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use testkit::RedisServer;

use crate::support::{Scene, announce, on_every_store, sleeper, write};

on_every_store! {
    the_exit_code_of_the_command_is_returned,
    a_command_ended_by_a_signal_is_128_plus_its_number,
    a_command_that_is_not_found_is_127,
    a_command_that_cannot_be_executed_is_126,
    busy_is_75_or_the_given_code,
    a_name_in_use_as_another_kind_is_64,
    an_invalid_command_line_is_64,
    max_hold_is_124,
    help_and_version_are_0,
}

fn the_exit_code_of_the_command_is_returned(scene: &Scene) {
    scene.run(&["job", "--", "echo", "done"]).assert_quiet("done\n");
    for code in [1, 7, 75, 255] {
        let outcome = scene.run(&["job", "-c", &format!("exit {code}")]);
        outcome.assert_code(code);
        assert_eq!(outcome.errors, "");
    }
    scene.assert_free("job");
}

fn a_command_ended_by_a_signal_is_128_plus_its_number(scene: &Scene) {
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("INT", 130), ("USR1", 138)] {
        scene.run(&["job", "-c", &format!("kill -{signal} $$")]).assert_code(code);
    }
}

fn a_command_that_is_not_found_is_127(scene: &Scene) {
    for command in ["/nowhere/at/all", "no-such-command-anywhere"] {
        let outcome = scene.run(&["job", "--at-least", "60", "--", command]);
        outcome.assert_code(127);
        outcome.assert_says(command);
        scene.assert_free("job");
    }
}

fn a_command_that_cannot_be_executed_is_126(scene: &Scene) {
    let path = scene.path("data");
    write(&path, "no program");
    let outcome = scene.run(&["job", "--", path.to_str().unwrap()]);
    outcome.assert_code(126);
    outcome.assert_says("data");
    scene.assert_free("job");
    // As in a shell, sh runs a script without a `#!` line.
    write(&path, "exit 9");
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    scene.run(&["job", "--", path.to_str().unwrap()]).assert_code(9);
}

fn busy_is_75_or_the_given_code(scene: &Scene) {
    let holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    for (args, code) in [
        (["-n", "-v"], 75),
        (["-w0.2", "-v"], 75),
        (["-n", "-E0"], 0),
        (["-w0.2", "--busy-exit-code=255"], 255),
    ] {
        let outcome = scene.run(&[&args[..], &["job", "--", "touch", "ran"]].concat());
        outcome.assert_code(code);
        assert_eq!(outcome.errors.contains("busy"), args[1] == "-v", "{outcome:?}");
    }
    assert!(!scene.exists("ran"));
    drop(holder);
}

fn a_name_in_use_as_another_kind_is_64(scene: &Scene) {
    let _holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let outcome = scene.run(&["--permits=2", "-n", "job", "--", "touch", "ran"]);
    outcome.assert_code(64);
    outcome.assert_says("job");
    assert!(!scene.exists("ran"));
}

fn an_invalid_command_line_is_64(scene: &Scene) {
    for (args, because) in [
        (&[][..], "NAME"),
        (&["job", "true"], "true"),
        (&["job", "--name", "job", "--", "true"], "--name"),
        (&["", "--", "true"], "empty"),
        (&["job", "-c", "true", "--", "true"], "-c"),
        (&["job", "-s", "-x", "--", "true"], "--exclusive"),
        (&["job", "--fair", "--permits", "2", "--", "true"], "--permits"),
        (&["job", "-s", "--fenced", "--", "true"], "--fenced"),
        (&["job", "--permits", "2", "--fenced", "--", "true"], "--fenced"),
        (&["job", "--permits", "0", "--", "true"], "0"),
        (&["job", "-n", "-w", "1", "--", "true"], "--wait"),
        (&["job", "-w", "soon", "--", "true"], "soon"),
        (&["job", "-E", "256", "--", "true"], "256"),
        (&["job", "--lease", "0.5", "--", "true"], "500ms"),
        (&["job", "--signal", "NOPE", "--", "true"], "NOPE"),
        (&["job", "--url", "gopher://x", "--", "true"], "gopher"),
        (&["job", "--url", "redis://", "--", "true"], "redis"),
        (&["job", "--no-such-option", "--", "true"], "--no-such-option"),
    ] {
        let outcome = scene.run(args);
        outcome.assert_code(64);
        outcome.assert_says(because);
        assert_eq!(outcome.output, "", "{args:?}");
    }
    let mut nothing = scene.lockkeeper();
    nothing.args([] as [&str; 0]);
    scene.finish(nothing).assert_code(64);
    let mut unknown = scene.lockkeeper();
    unknown.arg("hold");
    scene.finish(unknown).assert_code(64);
}

fn max_hold_is_124(scene: &Scene) {
    let line = format!(
        "trap 'echo trapped > $D/trapped; exit 3' TERM; {}; sleep 60 & wait",
        announce("pid")
    );
    let outcome = scene.run(&["--max-hold", "0.3", "job", "-c", &line]);
    outcome.assert_code(124);
    outcome.assert_says("stopping the command: lock \"job\" was held for --max-hold 300ms");
    assert_eq!(scene.evidence("trapped"), "trapped\n");
    scene.assert_free("job");
}

fn help_and_version_are_0(scene: &Scene) {
    for (args, shown) in [
        (&["--help"][..], "Usage"),
        (&["--version"], "lockkeeper"),
        (&["run", "--help"], "Exit codes"),
        (&["help", "run"], "LOCKKEEPER_TOKEN"),
    ] {
        let mut command = scene.lockkeeper();
        command.args(args);
        let outcome = scene.finish(command);
        outcome.assert_code(0);
        assert!(outcome.output.contains(shown), "{outcome:?}");
    }
}

#[test]
fn a_database_that_the_server_does_not_have_is_64() {
    let scene = Scene::redis();
    let url = format!("{}/99999", scene.url());
    let outcome = scene.run(&["--url", &url, "job", "--", "touch", "ran"]);
    outcome.assert_code(64);
    outcome.assert_says("check the number of the database");
    assert!(!scene.exists("ran"));
}

/// The request is valid, wherever the descriptors are exhausted.
#[test]
fn too_few_descriptors_are_70() {
    let scene = Scene::file();
    std::fs::create_dir_all(scene.path(".config/lockkeeper")).unwrap();
    std::fs::write(scene.path(".config/lockkeeper/config.toml"), "lease = 20").unwrap();
    scene.run(&["job", "--", "true"]).assert_quiet("");
    let mut internal = 0;
    for limit in 4..40 {
        let mut command = std::process::Command::new("sh");
        let line = format!("ulimit -n {limit}; exec \"$0\" run job -- true");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_lockkeeper")]);
        scene.surround(&mut command);
        let outcome = scene.finish(command);
        match outcome.code {
            Some(70) => internal += 1,
            code => assert_eq!(code, Some(0), "{limit}: {outcome:?}"),
        }
    }
    assert!(internal > 3, "{internal}");
}

#[test]
fn an_unreachable_store_is_69() {
    let scene = Scene::redis();
    scene.server().kill();
    let outcome = scene.run(&["job", "--", "touch", "ran"]);
    outcome.assert_code(69);
    outcome.assert_says(&scene.url());
    assert!(!scene.exists("ran"));
}

#[test]
fn a_store_that_dies_during_a_wait_is_69() {
    let scene = Scene::redis();
    let _holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let waiter = scene.start(&["-v", "job", "--", "touch", "ran"]);
    waiter.says("waiting");
    scene.server().kill();
    waiter.outcome().assert_code(69);
    assert!(!scene.exists("ran"));
}

#[test]
fn a_store_that_stops_answering_during_a_limited_wait_is_69() {
    let scene = Scene::redis();
    let _holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let waiter = scene.start(&["-v", "-w", "2s", "job", "--", "touch", "ran"]);
    waiter.says("waiting");
    scene.server().pause();
    let outcome = waiter.outcome();
    scene.server().resume();
    outcome.assert_code(69);
    assert!(!scene.exists("ran"));
}

#[test]
fn a_wrong_password_is_77_and_not_printed() {
    let server = RedisServer::builder().password("right").start();
    let url = server.url_with("", "wr0ng-secret");
    let scene = Scene::with(server);
    let outcome = scene.run(&["-v", "--url", &url, "job", "--", "true"]);
    outcome.assert_code(77);
    assert!(!outcome.errors.contains("wr0ng-secret"), "{outcome:?}");
    scene.run(&["job", "--", "true"]).assert_quiet("");
}

#[test]
fn an_unknown_error_of_the_server_is_70() {
    let scene = Scene::file();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    // A server that rejects every command.
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut request = [0; 4096];
                while connection.read(&mut request).is_ok_and(|length| length > 0) {
                    let commands = request.iter().filter(|byte| **byte == b'*').count();
                    let _ = connection.write_all("-ERR what?\r\n".repeat(commands).as_bytes());
                    request.fill(0);
                }
            });
        }
    });
    let outcome = scene.run(&["--url", &url, "job", "--", "touch", "ran"]);
    outcome.assert_code(70);
    assert!(!scene.exists("ran"));
}

#[test]
fn a_missing_command_after_dashes_is_64() {
    let scene = Scene::file();
    let outcome = scene.run(&["job", "--"]);
    outcome.assert_code(64);
    outcome.assert_says("no command after --");
    // A last argument `--` of the command is not a missing command.
    scene.run(&["job", "--", "echo", "--"]).assert_quiet("--\n");
    scene.run(&["-n", "--max-hold", "0.1", "job"]).assert_code(124);
}

/// As in batch systems: without a handler the kernel kills a process that exceeds the limit.
#[test]
fn a_file_size_limit_is_an_error_of_the_store() {
    let scene = Scene::file();
    let mut command = std::process::Command::new("sh");
    let own = env!("CARGO_BIN_EXE_lockkeeper");
    command.args(["-c", "ulimit -f 1; exec \"$0\" run job -- true", own]);
    scene.surround(&mut command);
    let outcome = scene.finish(command);
    outcome.assert_code(69);
    outcome.assert_says("locks.db");
}
