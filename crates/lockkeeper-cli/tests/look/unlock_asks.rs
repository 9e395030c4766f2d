//! Taking a lock away after a question.

use lockkeeper::LostReason;

use crate::support::{PATIENCE, Stand, eventually, myself};
use crate::terminal::Terminal;

#[test]
fn a_yes_is_enough_even_if_the_holder_runs() {
    let stand = Stand::redis();
    let client = stand.client();
    let guard = client.lock("a").lock().unwrap();
    eventually("since when is known", || stand.inspected("a")["since"].is_string().then_some(()));
    for answer in ["y", "YES"] {
        let guard = if guard.is_lost() { &client.lock("a").lock().unwrap() } else { &guard };
        let terminal = Terminal::run(&stand, 150, &["unlock", "a", "--reason", "stuck"]);
        let screen = terminal.shows("[y/N]");
        assert!(screen.contains("\"a\" is a lock and held by\n"), "{screen}");
        assert!(screen.contains(&format!("  {} (last seen ", myself())), "{screen}");
        assert!(screen.contains("it is notified at once and has to stop"), "{screen}");
        let asked = screen.trim_end().lines().last().unwrap();
        assert_eq!(asked, format!("Take \"a\" away from {}? [y/N]", myself()));
        assert!(!guard.is_lost(), "not before the answer");
        terminal.types(answer);
        let (screen, code) = terminal.ended();
        assert_eq!(code, 0, "{screen}");
        assert!(screen.contains("\"a\" was taken away from"), "{screen}");
        assert_eq!(guard.wait_lost(PATIENCE), Some(LostReason::Revoked("stuck".to_owned())));
    }
}

#[test]
fn anything_else_is_a_no() {
    let stand = Stand::redis();
    stand.stranger_holds("a", 1);
    for answer in ["", "n", "yep", "no"] {
        let terminal = Terminal::run(&stand, 100, &["unlock", "a", "--force"]);
        let screen = terminal.shows("[y/N]");
        assert!(screen.contains("not known to be alive"), "{screen}");
        assert!(screen.contains("it is not notified: it notices at its next renewal"), "{screen}");
        terminal.types(answer);
        let (screen, code) = terminal.ended();
        assert_eq!(code, 75, "{screen}");
        assert!(screen.contains("nothing was changed"), "{screen}");
        assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 1);
    }
}

#[test]
fn the_question_is_put_again_if_others_have_it_by_then() {
    let stand = Stand::redis();
    let first = stand.stranger_holds("a", 1);
    let terminal = Terminal::run(&stand, 100, &["unlock", "a"]);
    assert!(terminal.shows("[y/N]").contains(&first));
    stand.server().cli(&["DEL", "a"]).ok();
    let second = stand.stranger_holds("a", 2);
    terminal.types("y");
    let screen = terminal.shows("It has changed hands meanwhile.");
    assert!(terminal.shows(&format!("away from {second}?")).contains(&second), "{screen}");
    assert_eq!(stand.server().cli(&["HGET", "a", &second]).int(), 1, "not on the first answer");
    terminal.types("y");
    let (screen, code) = terminal.ended();
    assert_eq!(code, 0, "{screen}");
    assert_eq!(stand.server().cli(&["EXISTS", "a"]).int(), 0);
}

#[test]
fn a_lock_that_was_given_back_meanwhile_is_left_alone() {
    let stand = Stand::redis();
    stand.stranger_holds("a", 1);
    let terminal = Terminal::run(&stand, 100, &["unlock", "a"]);
    terminal.shows("[y/N]");
    stand.server().cli(&["DEL", "a"]).ok();
    terminal.types("y");
    let (screen, code) = terminal.ended();
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("\"a\" is free"), "{screen}");
}

#[test]
fn a_free_lock_raises_no_question() {
    let stand = Stand::redis();
    let terminal = Terminal::run(&stand, 100, &["unlock", "a"]);
    let (screen, code) = terminal.ended();
    assert_eq!((screen.trim(), code), ("\"a\" is free: there was nothing to take away", 0));
}
