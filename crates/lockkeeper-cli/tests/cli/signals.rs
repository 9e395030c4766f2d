//! Signals to `run`, and what they do to the command.

use rustix::process::Signal;

use crate::support::{Scene, announce, eventually, on_every_store, sleeper};

on_every_store! {
    signals_are_passed_on_to_all_of_the_group,
    a_command_that_ignores_a_signal_goes_on,
    a_signal_ends_what_it_ends,
    a_stopped_command_without_a_terminal_keeps_its_lock,
}

fn signals_are_passed_on_to_all_of_the_group(scene: &Scene) {
    let signals = ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH", "CONT"];
    let traps: String =
        signals.map(|signal| format!("trap 'echo {signal} >> $D/$0' {signal}; ")).concat();
    let each = format!(
        "{traps}: > $D/$0; echo ready > $D/$0.ready; i=0; while [ $((i+=1)) -le 3000 ]; do sleep 0.02; done"
    );
    std::fs::write(scene.path("each.sh"), each).unwrap();
    let line = "sh -c '. $D/each.sh' below & . $D/each.sh";
    let run = scene.start(&["job", "-c", line]);
    scene.evidence("below.ready");
    scene.evidence("sh.ready");
    for signal in signals {
        let number = match signal {
            "INT" => Signal::INT,
            "TERM" => Signal::TERM,
            "HUP" => Signal::HUP,
            "QUIT" => Signal::QUIT,
            "USR1" => Signal::USR1,
            "USR2" => Signal::USR2,
            "WINCH" => Signal::WINCH,
            _ => Signal::CONT,
        };
        run.pid().signal(number);
        for file in ["sh", "below"] {
            // A background process of a shell without job control ignores these two from its start.
            if file == "below" && matches!(signal, "INT" | "QUIT") {
                continue;
            }
            eventually(&format!("{signal} in {file}"), || {
                scene.evidence_now(file).contains(signal)
            });
        }
    }
    assert!(run.pid().is_alive());
}

fn a_command_that_ignores_a_signal_goes_on(scene: &Scene) {
    let line = format!(
        "trap '' TERM; {}; while [ ! -e $D/go ]; do sleep 0.02; done; exit 5",
        announce("pid")
    );
    let run = scene.start(&["-v", "job", "-c", &line]);
    let command = scene.process("pid");
    run.pid().signal(Signal::TERM);
    run.says("SIGTERM");
    assert!(command.is_alive() && run.pid().is_alive());
    std::fs::write(scene.path("go"), "").unwrap();
    run.outcome().assert_code(5);
    scene.assert_free("job");
}

fn a_signal_ends_what_it_ends(scene: &Scene) {
    for signal in [Signal::TERM, Signal::INT, Signal::USR2] {
        let run = scene.start(&["job", "-c", &sleeper()]);
        scene.process("pid");
        run.pid().signal(signal);
        run.outcome().assert_code(128 + signal.as_raw());
        scene.assert_free("job");
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

fn a_stopped_command_without_a_terminal_keeps_its_lock(scene: &Scene) {
    let mut command = std::process::Command::new("setsid");
    command.args(["-w", env!("CARGO_BIN_EXE_lockkeeper"), "run", "--lease", "5", "job", "-c"]);
    command.arg(format!("{}; while [ ! -e $D/go ]; do sleep 0.02; done", announce("pid")));
    scene.surround(&mut command);
    let run = scene.launch(command);
    let stopped = scene.process("pid");
    stopped.signal(Signal::STOP);
    eventually("its stop", || stopped.is_stopped());
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(6_000) {
        scene.run(&["-n", "job", "--", "true"]).assert_code(75);
    }
    std::fs::write(scene.path("go"), "").unwrap();
    stopped.signal(Signal::CONT);
    run.outcome().assert_quiet("");
}
