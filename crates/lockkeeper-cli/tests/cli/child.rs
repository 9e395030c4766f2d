//! The command: what it gets, and that it is what it would be without a lock.

use std::process::Command;
use std::time::Duration;

use crate::support::{Scene, on_every_store, sleeper};

on_every_store! {
    its_input_and_output_are_untouched,
    its_environment_names_the_lock_and_hides_the_store,
    its_arguments_are_its_own,
    it_has_a_group_of_its_own,
    its_signals_are_as_they_were,
    nothing_but_what_it_would_have_is_open,
}

fn its_input_and_output_are_untouched(scene: &Scene) {
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
    // As the last of a pipe, too; and what it does not read is left for others.
    let mut pipe = Command::new("sh");
    let own = env!("CARGO_BIN_EXE_lockkeeper");
    pipe.args(["-c", "printf 'a\\nb\\n' | { \"$0\" run job -- head -c 2; cat; }", own]);
    scene.surround(&mut pipe);
    scene.finish(pipe).assert_quiet("a\nb\n");
}

fn its_environment_names_the_lock_and_hides_the_store(scene: &Scene) {
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

fn its_arguments_are_its_own(scene: &Scene) {
    let args = ["job", "--", "printf", "<%s>\\n", "-v", "--url", "", "a b", "--", "$HOME"];
    scene.run(&args).assert_quiet("<-v>\n<--url>\n<>\n<a b>\n<-->\n<$HOME>\n");
    scene.run(&["job", "-c", "echo \"$0 $#\""]).assert_quiet("sh 0\n");
}

fn it_has_a_group_of_its_own(scene: &Scene) {
    let run = scene.start(&["job", "-c", &sleeper()]);
    let command = scene.process("pid");
    assert_eq!(command.group(), Some(command.number()));
    assert_ne!(run.pid().group(), command.group());
    assert_ne!(run.guardian().group(), command.group());
    assert_ne!(run.guardian().group(), run.pid().group());
}

/// Runs a command by itself and by way of `run`, each after `before`: it must find the same.
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

fn its_signals_are_as_they_were(scene: &Scene) {
    // The last eight digits: those before are for the C library's own use.
    let masks = "sed -nE 's/(Sig(Blk|Ign|Cgt)):.*(.{8})/\\1 \\3/p' /proc/self/status";
    let plain = assert_no_difference(scene, "exec", masks);
    assert_eq!(plain.lines().count(), 3, "{plain}");
    // What was ignored stays so: `nohup`, or the background of a script.
    let ignored = assert_no_difference(scene, "trap '' HUP INT QUIT USR1; exec", masks);
    assert!(ignored.contains("207\n"), "{ignored}");
    // systemd has this one ignored in all that it starts, and std changes it at its own start.
    let ignored = assert_no_difference(scene, "trap '' PIPE; exec", masks);
    assert!(ignored.contains("1000\n"), "{ignored}");
    // Even what `run` itself cannot do with.
    for odd in ["--ignore-signal=CHLD", "--block-signal=CHLD", "--block-signal=TERM"] {
        assert_no_difference(scene, &format!("exec env {odd}"), masks);
    }
}

fn nothing_but_what_it_would_have_is_open(scene: &Scene) {
    assert_no_difference(scene, "exec", "sh -c 'ls /proc/self/fd | sort -n'");
}
