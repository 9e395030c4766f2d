//! However `watch` ends or is stopped, the terminal is as it was.

use rustix::process::{Signal, kill_process};

use crate::support::Stand;
use crate::terminal::Terminal;

const SIZE: (u16, u16) = (100, 16);

fn watching(stand: &Stand) -> Terminal {
    let terminal = Terminal::open(stand, SIZE);
    terminal.run("lk watch --interval 100ms");
    terminal.shows("no locks");
    assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "1 0", "the screen is its own");
    terminal
}

#[test]
fn after_every_key_that_ends_it() {
    let stand = Stand::file();
    for key in ["q", "Escape", "C-c"] {
        let terminal = watching(&stand);
        terminal.press(key);
        terminal.restored(0);
    }
}

#[test]
fn after_every_signal_that_ends_it() {
    let stand = Stand::file();
    for (signal, code) in
        [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        let terminal = watching(&stand);
        kill_process(terminal.binary(), signal).expect("it is there");
        terminal.restored(code);
    }
}

/// A build for users has no key for it.
#[cfg(debug_assertions)]
#[test]
fn after_a_panic_which_can_be_read() {
    let stand = Stand::file();
    let terminal = watching(&stand);
    terminal.press("C-p");
    let screen = terminal.restored(70);
    assert!(screen.contains("a panic, as ordered"), "{screen}");
}

#[test]
fn while_it_is_stopped_and_again_after_it_went_on() {
    let stand = Stand::file();
    let terminal = watching(&stand);
    let pid = terminal.binary();
    let stopped = |what: &str| {
        terminal.shows("Stopped");
        assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "0 1", "{what}");
        // The shell that reads this is in the foreground, with an echo.
        terminal.enter("echo he''re");
        terminal.shows("here");
        terminal.enter("clear; fg");
        terminal.shows("no locks");
        assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "1 0", "{what}");
    };
    terminal.press("C-z");
    stopped("a key");
    kill_process(pid, Signal::TSTP).expect("it is there");
    stopped("a signal");
    terminal.types("?");
    terminal.shows("take the lock away from its holder");
    terminal.types("x");
    terminal.types("q");
    terminal.hides("? help");
    assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "0 1");
}

/// Nothing can be done about SIGSTOP itself, but all about what comes after it.
#[test]
fn after_a_stop_that_could_not_be_seen_coming() {
    let stand = Stand::file();
    let terminal = watching(&stand);
    let pid = terminal.binary();
    kill_process(pid, Signal::STOP).expect("it is there");
    terminal.shows("Stopped");
    terminal.enter("clear; fg");
    terminal.until("the view", |screen| {
        screen.contains("no locks") && screen.contains("? help") && !screen.contains("Stopped")
    });
    terminal.types("q");
    terminal.hides("? help");
    assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "0 1");
    terminal.enter("[[ $(stty -g) == *:* ]] && stty -a | grep -q ' icanon' && echo sa''ne");
    terminal.shows("sane");
}

#[test]
fn a_store_that_makes_no_sense_is_told_on_the_usual_screen() {
    let stand = Stand::file();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run("lk watch --url nonsense:x");
    let screen = terminal.restored(64);
    assert!(screen.contains("unknown store"), "{screen}");
}
