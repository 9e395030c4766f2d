//! The checker passes what a lock may do and names what it may not.

use testkit::History;

#[track_caller]
fn assert_violation(history: &History, expected: &str) {
    let violations = history.check().expect_err("the history must be rejected");
    assert_eq!(violations.lines().count(), 1, "{violations}");
    assert!(violations.ends_with(expected), "{violations}");
}

#[test]
fn holders_may_follow_each_other_after_release_or_loss() {
    let history = History::new();
    history.granted("lock", "a", Some(1));
    history.released("lock", "a");
    history.granted("lock", "b", Some(2));
    history.lost("lock", "b");
    history.granted("lock", "c", Some(5));
    history.released("lock", "b");
    assert_eq!(history.check(), Ok(()));
    assert_eq!(history.grants(), 3);
}

#[test]
fn two_holders_of_one_lock_are_a_violation() {
    let history = History::new();
    history.granted("lock", "a", None);
    history.granted("other", "b", None);
    history.granted("lock", "b", None);
    assert_violation(&history, "lock: granted to b while a held it");
}

#[test]
fn a_holder_may_hold_several_times_and_must_release_as_often() {
    let history = History::new();
    history.granted("lock", "a", Some(1));
    history.granted("lock", "a", Some(1));
    history.released("lock", "a");
    history.clone().granted("lock", "b", Some(2));
    assert_violation(&history, "lock: granted to b while a held it");
}

#[test]
fn a_loss_ends_all_holds_of_its_holder() {
    let history = History::new();
    history.granted("lock", "a", None);
    history.granted("lock", "a", None);
    history.lost("lock", "a");
    history.granted("lock", "b", None);
    assert_eq!(history.check(), Ok(()));
}

#[test]
fn tokens_that_do_not_grow_are_a_violation() {
    for (second, holder) in [(7, "b"), (6, "b"), (7, "a")] {
        let history = History::new();
        history.granted("lock", "a", Some(7));
        history.released("lock", "a");
        history.granted("lock", holder, Some(second));
        assert_violation(&history, &format!("lock: token {second} of {holder} after 7 of a"));
    }
}

#[test]
fn a_release_without_a_hold_is_a_violation() {
    let history = History::new();
    history.granted("lock", "a", None);
    history.released("lock", "a");
    history.released("lock", "a");
    assert_violation(&history, "lock: released by a, who did not hold it");
}

#[test]
#[should_panic(expected = "granted to b while a held it")]
fn an_assertion_lists_the_violations() {
    let history = History::new();
    history.granted("lock", "a", None);
    history.granted("lock", "b", None);
    history.assert_valid();
}
