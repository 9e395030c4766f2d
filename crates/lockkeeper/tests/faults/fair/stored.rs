//! What is stored and published while only waiters of this library wait, byte for byte.

use lockkeeper::backend::{Acquire, Backend, Kind, Renew, Renewed, Resource};
use lockkeeper::stores::Redis;
use lockkeeper::{ClientOptions, OwnerId};

use super::support::*;

/// Two times of the server that are the same but for its rounding.
#[track_caller]
fn assert_same(found: i64, expected: i64) {
    assert!((found - expected).abs() <= 3, "{found} is not {expected}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_stored_in_the_list_and_timeouts_of_redisson_with_a_channel_each() {
    for name in ["order:7", "{eu}:order:7", "foo{bar", "mit Umläuten"] {
        let rig = Rig::new(name);
        let guard = rig.held().await;
        assert_eq!(rig.keys(), [name], "a lock for which nobody waits has no queue");
        let (one, two) = (rig.lock().await, rig.lock().await);
        let ends = rig.ends();
        let mut waiting = Vec::new();
        for (number, lock) in [&one, &two, &one].into_iter().enumerate() {
            let (id, task) = rig.waiter(lock).await;
            let before = rig.now();
            assert_same(rig.scores()[&id], ends + WAIT * (number as i64 + 1));
            let heard = rig.seen()[&id];
            assert!((before - 2_000..=before).contains(&heard), "{heard} is not now, {before}");
            waiting.push((id, task));
        }
        let ids: Vec<_> = waiting.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(rig.queue(), ids);
        assert_eq!((rig.scores().len(), rig.seen().len()), (3, 3));
        for (key, kind) in
            [(rig.queue_key(), "list"), (rig.timeouts_key(), "zset"), (rig.seen_key(), "zset")]
        {
            assert_eq!(rig.cmd(&["TYPE", &key]).text(), kind);
        }
        // If all of them die, what they leave ends.
        for key in [rig.queue_key(), rig.timeouts_key(), rig.seen_key()] {
            let left = rig.cmd(&["PTTL", &key]).int();
            assert!((30_000..=60_000).contains(&left), "{key} for {left} ms");
        }
        assert_eq!(rig.listeners(&rig.channel()), 0, "each has a channel of its own");
        assert_eq!(rig.ends(), ends, "waiting lengthens nothing");

        let mut listener = rig.listen(&ids);
        let mut guard = guard;
        let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
        for (number, (id, task)) in waiting.into_iter().enumerate() {
            let before = rig.scores();
            guard.release().await.unwrap();
            guard = within(SOON, "its turn", task).await;
            assert_eq!(guard.owner_id().to_string(), id);
            assert_eq!(rig.holder(), Some(id.clone()));
            assert_eq!(rig.told(&mut listener), [id.as_str()], "only the next is told");
            assert_eq!(rig.queue(), ids[number + 1..]);
            assert_eq!(rig.seen().len(), rig.queue().len(), "it waits no more");
            let after = rig.scores();
            assert_eq!(after.get(&id), None, "it waits no more");
            let ends = rig.ends();
            for (place, id) in (1..).zip(&ids[number + 1..]) {
                let (least, most) = (ends + WAIT * place, before[id]);
                // The head is lowered by the take, the others when they next speak.
                let most = if place == 1 { least } else { most };
                let in_place = least - 1_003..=most.max(least) + 1_003;
                assert!(
                    in_place.contains(&after[id]),
                    "{place}: {} not in {in_place:?}",
                    after[id]
                );
            }
        }
        guard.release().await.unwrap();
        assert_eq!(rig.told(&mut listener), [""], "nobody waits: the channel of the plain lock");
        assert_eq!(rig.keys(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_leaves_removes_only_its_own_position() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let (one, two) = (rig.lock().await, rig.lock().await);
    let (first, first_task) = rig.waiter(&one).await;
    let (second, second_task) = rig.waiter(&two).await;
    let (third, third_task) = rig.waiter(&one).await;
    let mut listener = rig.listen(&[&first, &second, &third]);
    let scores = rig.scores();
    cancel(second_task).await;
    eventually(SOON, "it has left", || rig.queue() == [first.clone(), third.clone()]).await;
    assert_eq!(rig.seen().keys().collect::<Vec<_>>().len(), 2);
    let mut left = scores.clone();
    left.remove(&second);
    assert_eq!(rig.scores(), left, "nobody comes up where only ours wait");
    assert!(two.try_lock_for(ms(1_000)).await.unwrap().is_none());
    eventually(SOON, "it has left", || rig.queue().len() == 2).await;
    assert_eq!((rig.scores().len(), rig.seen().len()), (2, 2));
    assert!(two.try_lock().await.unwrap().is_none());
    assert_eq!(rig.queue().len(), 2, "who does not wait gets no place");
    assert_eq!(rig.told(&mut listener), [""; 0], "nothing became free");
    guard.release().await.unwrap();
    within(SOON, "the first", first_task).await.release().await.unwrap();
    within(SOON, "the third", third_task).await.release().await.unwrap();
    assert_eq!(rig.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_wakes_the_next_waiter_and_keeps_the_queue() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    let lock = rig.lock().await;
    let (first, first_task) = rig.waiter(&lock).await;
    let (second, second_task) = rig.waiter(&lock).await;
    let mut listener = rig.listen(&[&first, &second]);
    assert_eq!(lock.inspect().await.unwrap().queue.len(), 2);
    assert!(lock.force_unlock("").await.unwrap());
    let holder = within(SOON, "the first", first_task).await;
    assert_eq!(holder.owner_id().to_string(), first);
    assert_eq!(rig.told(&mut listener), [first, String::new()]);
    assert_eq!(rig.queue(), [second]);
    assert!(guard.release().await.is_err(), "it was taken away");
    holder.release().await.unwrap();
    within(SOON, "the second", second_task).await.release().await.unwrap();
    rig.cmd(&["DEL", &rig.key("lockkeeper_forced")]);
    assert_eq!(rig.keys(), [""; 0]);
}

/// Three who wait, of whom nobody has heard for ten seconds; behind them one who has just come, or
/// not.
async fn silent(rig: &Rig, newcomer: bool) -> (Redis, Resource, [OwnerId; 3]) {
    let store = Redis::connect(&rig.server.url(), &ClientOptions::new()).await.unwrap();
    let resource = Resource { kind: Kind::Fair, name: rig.name.as_str().into() };
    let client = uuid::Uuid::new_v4();
    let owners = [(); 3].map(|()| OwnerId::fresh(client));
    let newcomer = newcomer.then(|| OwnerId::fresh(client));
    for owner in owners.into_iter().chain(newcomer) {
        let acquire = Acquire::new(resource.clone(), owner, 1_000);
        store.acquire(Acquire { waits: true, ..acquire }).await.unwrap();
    }
    for owner in owners {
        let long_ago = (rig.now() - 10_000).to_string();
        rig.cmd(&["ZADD", &rig.seen_key(), &long_ago, &owner.to_string()]);
    }
    (store, resource, owners)
}

/// The answers to waiters that say together that they still wait.
async fn speak(store: &Redis, resource: &Resource, owners: &[OwnerId]) -> Vec<Renewed> {
    let words = owners
        .iter()
        .map(|owner| Renew { waiting: true, ..Renew::new(resource.clone(), *owner, None) });
    let answers = store.renew(words.collect()).await;
    answers.into_iter().map(|answer| answer.expect("reachable")).collect()
}

/// One request speaks for all waiters of a client, and hears all before it drops any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_heartbeat_after_a_long_silence_keep_their_positions() {
    let rig = Rig::new("a");
    let guard = rig.held().await;
    // One waiter sent a heartbeat, so that a silent one is stale.
    let (store, resource, owners) = silent(&rig, true).await;
    let [first, second, third] = owners;
    assert_eq!(
        speak(&store, &resource, &[third, second, first]).await,
        [Renewed::Waiting, Renewed::Waiting, Renewed::Waiting]
    );
    assert_eq!(rig.queue()[..3], owners.map(|owner| owner.to_string()));
    guard.release().await.unwrap();
    assert_eq!(speak(&store, &resource, &[second]).await, [Renewed::Waiting], "not its turn");
    assert_eq!(speak(&store, &resource, &[first]).await, [Renewed::Due]);
}

/// When all waiters were silent, the first heartbeat does not make the others stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_waiter_is_skipped_when_all_were_silent() {
    let rig = Rig::new("a");
    let _guard = rig.held().await;
    let (store, resource, owners) = silent(&rig, false).await;
    assert_eq!(speak(&store, &resource, &owners[2..]).await, [Renewed::Waiting]);
    assert_eq!(rig.queue(), owners.map(|owner| owner.to_string()));
    // Only once: a waiter without a heartbeat after that is stale.
    let watch = Stopwatch::start();
    let dead = owners[..2].iter().map(|owner| owner.to_string()).collect::<Vec<_>>();
    while rig.queue().contains(&dead[0]) {
        assert!(watch.elapsed() < DEATH_AT_WORST, "they are forgiven for ever");
        assert_eq!(speak(&store, &resource, &owners[2..]).await, [Renewed::Waiting]);
        tokio::time::sleep(ms(50)).await;
    }
    assert!(watch.elapsed() > ms(2_000) || watch.stalled(), "{:?}", watch.elapsed());
    assert_eq!(rig.queue(), [owners[2].to_string()]);
}
