//! The environment of the command is the same as without a lock.

use std::process::Command;
use std::time::Duration;

use crate::support::{Scene, on_every_store, sleeper};

on_every_store! {
    input_and_output_are_untouched,
    the_environment_names_the_lock_and_hides_the_store,
    arguments_are_passed_unchanged,
    the_command_has_its_own_process_group,
    signal_dispositions_are_inherited,
    no_extra_file_descriptor_is_open,
}

fn input_and_output_are_untouched(scene: &Scene) {
    let mut copy = scene.start(&["job", "--", "cat"]);
    for number in 0..1000 {
        copy.process.write_line(&format!("line {number}"));
    }
    copy.process.close_input();
    for number in 0..1000 {
        let line = copy.process.next_line(Duration::from_secs(10));
        assert_eq!(line, Some(format!("line {number}")));
    }
    copy.outcome().assert_quiet("");
    // Also at the end of a pipe; unread input stays for the next reader.
    let mut pipe = Command::new("sh");
    let own = env!("CARGO_BIN_EXE_lockkeeper");
    pipe.args(["-c", "printf 'a\\nb\\n' | { \"$0\" run job -- head -c 2; cat; }", own]);
    scene.surround(&mut pipe);
    scene.finish(pipe).assert_quiet("a\nb\n");
}

fn the_environment_names_the_lock_and_hides_the_store(scene: &Scene) {
    let mut command = scene.lockkeeper();
    command.args(["run", "a job", "--", "env"]).env("OTHER", "kept");
    let outcome = scene.finish(command);
    outcome.assert_code(0);
    let lines: Vec<_> = outcome.output.lines().collect();
    assert!(lines.contains(&"LOCKKEEPER_NAME=a job"), "{outcome:?}");
    assert!(lines.contains(&"OTHER=kept"));
    assert!(!outcome.output.contains("LOCKKEEPER_URL"), "{outcome:?}");
    let owner = lines.iter().find_map(|line| line.strip_prefix("LOCKKEEPER_OWNER="));
    assert!(owner.expect("it has an owner").parse::<lockkeeper::OwnerId>().is_ok());
}

fn arguments_are_passed_unchanged(scene: &Scene) {
    let args = ["job", "--", "printf", "<%s>\\n", "-v", "--url", "", "a b", "--", "$HOME"];
    scene.run(&args).assert_quiet("<-v>\n<--url>\n<>\n<a b>\n<-->\n<$HOME>\n");
    scene.run(&["job", "-c", "echo \"$0 $#\""]).assert_quiet("sh 0\n");
}

fn the_command_has_its_own_process_group(scene: &Scene) {
    let run = scene.start(&["job", "-c", &sleeper()]);
    let command = scene.process("pid");
    assert_eq!(command.group(), Some(command.number()));
    assert_ne!(run.pid().group(), command.group());
    assert_ne!(run.guardian().group(), command.group());
    assert_ne!(run.guardian().group(), run.pid().group());
}

/// Runs a command directly and under `run`, each after `before`; asserts the same output.
#[track_caller]
fn assert_no_difference(scene: &Scene, before: &str, command: &str) -> String {
    let run = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line, env!("CARGO_BIN_EXE_lockkeeper")]);
        scene.surround(&mut command);
        let outcome = scene.finish(command);
        outcome.assert_code(0);
        outcome.output
    };
    let directly = run(&format!("{before} {command}"));
    assert_eq!(run(&format!("{before} \"$0\" run job -- {command}")), directly, "{before}");
    directly
}

fn signal_dispositions_are_inherited(scene: &Scene) {
    // The last eight digits: the others are signals of the C library.
    let masks = "sed -nE 's/(Sig(Blk|Ign|Cgt)):.*(.{8})/\\1 \\3/p' /proc/self/status";
    let plain = assert_no_difference(scene, "exec", masks);
    assert_eq!(plain.lines().count(), 3, "{plain}");
    // Ignored signals stay ignored: `nohup`, or the background of a script.
    let ignored = assert_no_difference(scene, "trap '' HUP INT QUIT USR1; exec", masks);
    assert!(ignored.contains("207\n"), "{ignored}");
    // systemd ignores SIGPIPE for its services, and std changes it at start.
    let ignored = assert_no_difference(scene, "trap '' PIPE; exec", masks);
    assert!(ignored.contains("1000\n"), "{ignored}");
    // Even dispositions that `run` changes for itself.
    for odd in ["--ignore-signal=CHLD", "--block-signal=CHLD", "--block-signal=TERM"] {
        assert_no_difference(scene, &format!("exec env {odd}"), masks);
    }
}

fn no_extra_file_descriptor_is_open(scene: &Scene) {
    assert_no_difference(scene, "exec", "sh -c 'ls /proc/self/fd | sort -n'");
}
