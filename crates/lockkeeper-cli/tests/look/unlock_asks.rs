//! `unlock` with a confirmation.

use lockkeeper::LostReason;
use lockkeeper::blocking::Wait;

use crate::support::{Stand, eventually, myself};
use crate::terminal::Terminal;

#[test]
fn a_yes_force_releases_even_if_the_holder_runs() {
    let stand = Stand::redis();
    let client = stand.client();
    let guard = client.lock("a").lock().wait().unwrap();
    eventually("its start is known", || stand.inspected("a")["since"].is_string().then_some(()));
    for answer in ["y", "YES"] {
        let guard = if guard.is_lost() { &client.lock("a").lock().wait().unwrap() } else { &guard };
        let terminal = Terminal::running(&stand, 150, "lk unlock a --reason stuck");
        let screen = terminal.shows("[y/N]");
        assert!(screen.contains("lock \"a\" (lock) is held by\n"), "{screen}");
        assert!(screen.contains(&format!("  {} (last seen ", myself())), "{screen}");
        assert!(screen.contains("the holder is notified at once and must stop"), "{screen}");
        let question = screen.trim_end().lines().last().unwrap();
        assert_eq!(question, format!("force-release lock \"a\", held by {}? [y/N]", myself()));
        assert!(!guard.is_lost(), "not before the answer");
        terminal.enter(answer);
        let (screen, code) = terminal.ended();
        assert_eq!(code, 0, "{screen}");
        assert!(screen.contains("lock \"a\" was force-released from"), "{screen}");
        assert_eq!(guard.lost().wait(), LostReason::Revoked("stuck".to_owned()));
    }
}

#[test]
fn any_other_answer_declines() {
    let stand = Stand::redis();
    stand.java_holds("a", 1);
    for answer in ["", "n", "yep", "no"] {
        let terminal = Terminal::running(&stand, 100, "lk unlock a --force");
        let screen = terminal.shows("[y/N]");
        assert!(screen.contains("not announced by a lockkeeper client"), "{screen}");
        assert!(
            screen.contains("the holder is not notified; it notices at its next renewal"),
            "{screen}"
        );
        terminal.enter(answer);
        let (screen, code) = terminal.ended();
        assert_eq!(code, 75, "{screen}");
        assert!(screen.contains("nothing was changed"), "{screen}");
        assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 1);
    }
}

#[test]
fn the_question_is_repeated_if_the_holders_have_changed() {
    let stand = Stand::redis();
    let first = stand.java_holds("a", 1);
    let terminal = Terminal::running(&stand, 100, "lk unlock a");
    assert!(terminal.shows("[y/N]").contains(&first));
    stand.server().cli(&["DEL", "a"]).ok();
    let second = stand.java_holds("a", 2);
    terminal.enter("y");
    let screen = terminal.shows("the holders have changed");
    assert!(terminal.shows(&format!("held by {second}?")).contains(&second), "{screen}");
    assert_eq!(stand.server().cli(&["HGET", "a", &second]).int(), 1, "not on the first answer");
    terminal.enter("y");
    let (screen, code) = terminal.ended();
    assert_eq!(code, 0, "{screen}");
    assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 0);
}

#[test]
fn a_lock_released_before_the_answer_stays_free() {
    let stand = Stand::redis();
    stand.java_holds("a", 1);
    let terminal = Terminal::running(&stand, 100, "lk unlock a");
    terminal.shows("[y/N]");
    stand.server().cli(&["DEL", "a"]).ok();
    terminal.enter("y");
    let (screen, code) = terminal.ended();
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("\"a\" is free"), "{screen}");
}

#[test]
fn a_free_lock_needs_no_confirmation() {
    let stand = Stand::redis();
    let terminal = Terminal::running(&stand, 100, "lk unlock a");
    let (screen, code) = terminal.ended();
    assert_eq!((screen.trim(), code), ("lock \"a\" is free: there is nothing to release", 0));
}
