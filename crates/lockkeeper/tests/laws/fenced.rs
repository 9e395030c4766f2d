//! Fencing tokens: each token is greater than all before.

use std::time::Duration;

use lockkeeper::backend::{Acquire, Attempt, Fenced, Resource};
use lockkeeper::{
    AnyGuard, AnyLock, Fence, FencedGuard, FencedLock, Hold, Kind, LostReason, OwnerId,
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::store::{Store, one, pair, poll_once};

#[track_caller]
fn token(guard: &Hold) -> u64 {
    guard.token().expect("a fenced lock issues tokens")
}

/// Takes it and gives it back.
async fn next(lock: &(impl Clone + Into<AnyLock>)) -> u64 {
    let lock: AnyLock = lock.clone().into();
    let guard = lock.lock().await.unwrap();
    let token = token(&guard);
    guard.release().await.unwrap();
    token
}

#[track_caller]
fn assert_growing(tokens: &[u64]) {
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

pub(crate) async fn each_holder_has_a_greater_token(store: &Store) {
    let (ours, theirs) = pair::<FencedLock>(store).await;
    let (mut tokens, fence) = (Vec::new(), Fence::new());
    for _ in 0..10 {
        tokens.extend([next(&ours).await, next(&theirs).await]);
        assert!(tokens.iter().rev().take(2).rev().all(|token| fence.admit(*token).is_ok()));
    }
    assert_growing(&tokens);
    assert!(fence.admit(tokens[18]).is_err(), "the holder before the last is refused");
}

pub(crate) async fn names_have_sequences_of_their_own(store: &Store) {
    let client = store.client().await;
    let (a, b) = (client.fenced_lock(store.name("a")), client.fenced_lock(store.name("b")));
    let mut tokens = (Vec::new(), Vec::new());
    for _ in 0..5 {
        tokens.0.push(next(&a).await);
        tokens.1.push(next(&b).await);
    }
    assert_growing(&tokens.0);
    assert_growing(&tokens.1);
}

/// The token comes with the handoff, which publishes nothing.
pub(crate) async fn a_handoff_issues_a_greater_token(store: &Store) {
    let lock = one::<FencedLock>(store).await;
    let mut guard = lock.lease(store.long()).lock().await.unwrap();
    let mut waiters: Vec<_> = (0..20).map(|_| Box::pin(lock.lock())).collect();
    assert!(waiters.iter_mut().all(|waiter| poll_once(waiter).is_pending()));
    let mut tokens = vec![token(&guard)];
    for waiter in waiters {
        guard.release().await.unwrap();
        guard = waiter.await.unwrap();
        tokens.push(token(&guard));
    }
    guard.release().await.unwrap();
    tokens.push(next(&lock).await);
    assert_growing(&tokens);
}

/// The caller has not seen the first answer.
pub(crate) async fn a_repeated_request_issues_a_greater_token(store: &Store) {
    let (backend, client) = (store.backend().await, Uuid::new_v4());
    let kinds = if store.is_quorum() { 1..2 } else { 0..3 };
    for kind in [Kind::Fair, Kind::Lock, Kind::Write].into_iter().take(kinds.end).skip(kinds.start)
    {
        let resource = Resource { kind, name: store.name(kind.as_str()).as_str().into() };
        let [first, second] = [(); 2].map(|()| OwnerId::fresh(client));
        let acquire = Acquire::new(resource, first, store.long().as_millis() as u64);
        let acquire = Acquire { fenced: Some(Fenced { ttl: None }), ..acquire };
        let handoff = Acquire { owner: second, from: Some(first), ..acquire.clone() };
        let mut requests = vec![&acquire; 2];
        if kind != Kind::Fair {
            requests.extend([&handoff; 2]);
        }
        let mut tokens = Vec::new();
        for request in requests {
            match backend.acquire(request.clone()).await {
                Ok(Attempt::Granted { token: Some(token) }) => tokens.push(token),
                answer => panic!("{kind}: {answer:?}"),
            }
        }
        assert_growing(&tokens);
    }
}

/// The waiter asked for no token, and the holder before it for one; and the other way round.
pub(crate) async fn a_handoff_issues_a_token_only_to_a_fenced_waiter(store: &Store) {
    let client = store.client().await;
    let (fenced, plain) = (client.fenced_lock(store.name("it")), client.lock(store.name("it")));
    let guard = fenced.lease(store.long()).lock().await.unwrap();
    let first = token(&guard);
    let (mut second, mut third) = (Box::pin(plain.lock()), Box::pin(fenced.lock()));
    assert!(poll_once(&mut second).is_pending() && poll_once(&mut third).is_pending());
    guard.release().await.unwrap();
    let guard = second.await.unwrap();
    assert_eq!(lockkeeper::Hold::token(&guard), None);
    guard.release().await.unwrap();
    let guard = third.await.unwrap();
    assert!(token(&guard) > first);
    guard.release().await.unwrap();
}

pub(crate) async fn after_a_force_release_the_next_token_is_greater(store: &Store) {
    let (ours, theirs) = pair::<FencedLock>(store).await;
    let victim = ours.lease(store.long()).lock().await.unwrap();
    assert!(theirs.force_unlock("").await.unwrap());
    assert!(next(&theirs).await > token(&victim));
}

pub(crate) async fn after_an_expired_lease_the_next_token_is_greater(store: &Store) {
    let (ours, theirs) = pair::<FencedLock>(store).await;
    let slow = ours.lease(store.lease()).lock().await.unwrap();
    let fence = Fence::new();
    assert!(fence.admit(token(&slow)).is_ok());
    let guard = theirs.lock().await.unwrap();
    assert!(fence.admit(token(&guard)).is_ok());
    let late = fence.admit(token(&slow)).expect_err("what the slow one does now is too late");
    assert_eq!((late.token, late.highest), (token(&slow), token(&guard)));
    guard.release().await.unwrap();
}

pub(crate) async fn reentries_share_the_token(store: &Store) {
    let client = store.client().await;
    let fair = client.fair_lock(store.name("fair")).fenced().as_owner(&client.new_owner());
    let lock = client.lock(store.name("lock")).fenced().as_owner(&client.new_owner());
    let fenced = client.fenced_lock(store.name("fenced")).as_owner(&client.new_owner());
    let first = [fair.lock().await, lock.lock().await, fenced.lock().await].map(Result::unwrap);
    let tokens = first.each_ref().map(FencedGuard::token);
    let again = [fair.lock().await, lock.lock().await, fenced.lock().await].map(Result::unwrap);
    for ((first, again), held) in first.into_iter().zip(again).zip(tokens) {
        let third = first.reenter().await.unwrap();
        assert_eq!([&first, &again, &third].map(FencedGuard::token), [held; 3]);
        assert_eq!(lockkeeper::Hold::token(&first), Some(held));
        // Whatever the order in which they go.
        first.release().await.unwrap();
        assert_eq!([&again, &third].map(FencedGuard::token), [held; 2]);
        third.release().await.unwrap();
        again.release().await.unwrap();
    }
    assert!(next(&fenced).await > tokens[2]);
}

pub(crate) async fn a_guard_of_an_unfenced_lock_has_no_token(store: &Store) {
    let client = store.client().await;
    for guard in [
        AnyGuard::from(client.lock(store.name("lock")).lock().await.unwrap()),
        client.mutex(store.name("mutex")).lock().await.unwrap().into(),
        client.fair_lock(store.name("fair")).lock().await.unwrap().into(),
        client.spin_lock(store.name("spin")).lock().await.unwrap().into(),
    ] {
        assert_eq!((guard.token(), lockkeeper::Hold::token(&guard)), (None, None));
        guard.release().await.unwrap();
    }
}

/// One name is one resource, whichever way it is locked.
pub(crate) async fn all_fenced_locks_of_one_name_share_the_sequence(store: &Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let name = store.name("lock");
    let mut tokens = Vec::new();
    for client in [&ours, &theirs, &ours] {
        tokens.push(next(&client.fenced_lock(&name)).await);
        tokens.push(next(&client.lock(&name).fenced()).await);
        tokens.push(next(&client.fair_lock(&name).fenced()).await);
        // Locks without a token do not affect the sequence.
        client.lock(&name).lock().await.unwrap().release().await.unwrap();
        client.fair_lock(&name).lock().await.unwrap().release().await.unwrap();
    }
    assert_growing(&tokens);
}

pub(crate) async fn waiters_of_a_fair_lock_have_growing_tokens(store: &Store) {
    let (ours, theirs) = (store.client().await, store.client().await);
    let name = store.name("lock");
    let guard = ours.fair_lock(&name).fenced().lease(store.long()).lock().await.unwrap();
    let first = token(&guard);
    let waiting = [&theirs, &ours, &theirs].map(|client| {
        let lock = client.fair_lock(&name).fenced();
        tokio::spawn(async move { next(&lock).await })
    });
    guard.release().await.unwrap();
    let mut tokens = vec![first];
    for waiter in waiting {
        tokens.push(store.promptly("a waiter", waiter).await.unwrap());
    }
    tokens[1..].sort_unstable();
    assert_growing(&tokens);
}

pub(crate) async fn the_work_receives_the_token(store: &Store) {
    let lock = one::<FencedLock>(store).await;
    let before = next(&lock).await;
    let ran = lock.run(async |hold| hold.token().expect("it has the guard's")).await.unwrap();
    let tried = lock
        .try_run_for(Duration::ZERO, async |hold| hold.token().expect("it has the guard's"))
        .await
        .unwrap();
    assert_growing(&[before, ran.output, tried.expect("it is free").output, next(&lock).await]);
}

pub(crate) async fn a_token_outlives_the_lock(store: &Store) {
    let lock = one::<FencedLock>(store).await;
    let guard = lock.lease(store.lease()).lock().await.unwrap();
    let (held, hold) = (token(&guard), lockkeeper::Hold::clone(&guard));
    assert_eq!(store.signalled(guard.lost()).await, LostReason::Expired);
    assert_eq!((token(&guard), hold.token()), (held, Some(held)), "to be shown to a fence");
}

/// The store may forget the sequence some time after the last token: its clock goes on.
pub(crate) async fn tokens_grow_after_their_record_expired(store: &Store) {
    let kept = Duration::from_secs(1);
    let client = store.client_with(store.options().token_ttl(kept)).await;
    let fair = client.fair_lock(store.name("lock")).fenced();
    let tokens = [next(&client.fenced_lock(store.name("lock"))).await, next(&fair).await];
    sleep(kept * 5 / 4).await;
    let later = [next(&client.fenced_lock(store.name("lock"))).await, next(&fair).await];
    assert_growing(&[tokens, later].concat());
}

#[test]
fn a_fence_admits_what_is_not_lower() {
    let fence = Fence::starting_at(3);
    assert_eq!((fence.admit(5), fence.admit(5)), (Ok(()), Ok(())));
    let stale = fence.admit(4).unwrap_err();
    assert_eq!((stale.token, stale.highest, fence.highest()), (4, 5, 5));
}
