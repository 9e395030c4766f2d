//! However `watch` ends or is stopped, it restores the terminal.

use rustix::process::{Signal, kill_process};

use crate::support::Stand;
use crate::terminal::Terminal;

const SIZE: (u16, u16) = (100, 16);

fn watching(stand: &Stand) -> Terminal {
    let terminal = Terminal::open(stand, SIZE);
    terminal.run("lk watch --interval 100ms");
    terminal.shows("no locks");
    assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "1 0", "alternate screen");
    terminal
}

#[test]
fn after_every_key_that_quits() {
    let stand = Stand::file();
    for key in ["q", "Escape", "C-c"] {
        let terminal = watching(&stand);
        terminal.press(key);
        terminal.restored(0);
    }
}

#[test]
fn after_every_signal_that_ends_watch() {
    let stand = Stand::file();
    for (signal, code) in
        [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        let terminal = watching(&stand);
        kill_process(terminal.binary(), signal).expect("it runs");
        terminal.restored(code);
    }
}

/// Release builds have no such key.
#[cfg(debug_assertions)]
#[test]
fn after_a_panic_whose_message_is_visible() {
    let stand = Stand::file();
    let terminal = watching(&stand);
    terminal.press("C-p");
    let screen = terminal.restored(70);
    assert!(screen.contains("Ctrl-P panics in a debug build"), "{screen}");
}

#[test]
fn while_stopped_and_after_resuming() {
    let stand = Stand::file();
    let terminal = watching(&stand);
    let pid = terminal.binary();
    let stopped = |what: &str| {
        terminal.shows("Stopped");
        assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "0 1", "{what}");
        // The shell has the foreground, with echo.
        terminal.enter("echo he''re");
        terminal.shows("here");
        terminal.enter("clear; fg");
        terminal.shows("no locks");
        assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "1 0", "{what}");
    };
    terminal.press("C-z");
    stopped("a key");
    kill_process(pid, Signal::TSTP).expect("it runs");
    stopped("a signal");
    terminal.types("?");
    terminal.shows("force-release the lock");
    terminal.types("x");
    terminal.types("q");
    terminal.hides("? help");
    assert_eq!(terminal.state("#{alternate_on} #{cursor_flag}"), "0 1");
}

/// SIGSTOP cannot be handled, but the resume after it can.
#[test]
fn after_a_sigstop() {
    let stand = Stand::file();
    let terminal = watching(&stand);
    let pid = terminal.binary();
    kill_process(pid, Signal::STOP).expect("it runs");
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
fn an_invalid_store_is_reported_on_the_normal_screen() {
    let stand = Stand::file();
    let terminal = Terminal::open(&stand, SIZE);
    terminal.run("lk watch --url nonsense:x");
    let screen = terminal.restored(64);
    assert!(screen.contains("unknown store"), "{screen}");
}
