//! Terminal and job control: a command under a lock behaves as it would without one.
//!
//! What is typed is echoed, so what is waited for is written differently there: `ma''rk`.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Scene, announce, eventually, on_every_store, sleeper};
use crate::tmux::{Tmux, appears};

on_every_store! {
    the_keyboards_interrupt_reaches_the_command_alone,
    the_command_reads_from_the_terminal,
    a_job_stops_and_goes_on_as_a_whole,
    a_job_that_is_stopped_for_too_long_has_lost_its_lock,
    in_a_pipe_the_command_gets_the_terminal_when_it_reaches_for_it,
    in_a_pipe_the_others_keep_the_terminal_until_then,
    in_a_pipe_the_keyboard_stops_and_interrupts_all_of_it,
    behind_a_pipe_the_others_use_the_terminal,
    behind_a_pipe_the_keyboard_stops_and_interrupts_all_of_it,
    who_has_started_it_uses_the_terminal,
    an_interrupt_reaches_all_who_were_started_together,
    a_signal_from_elsewhere_is_not_the_scripts,
    in_the_background_a_command_that_reads_stops_the_job,
    in_the_background_and_fetched_to_the_front_it_reads,
    a_script_has_its_terminal_back,
    an_interrupt_ends_the_script_around_it,
    an_interrupt_ends_a_wait_and_the_script_around_it,
    a_command_that_handles_the_interrupt_is_not_overruled,
    a_command_that_is_stopped_by_hand_does_not_stop_the_script_around_it,
    what_a_stopped_command_has_done_to_the_terminal_is_undone,
    what_nobody_could_let_go_on_is_not_stopped,
    a_terminal_that_goes_away_ends_the_command_and_frees_the_lock,
}

fn the_keyboards_interrupt_reaches_the_command_alone(scene: &Scene) {
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

fn the_command_reads_from_the_terminal(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter("lk run job -c 'echo rea\"\"dy2; read line; echo g\"\"ot:$line; stty size'");
    tmux.shows("ready2");
    tmux.enter("hello");
    tmux.shows("got:hello");
    tmux.shows("50 150");
    // And the shell has its terminal back.
    tmux.enter("echo ma''rk:$?");
    tmux.shows("mark:0");
}

fn a_job_stops_and_goes_on_as_a_whole(scene: &Scene) {
    let tmux = Tmux::start(scene);
    scene.gate("go");
    let line = format!("{}; read x < $D/go; exit 7", announce("pid"));
    tmux.enter(&format!("lk run job -c '{line}'"));
    let command = scene.process("pid");
    for resume in [&["fg"][..], &["bg", "fg"], &["fg"]] {
        tmux.press("C-z");
        eventually("the stop of all", || command.is_stopped() && command.parent().is_stopped());
        tmux.enter("jobs; echo ma''rk:stopped");
        tmux.shows("mark:stopped");
        assert!(tmux.screen().contains("Stopped"), "{}", tmux.screen());
        tmux.enter("clear; echo ma''rk:cleared");
        tmux.shows("mark:cleared");
        for resume in resume {
            tmux.enter(resume);
            eventually("the command to go on", || !command.is_stopped());
        }
        // A shell does not say so when it fetches a running job, but it is found out.
        eventually("its foreground", || command.is_in_foreground());
    }
    scene.open_gate("go");
    command.dies();
    tmux.enter("echo ma''rk:$?");
    tmux.shows("mark:7");
    scene.assert_free("job");
}

fn a_job_that_is_stopped_for_too_long_has_lost_its_lock(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter(&format!("lk run --lease 1.5 job -c '{}'", sleeper()));
    let command = scene.process("pid");
    tmux.press("C-z");
    command.dies();
    tmux.enter("fg; echo ma''rk:$?");
    tmux.shows("mark:76");
    assert!(tmux.screen().contains("lost"), "{}", tmux.screen());
}

fn in_a_pipe_the_command_gets_the_terminal_when_it_reaches_for_it(scene: &Scene) {
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

fn in_a_pipe_the_others_keep_the_terminal_until_then(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter(&format!("head -1 | lk run job -c '{}; read x; echo g\"\"ot:$x'", announce("pid")));
    scene.process("pid");
    tmux.enter("hello");
    tmux.shows("got:hello");
}

fn in_a_pipe_the_keyboard_stops_and_interrupts_all_of_it(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let first = format!("{}; exec sleep 60", announce("first"));
    tmux.enter(&format!("sh -c '{first}' | lk run job -c '{}'", sleeper()));
    let (first, command) = (scene.process("first"), scene.process("pid"));
    tmux.press("C-z");
    eventually("all to stop", || first.is_stopped() && command.is_stopped());
    tmux.enter("fg; echo ma''rk:$?");
    eventually("all to go on", || {
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

/// As `less` does: it changes the terminal's settings and reads from it.
fn behind_a_pipe_the_others_use_the_terminal(scene: &Scene) {
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

fn behind_a_pipe_the_keyboard_stops_and_interrupts_all_of_it(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let last = format!("{}; exec cat", announce("last"));
    tmux.enter(&format!("lk run job -c '{}' | sh -c '{last}'", sleeper()));
    let (command, last) = (scene.process("pid"), scene.process("last"));
    let run = command.parent();
    let all = [command, run, last];
    tmux.press("C-z");
    eventually("all to stop", || all.iter().all(|one| one.is_stopped()));
    tmux.enter("fg");
    eventually("all to go on", || {
        !all.iter().any(|one| one.is_stopped()) && run.is_in_foreground()
    });
    tmux.press("C-c");
    command.dies();
    last.dies();
    tmux.enter("echo en''d");
    tmux.shows("end");
    scene.assert_free("job");
}

fn who_has_started_it_uses_the_terminal(scene: &Scene) {
    let tmux = Tmux::start(scene);
    // The shell would give a background command no input; a program that starts one does.
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

/// As by `make -j`: one of them handles the interrupt, and the other one hears of it all the same.
fn an_interrupt_reaches_all_who_were_started_together(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let handles = format!("trap \"exit 1\" INT; {}; while :; do sleep 0.02; done", announce("one"));
    let dies = format!("{}; exec sleep 60", announce("two"));
    // A shell without job control would have them ignore the interrupt.
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

fn a_signal_from_elsewhere_is_not_the_scripts(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let script = format!("\"$LK\" run job -c '{}'; echo wen''t on:$?", sleeper());
    std::fs::write(scene.path("script"), script).unwrap();
    tmux.enter("bash script");
    scene.process("pid").signal(Signal::INT);
    tmux.shows("went on:130");
}

fn in_the_background_a_command_that_reads_stops_the_job(scene: &Scene) {
    let tmux = Tmux::start(scene);
    let line = format!("{}; read x; echo g\"\"ot:$x", announce("pid"));
    tmux.enter(&format!("lk run job -c '{line}' &"));
    let command = scene.process("pid");
    eventually("its stop", || command.is_stopped());
    tmux.enter("jobs");
    tmux.shows("Stopped");
    tmux.enter("fg");
    eventually("the command to go on", || !command.is_stopped() && command.is_in_foreground());
    tmux.enter("hello");
    tmux.shows("got:hello");
}

fn in_the_background_and_fetched_to_the_front_it_reads(scene: &Scene) {
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

fn a_script_has_its_terminal_back(scene: &Scene) {
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

fn an_interrupt_ends_the_script_around_it(scene: &Scene) {
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

fn an_interrupt_ends_a_wait_and_the_script_around_it(scene: &Scene) {
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

fn a_command_that_handles_the_interrupt_is_not_overruled(scene: &Scene) {
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

fn a_command_that_is_stopped_by_hand_does_not_stop_the_script_around_it(scene: &Scene) {
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

fn what_a_stopped_command_has_done_to_the_terminal_is_undone(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter("lk run --max-hold 1 job -c 'stty -echo -icanon; exec sleep 60'; echo ma''rk:$?");
    tmux.shows("mark:124");
    tmux.enter("stty -a | tr -s '; ' '\\n\\n' | grep -x -e '-*icanon' | sed s/^/mo''de:/");
    tmux.shows("mode:");
    assert!(tmux.screen().contains("mode:icanon"), "{}", tmux.screen());
}

/// The first process of a terminal has no shell above it that could continue it: there the kernel
/// ignores the keyboard's stop, and so must the command.
fn what_nobody_could_let_go_on_is_not_stopped(scene: &Scene) {
    let tmux = Tmux::start(scene);
    scene.gate("go");
    let line = format!("{}; read x < $D/go; echo > $D/end", announce("pid"));
    let script = format!("{}; exec \"$LK\" run --lease 5 job -c '{line}'", announce("run"));
    std::fs::write(scene.path("script"), script).unwrap();
    tmux.enter("tmux new-window 'sh script 2> errors'");
    let (run, command) = (scene.process("run"), scene.process("pid"));
    // Stopped by hand it stays so, and its lock is kept: whoever did it will let it go on.
    command.signal(Signal::STOP);
    eventually("its stop", || command.is_stopped());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(6_000) {
        scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    }
    assert!(command.is_stopped() && !run.is_stopped());
    command.signal(Signal::CONT);
    eventually("it to go on", || !command.is_stopped());
    tmux.press("C-z");
    // It goes on after the stop, or was never stopped: either way it reads on.
    scene.open_gate("go");
    appears(scene, "end");
    command.dies();
}

fn a_terminal_that_goes_away_ends_the_command_and_frees_the_lock(scene: &Scene) {
    let tmux = Tmux::start(scene);
    tmux.enter(&format!("lk run job -c '{}'", sleeper()));
    let command = scene.process("pid");
    let run = command.parent();
    drop(tmux);
    command.dies();
    run.dies();
    scene.assert_free("job");
}
