//! Terminal and job control: a command under a lock behaves as it would without one.
//!
//! The terminal echoes typed text, so an awaited word is typed in another form: `ma''rk`.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Scene, announce, eventually, on_every_store, sleeper};
use crate::tmux::{Tmux, appears};

on_every_store! {
    a_keyboard_interrupt_reaches_only_the_command,
    the_command_reads_the_terminal,
    a_job_stops_and_resumes_as_a_whole,
    a_job_stopped_for_longer_than_the_lease_loses_its_lock,
    in_a_pipe_the_command_gets_the_terminal_when_it_uses_it,
    in_a_pipe_the_other_processes_keep_the_terminal_until_then,
    at_the_end_of_a_pipe_keyboard_signals_reach_all_processes,
    at_the_start_of_a_pipe_a_pager_uses_the_terminal,
    at_the_start_of_a_pipe_keyboard_signals_reach_all_processes,
    the_program_that_started_the_run_uses_the_terminal,
    an_interrupt_reaches_all_runs_of_one_group,
    a_signal_to_the_command_does_not_end_the_script,
    a_background_command_that_reads_is_stopped,
    a_background_job_reads_after_fg,
    a_script_gets_its_terminal_back,
    an_interrupt_ends_the_script_around_a_run,
    an_interrupt_ends_a_wait_and_the_script_around_a_run,
    a_command_that_handles_the_interrupt_sets_the_exit_code,
    a_command_stopped_by_sigstop_does_not_stop_the_script,
    terminal_settings_are_restored_after_a_stopped_command,
    an_orphaned_group_is_not_stopped,
    a_closed_terminal_ends_the_command_and_releases_the_lock,
}

fn a_keyboard_interrupt_reaches_only_the_command(scene: &Scene) {
    let tmux = Tmux::start(scene);
    for (key, code) in [("C-c", 130), ("C-\\", 131)] {
        tmux.enter(&format!("lk run job -c '{}'", sleeper()));
        let command = scene.process("pid");
        assert!(command.is_in_foreground());
        tmux.press(key);
        command.dies();
        tmux.enter("echo ma''rk:$?");
        tmux.shows(&format!("mark:{code}"));
        scene.assert_free("job");
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

fn the_command_reads_the_terminal(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter("lk run job -c 'echo rea\"\"dy2; read line; echo g\"\"ot:$line; stty size'");
    tmux.shows("ready2");
    tmux.enter("hello");
    tmux.shows("got:hello");
    tmux.shows("50 150");
    // The shell has its terminal back.
    tmux.enter("echo ma''rk:$?");
    tmux.shows("mark:0");
}

fn a_job_stops_and_resumes_as_a_whole(scene: &Scene) {
    let tmux = Tmux::start(scene);
    scene.gate("go");
    let line = format!("{}; read x < $D/go; exit 7", announce("pid"));
    tmux.enter(&format!("lk run job -c '{line}'"));
    let command = scene.process("pid");
    for resume in [&["fg"][..], &["bg", "fg"], &["fg"]] {
        tmux.press("C-z");
        eventually("all to stop", || command.is_stopped() && command.parent().is_stopped());
        tmux.enter("jobs; echo ma''rk:stopped");
        tmux.shows("mark:stopped");
        assert!(tmux.screen().contains("Stopped"), "{}", tmux.screen());
        tmux.enter("clear; echo ma''rk:cleared");
        tmux.shows("mark:cleared");
        for resume in resume {
            tmux.enter(resume);
            eventually("the command to resume", || !command.is_stopped());
        }
        // A shell does not notify a job that it brings to the front.
        eventually("its foreground", || command.is_in_foreground());
    }
    scene.open_gate("go");
    command.dies();
    tmux.enter("echo ma''rk:$?");
    tmux.shows("mark:7");
    scene.assert_free("job");
}

fn a_job_stopped_for_longer_than_the_lease_loses_its_lock(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter(&format!("lk run --lease 1.5 job -c '{}'", sleeper()));
    let command = scene.process("pid");
    tmux.press("C-z");
    command.dies();
    tmux.enter("fg; echo ma''rk:$?");
    tmux.shows("mark:76");
    assert!(tmux.screen().contains("lost"), "{}", tmux.screen());
}

fn in_a_pipe_the_command_gets_the_terminal_when_it_uses_it(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter(
        "echo data | lk run job -c 'cat; echo rea\"\"dy2; read x < /dev/tty; echo g\"\"ot:$x'",
    );
    tmux.shows("ready2");
    tmux.enter("hello");
    tmux.shows("got:hello");
    tmux.enter("echo ma''rk:$?");
    tmux.shows("mark:0");
}

fn in_a_pipe_the_other_processes_keep_the_terminal_until_then(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter(&format!("head -1 | lk run job -c '{}; read x; echo g\"\"ot:$x'", announce("pid")));
    scene.process("pid");
    tmux.enter("hello");
    tmux.shows("got:hello");
}

fn at_the_end_of_a_pipe_keyboard_signals_reach_all_processes(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let first = format!("{}; exec sleep 60", announce("first"));
    tmux.enter(&format!("sh -c '{first}' | lk run job -c '{}'", sleeper()));
    let (first, command) = (scene.process("first"), scene.process("pid"));
    tmux.press("C-z");
    eventually("all to stop", || first.is_stopped() && command.is_stopped());
    tmux.enter("fg; echo ma''rk:$?");
    eventually("all to resume", || {
        !first.is_stopped() && !command.is_stopped() && first.is_in_foreground()
    });
    tmux.press("C-c");
    first.dies();
    command.dies();
    tmux.enter("");
    tmux.enter("echo en''d");
    tmux.shows("end");
    scene.assert_free("job");
}

/// Like `less`: changes the terminal's settings and reads from it.
fn at_the_start_of_a_pipe_a_pager_uses_the_terminal(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let pager = "stty echo < /dev/tty; echo rea\"\"dy2; read x < /dev/tty; echo g\"\"ot:$x; cat";
    tmux.enter(&format!("lk run job -c '{}' | sh -c '{pager}'", sleeper()));
    let command = scene.process("pid");
    tmux.shows("ready2");
    tmux.enter("hello");
    tmux.shows("got:hello");
    assert!(!command.is_stopped() && !command.parent().is_stopped());
    tmux.press("C-c");
    command.dies();
    tmux.enter("echo en''d");
    tmux.shows("end");
    scene.assert_free("job");
}

fn at_the_start_of_a_pipe_keyboard_signals_reach_all_processes(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let last = format!("{}; exec cat", announce("last"));
    tmux.enter(&format!("lk run job -c '{}' | sh -c '{last}'", sleeper()));
    let (command, last) = (scene.process("pid"), scene.process("last"));
    let run = command.parent();
    let all = [command, run, last];
    tmux.press("C-z");
    eventually("all to stop", || all.iter().all(|one| one.is_stopped()));
    tmux.enter("fg");
    eventually("all to resume", || {
        !all.iter().any(|one| one.is_stopped()) && run.is_in_foreground()
    });
    tmux.press("C-c");
    command.dies();
    last.dies();
    tmux.enter("echo en''d");
    tmux.shows("end");
    scene.assert_free("job");
}

fn the_program_that_started_the_run_uses_the_terminal(scene: &Scene) {
    let tmux = Tmux::start(scene);
    // The shell gives a background command no input, so the script passes its own.
    let script = format!(
        "exec 3<&0; \"$LK\" run job -c '{}' <&3 & \n\
         while [ ! -e pid ]; do sleep 0.02; done; echo rea''dy2; read x; echo go''t:$x",
        sleeper()
    );
    std::fs::write(scene.path("script"), script).unwrap();
    tmux.enter("sh script");
    let command = scene.process("pid");
    tmux.shows("ready2");
    tmux.enter("hello");
    tmux.shows("got:hello");
    command.signal(Signal::KILL);
}

/// As under `make -j`: one of the commands handles the interrupt, and the other still gets it.
fn an_interrupt_reaches_all_runs_of_one_group(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let handles = format!("trap \"exit 1\" INT; {}; while :; do sleep 0.02; done", announce("one"));
    let dies = format!("{}; exec sleep 60", announce("two"));
    // A shell without job control would make them ignore the interrupt.
    let starter = "$SIG{INT} = sub {}; for (@ARGV) { fork // die or exec $ENV{LK}, qw(run), $_, qw(-c), $ENV{$_} } \
                   1 while wait > 0 || $!{EINTR}; print qq(all ended\\n)";
    tmux.enter(&format!("export one='{handles}' two='{dies}' starter='{starter}'; clear"));
    tmux.enter("perl -MErrno -e \"$starter\" one two");
    let (one, two) = (scene.process("one"), scene.process("two"));
    tmux.press("C-c");
    one.dies();
    two.dies();
    tmux.shows("all ended");
}

fn a_signal_to_the_command_does_not_end_the_script(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let script = format!("\"$LK\" run job -c '{}'; echo wen''t on:$?", sleeper());
    std::fs::write(scene.path("script"), script).unwrap();
    tmux.enter("bash script");
    scene.process("pid").signal(Signal::INT);
    tmux.shows("went on:130");
}

fn a_background_command_that_reads_is_stopped(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let line = format!("{}; read x; echo g\"\"ot:$x", announce("pid"));
    tmux.enter(&format!("lk run job -c '{line}' &"));
    let command = scene.process("pid");
    eventually("all to stop", || command.is_stopped() && command.parent().is_stopped());
    tmux.enter("jobs");
    tmux.shows("Stopped");
    tmux.enter("fg");
    eventually("the command to resume", || !command.is_stopped() && command.is_in_foreground());
    tmux.enter("hello");
    tmux.shows("got:hello");
}

fn a_background_job_reads_after_fg(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let line = format!(
        "{}; while [ ! -e $D/go ]; do sleep 0.05; done; echo rea\"\"dy2; read x; echo g\"\"ot:$x",
        announce("pid")
    );
    tmux.enter(&format!("lk run job -c '{line}' &"));
    scene.process("pid");
    tmux.enter("fg");
    tmux.shows("lk run");
    std::fs::write(scene.path("go"), "").unwrap();
    tmux.shows("ready2");
    tmux.enter("hello");
    tmux.shows("got:hello");
}

fn a_script_gets_its_terminal_back(scene: &Scene) {
    let tmux = Tmux::start(scene);
    for (command, code) in [("true", 0), ("/no/where", 127)] {
        let script = format!(
            "\"$LK\" run job -- {command}; code=$?; echo en{code}d; read x; echo go''t:$x:$code"
        );
        std::fs::write(scene.path("script"), script).unwrap();
        tmux.enter("sh script");
        tmux.shows(&format!("en{code}d"));
        tmux.enter("hello");
        tmux.shows(&format!("got:hello:{code}"));
    }
}

fn an_interrupt_ends_the_script_around_a_run(scene: &Scene) {
    let tmux = Tmux::start(scene);
    for shell in ["sh", "bash"] {
        let script = format!("\"$LK\" run job -c '{}'; touch went-on", sleeper());
        std::fs::write(scene.path("script"), script).unwrap();
        tmux.enter(&format!("{shell} script"));
        let command = scene.process("pid");
        tmux.press("C-c");
        command.dies();
        tmux.enter(&format!("echo ma''rk:{shell}:$?"));
        tmux.shows(&format!("mark:{shell}:130"));
        assert!(!scene.exists("went-on"), "{shell} went on");
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

fn an_interrupt_ends_a_wait_and_the_script_around_a_run(scene: &Scene) {
    let _holder = scene.start(&["job", "-c", &sleeper()]);
    scene.process("pid");
    let tmux = Tmux::start(scene);
    std::fs::write(scene.path("script"), "\"$LK\" run -v job -- true; touch went-on").unwrap();
    tmux.enter("bash script");
    tmux.shows("waiting");
    tmux.press("C-c");
    tmux.enter("echo ma''rk:$?");
    tmux.shows("mark:130");
    assert!(!scene.exists("went-on"));
}

fn a_command_that_handles_the_interrupt_sets_the_exit_code(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let line = format!(
        "trap \"exit 9\" INT; {}; i=0; while [ $((i+=1)) -le 1200 ]; do sleep 0.05; done",
        announce("pid")
    );
    let script = format!("\"$LK\" run job -c '{line}'; echo $? > code");
    std::fs::write(scene.path("script"), script).unwrap();
    tmux.enter("bash script");
    scene.process("pid");
    tmux.press("C-c");
    appears(scene, "code");
    assert_eq!(scene.evidence("code"), "9\n");
}

fn a_command_stopped_by_sigstop_does_not_stop_the_script(scene: &Scene) {
    let tmux = Tmux::start(scene);
    scene.gate("go");
    let line = format!("{}; read x < $D/go", announce("pid"));
    let script = format!("\"$LK\" run --lease 2 job -c '{line}'; echo wen''t on:$?");
    std::fs::write(scene.path("script"), script).unwrap();
    tmux.enter("bash script");
    let command = scene.process("pid");
    command.signal(Signal::STOP);
    eventually("its stop", || command.is_stopped());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    }
    command.signal(Signal::CONT);
    scene.open_gate("go");
    tmux.shows("went on:0");
}

fn terminal_settings_are_restored_after_a_stopped_command(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter("lk run --max-hold 1 job -c 'stty -echo -icanon; exec sleep 60'; echo ma''rk:$?");
    tmux.shows("mark:124");
    tmux.enter("stty -a | tr -s '; ' '\\n\\n' | grep -x -e '-*icanon' | sed s/^/mo''de:/");
    tmux.shows("mode:");
    assert!(tmux.screen().contains("mode:icanon"), "{}", tmux.screen());
}

/// The first process of a terminal has no shell that could resume it: the kernel ignores the keyboard's
/// stop there, and the command must continue too.
fn an_orphaned_group_is_not_stopped(scene: &Scene) {
    let tmux = Tmux::start(scene);
    scene.gate("go");
    let line = format!("{}; read x < $D/go; echo > $D/end", announce("pid"));
    let script = format!("{}; exec \"$LK\" run --lease 5 job -c '{line}'", announce("run"));
    std::fs::write(scene.path("script"), script).unwrap();
    tmux.enter("tmux new-window 'sh script 2> errors'");
    let (run, command) = (scene.process("run"), scene.process("pid"));
    // After SIGSTOP it stays stopped, and its lock is renewed.
    command.signal(Signal::STOP);
    eventually("its stop", || command.is_stopped());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(6_000) {
        scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    }
    assert!(command.is_stopped() && !run.is_stopped());
    command.signal(Signal::CONT);
    eventually("it to resume", || !command.is_stopped());
    tmux.press("C-z");
    // It resumes after the stop, or was never stopped: it continues to read in both cases.
    scene.open_gate("go");
    appears(scene, "end");
    command.dies();
}

fn a_closed_terminal_ends_the_command_and_releases_the_lock(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter(&format!("lk run job -c '{}'", sleeper()));
    let command = scene.process("pid");
    let run = command.parent();
    drop(tmux);
    command.dies();
    run.dies();
    scene.assert_free("job");
}
