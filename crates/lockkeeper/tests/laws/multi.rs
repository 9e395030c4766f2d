//! The multi-lock: all members or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::{AnyLock, Client, Error, Lock, LostReason, MultiGuard, MultiLock, RunError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::decorators::Counting;
use crate::store::{Store, assert_is, eventually, left, poll_once};

/// A multi-lock holds some members while it waits for another for at most this long.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A lease is no shorter than this where the members came one by one.
const ASSEMBLING: Duration = Duration::from_secs(1);

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three plain locks of one client.
fn plain(store: &Store, client: &Client) -> MultiLock {
    MultiLock::new(NAMES.map(|name| client.lock(store.name(name))))
}

/// Three of different kinds, which cannot be taken in one request.
fn mixed(store: &Store, client: &Client) -> MultiLock {
    MultiLock::new([
        AnyLock::from(client.fair_lock(store.name("a"))),
        AnyLock::from(client.fenced_lock(store.name("b"))),
        AnyLock::from(client.spin_lock(store.name("c"))),
    ])
}

/// Both.
fn each(store: &Store, client: &Client) -> [MultiLock; 2] {
    [plain(store, client), mixed(store, client)]
}

/// Which of the three are locked, as another client sees it.
async fn locked(store: &Store, observer: &Client) -> [bool; 3] {
    let is_locked = async |name| observer.lock(store.name(name)).is_locked().await.unwrap();
    [is_locked("a").await, is_locked("b").await, is_locked("c").await]
}

const ALL: [bool; 3] = [true; 3];
const NONE: [bool; 3] = [false; 3];
const ONLY_B: [bool; 3] = [false, true, false];

pub(crate) async fn all_members_are_held_until_the_release(store: &Store) {
    let (client, observer) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let guard = store.promptly("all are free", multi.lock()).await.unwrap();
        assert!(!guard.is_lost() && guard.remaining() > Duration::ZERO);
        assert_eq!(locked(store, &observer).await, ALL);
        for name in NAMES {
            assert!(observer.lock(store.name(name)).try_lock().await.unwrap().is_none());
            assert!(client.lock(store.name(name)).try_lock().await.unwrap().is_none());
        }
        guard.release().await.unwrap();
        assert_eq!(locked(store, &observer).await, NONE);
        let guard = multi.try_lock().await.unwrap().expect("all are free");
        assert_eq!(locked(store, &observer).await, ALL);
        drop(guard);
        eventually("dropping it releases all", async || locked(store, &observer).await == NONE)
            .await;
        let guard = multi.try_lock_for(store.long()).await.unwrap().expect("all are free");
        // The release is not awaited.
        drop(guard.release());
        eventually("and so does this", async || locked(store, &observer).await == NONE).await;
    }
}

pub(crate) async fn the_guards_are_in_the_order_of_the_names(store: &Store) {
    let client = store.client().await;
    let (forth, back) = (["a", "b", "c"], ["c", "a", "b"]);
    let names = NAMES.map(|name| store.name(name));
    for order in [forth, back] {
        let multi = MultiLock::new(order.map(|name| client.lock(store.name(name))));
        assert!(multi.names().map(ToString::to_string).eq(names.clone()), "whatever the order");
        let guard = multi.lock().await.unwrap();
        assert!(guard.members().iter().map(|guard| guard.name()).eq(multi.names()));
        guard.release().await.unwrap();
    }
}

pub(crate) async fn one_busy_member_leaves_the_others_free(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    for name in NAMES {
        let busy = other.lock(store.name(name)).lease(store.long()).lock().await.unwrap();
        for multi in each(store, &client) {
            let tried = store.promptly("one attempt", multi.try_lock()).await.unwrap();
            assert!(tried.is_none());
            let only = NAMES.map(|other| other == name);
            assert_eq!(locked(store, &other).await, only, "the rest is free again at once");
            assert!(multi.try_lock_for(Duration::ZERO).await.unwrap().is_none());
        }
        assert!(!busy.is_lost());
        busy.release().await.unwrap();
    }
}

/// Busy in its own client, where the store need not be asked.
pub(crate) async fn a_member_held_by_the_same_client_leaves_the_others_free(store: &Store) {
    let (client, observer) = (store.client().await, store.client().await);
    let busy = client.lock(store.name("b")).lease(store.long()).lock().await.unwrap();
    for multi in each(store, &client) {
        let tried = store.promptly("one attempt", multi.try_lock()).await.unwrap();
        assert!(tried.is_none());
        assert_eq!(locked(store, &observer).await, ONLY_B);
    }
    busy.release().await.unwrap();
}

pub(crate) async fn the_wait_limit_applies_to_all_members_together(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let busy = other.lock(store.name("b")).lease(store.long()).lock().await.unwrap();
    for multi in each(store, &client) {
        let start = store.timer();
        assert!(multi.try_lock_for(store.lease()).await.unwrap().is_none());
        start.took(store.lease().mul_f64(0.99), store.lease());
        assert_eq!(locked(store, &other).await, ONLY_B, "the rest is free again");
    }
    busy.release().await.unwrap();
}

pub(crate) async fn a_multi_lock_waits_for_its_last_member(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let busy = other.lock(store.name("c")).lease(store.long()).lock().await.unwrap();
        let mut waiting = Box::pin(multi.lock());
        assert!(poll_once(&mut waiting).is_pending());
        let waiting = tokio::spawn(waiting);
        busy.release().await.unwrap();
        let start = store.timer();
        let guard = timeout(store.long(), waiting).await.expect("it gets in").unwrap().unwrap();
        // The pause before it starts anew, at most; a spinning member adds its own.
        start.took(Duration::ZERO, Duration::from_millis(200));
        assert_eq!(locked(store, &other).await, ALL);
        guard.release().await.unwrap();
    }
}

/// Another client acquires a held member though the last one stays busy.
pub(crate) async fn a_multi_lock_does_not_hold_some_members_while_it_waits(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let _busy = other.lock(store.name("c")).lease(store.long()).lock().await.unwrap();
    // One by one: what goes in one request holds nothing meanwhile.
    let waiting = tokio::spawn(mixed(store, &client).lock());
    let a = other.lock(store.name("a"));
    eventually("it has the first of them", async || a.is_locked().await.unwrap()).await;
    let start = store.timer();
    let guard = timeout(store.long(), a.lock()).await.expect("it lets go").unwrap();
    let most = if store.is_paused() { PATIENCE.mul_f64(1.06) } else { PATIENCE * 2 };
    start.took(PATIENCE.mul_f64(0.97) * u32::from(store.is_paused()), most);
    assert!(!waiting.is_finished());
    waiting.abort();
    guard.release().await.unwrap();
}

/// Behind waiters that each hold it for a while, it gives up neither its position nor what it holds.
pub(crate) async fn a_multi_lock_waits_behind_a_queue_that_moves(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let queue = other.fair_lock(store.name("b"));
    let mut tasks = JoinSet::new();
    for ahead in 0..5 {
        let acquiring = queue.lock();
        tasks.spawn(async move {
            let guard = acquiring.await.unwrap();
            tokio::time::sleep(PATIENCE * 2 / 5).await;
            guard.release().await.unwrap();
        });
        eventually("it queues", async || {
            queue.is_locked().await.unwrap() && queue.inspect().await.unwrap().queue.len() == ahead
        })
        .await;
    }
    let multi =
        [AnyLock::from(client.lock(store.name("a"))), client.fair_lock(store.name("b")).into()];
    let waiting = tokio::spawn(MultiLock::new(multi).lock());
    let a = other.lock(store.name("a"));
    eventually("it has the first", async || a.is_locked().await.unwrap()).await;
    let first = a.inspect().await.unwrap().holders.remove(0).id;
    let guard = timeout(store.long(), waiting).await.expect("its turn").unwrap().unwrap();
    assert_eq!(guard.members()[0].owner_id().to_string(), first, "it was not acquired anew");
    tasks.join_all().await;
    guard.release().await.unwrap();
}

/// Eight tasks, while the second of the two members is held for long.
async fn go_on(store: &Store, clients: &[Client]) {
    let other = store.client().await;
    let busy = other.rw_lock(store.name("b")).write().await.unwrap();
    let mut tasks = JoinSet::new();
    for client in clients.iter().cycle().take(8) {
        let writer = client.rw_lock(store.name("b")).writer();
        let multi = MultiLock::new([client.mutex(store.name("a")).into(), writer]);
        tasks.spawn(async move {
            for _ in 0..4 {
                let guard = multi.lock().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.release().await.unwrap();
            }
        });
    }
    // One after the other holds the first and gives up.
    tokio::time::sleep(PATIENCE * 4).await;
    busy.release().await.unwrap();
    timeout(store.long() / 3, tasks.join_all()).await.expect("they get on");
}

pub(crate) async fn multi_locks_go_on_after_a_member_was_busy_for_long(store: &Store) {
    go_on(store, &[store.client().await]).await;
}

pub(crate) async fn multi_locks_of_many_clients_go_on_after_a_member_was_busy_for_long(
    store: &Store,
) {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(store.client().await);
    }
    go_on(store, &clients).await;
}

/// Permits have ids: behind waiters that each hold one for a while it gives up nothing, but it does while one is
/// kept.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_waits_for_permits_that_change_hands() {
    let store = Store::memory();
    sleep(HOUR).await;
    let (client, other) = (store.client().await, store.client().await);
    let permits = client.permit_semaphore(store.name("b"));
    assert!(permits.try_set_permits(1, None).await.unwrap());
    let multi = [AnyLock::from(client.lock(store.name("a"))), permits.clone().into()];
    let multi = MultiLock::new(multi);
    let mut tasks = JoinSet::new();
    for ahead in 0..5 {
        let permits = permits.clone();
        tasks.spawn(async move {
            sleep(Duration::from_millis(ahead)).await;
            let permit = AnyLock::from(permits).lock().await.unwrap();
            sleep(PATIENCE * 2 / 5).await;
            permit.release().await.unwrap();
        });
    }
    sleep(Duration::from_millis(9)).await;
    let waiting = tokio::spawn(multi.lock());
    let a = other.lock(store.name("a"));
    eventually("it has the first", async || a.is_locked().await.unwrap()).await;
    let first = a.inspect().await.unwrap().holders.remove(0).id;
    let guard = timeout(store.long(), waiting).await.expect("its turn").unwrap().unwrap();
    assert_eq!(guard.members()[0].owner_id().to_string(), first, "it was not acquired anew");
    tasks.join_all().await;
    guard.release().await.unwrap();

    let _kept = AnyLock::from(permits).lock().await.unwrap();
    let waiting = tokio::spawn(multi.lock());
    eventually("it has the first", async || a.is_locked().await.unwrap()).await;
    drop(timeout(PATIENCE.mul_f64(1.06), a.lock()).await.expect("it lets go").unwrap());
    waiting.abort();
}

/// Waiters of other clients queue for both members. They hold the second for longer than a multi-lock waits for
/// it at first, and the first is hardly ever free.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_gets_its_members_beside_queues_of_others() {
    let store = Store::memory();
    sleep(HOUR).await;
    for (name, held) in [("a", 197), ("b", 6001)] {
        for _ in 0..2 {
            let lock = store.client().await.fair_lock(store.name(name));
            tokio::spawn(async move {
                loop {
                    let guard = lock.lock().await.unwrap();
                    sleep(Duration::from_millis(held)).await;
                    guard.release().await.unwrap();
                }
            });
        }
    }
    let client = store.client().await;
    let multi = MultiLock::new(["a", "b"].map(|name| client.fair_lock(store.name(name))));
    for _ in 0..4 {
        sleep(Duration::from_secs(1)).await;
        let acquired = timeout(Duration::from_secs(120), multi.lock()).await;
        acquired.expect("it gets on").unwrap().release().await.unwrap();
    }
}

/// Three clients acquire the members in the opposite order, without a pause. A cycle with them ends after the time
/// for which a member is waited for, and not in the next one.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_gets_on_beside_holders_in_the_opposite_order() {
    sleep(HOUR).await;
    for members in [2, 4] {
        let (store, mut others) = (Store::memory(), JoinSet::new());
        let locks = |client: &Client| -> Vec<_> {
            (0..members).map(|i| client.fair_lock(store.name(&i.to_string()))).collect()
        };
        for _ in 0..3 {
            let locks = locks(&store.client().await);
            others.spawn(async move {
                loop {
                    let mut guards = Vec::new();
                    for lock in locks.iter().rev() {
                        guards.push(lock.lock().await.unwrap());
                        sleep(Duration::from_millis(1)).await;
                    }
                    for guard in guards {
                        guard.release().await.unwrap();
                    }
                }
            });
        }
        let multi = MultiLock::new(locks(&store.client().await));
        for _ in 0..8 {
            sleep(Duration::from_millis(1)).await;
            let acquired = timeout(PATIENCE * 3 / 2, multi.lock()).await;
            acquired.expect("it gets on").unwrap().release().await.unwrap();
        }
    }
}

/// A client uses the later of two clocks: after an hour that is the paused one, however slow the machine is.
const HOUR: Duration = Duration::from_secs(3600);

/// Forty tasks of three clients acquire random ones of five locks and hold them for two milliseconds, for four
/// seconds: as a multi-lock, or by hand, one after the other in order. Returns how often they did, and the
/// longest wait.
async fn contended(
    store: &Store,
    lock: fn(&Client, usize, String) -> AnyLock,
    by_hand: bool,
) -> (usize, Duration) {
    let clients = [store.client().await, store.client().await, store.client().await];
    let (until, mut tasks) = (Instant::now() + Duration::from_secs(4), JoinSet::new());
    for task in 0..40 {
        let of = |i: usize| lock(&clients[task % 3], i, store.name(&i.to_string()));
        let locks: Vec<_> = (0..5).map(of).collect();
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task as u64);
            let (mut count, mut longest) = (0, Duration::ZERO);
            while Instant::now() < until {
                let chosen = random.u8(1..32);
                let chosen = (0..5).filter(|i| chosen & 1 << i != 0).map(|i| locks[i].clone());
                let (start, mut guards, mut all) = (Instant::now(), Vec::new(), None);
                match by_hand {
                    true => {
                        for lock in chosen {
                            guards.push(lock.lock().await.unwrap());
                        }
                    }
                    false => all = Some(MultiLock::new(chosen).lock().await.unwrap()),
                }
                longest = longest.max(start.elapsed());
                sleep(Duration::from_millis(2)).await;
                for guard in guards {
                    guard.release().await.unwrap();
                }
                if let Some(all) = all {
                    all.release().await.unwrap();
                }
                count += 1;
            }
            (count, longest)
        });
    }
    let done = tasks.join_all().await;
    (
        done.iter().map(|(count, _)| count).sum(),
        done.into_iter().map(|(_, wait)| wait).max().unwrap(),
    )
}

fn one_kind(client: &Client, _: usize, name: String) -> AnyLock {
    client.lock(name).into()
}

fn mixed_kinds(client: &Client, i: usize, name: String) -> AnyLock {
    match i {
        0 => client.lock(name).into(),
        1 => client.mutex(name).into(),
        2 => client.fenced_lock(name).into(),
        3 => client.rw_lock(name).writer(),
        _ => client.fair_lock(name).into(),
    }
}

#[tokio::test(start_paused = true)]
async fn multi_locks_get_on_as_well_as_their_members_one_by_one() {
    sleep(HOUR).await;
    for lock in [one_kind, mixed_kinds] {
        let (store, other) = (Store::memory(), Store::memory());
        let (by_hand, longest_by_hand) = contended(&store, lock, true).await;
        let (count, longest) = contended(&other, lock, false).await;
        println!("{count} in {longest:?}, by hand {by_hand} in {longest_by_hand:?}");
        assert!(count * 10 >= by_hand * 9, "{count}, by hand {by_hand}");
        assert!(longest <= 2 * longest_by_hand, "{longest:?}, by hand {longest_by_hand:?}");
    }
}

/// In opposite orders, from many tasks of several clients: they take turns and none waits for ever.
async fn take_turns(store: &Store, make: impl Fn(&Store, &Client, bool) -> MultiLock) {
    const ROUNDS: usize = 8;
    let (inside, mut tasks) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for _ in 0..2 {
        let client = store.client().await;
        for task in 0..4 {
            let multi = make(store, &client, task % 2 == 0);
            let inside = Arc::clone(&inside);
            tasks.spawn(async move {
                for round in 0..ROUNDS {
                    let guard = multi.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    match round % 3 {
                        0 => drop(guard),
                        _ => guard.release().await.unwrap(),
                    }
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let name = store.name("a");
    eventually("nothing is left", async || store.stored(&name) == 0).await;
}

pub(crate) async fn multi_locks_in_opposite_orders_do_not_deadlock(store: &Store) {
    take_turns(store, |store, client, forth| {
        let order = if forth { ["a", "b", "c"] } else { ["c", "b", "a"] };
        MultiLock::new(order.map(|name| client.lock(store.name(name))))
    })
    .await;
}

pub(crate) async fn multi_locks_of_many_kinds_in_opposite_orders_do_not_deadlock(store: &Store) {
    take_turns(store, |store, client, forth| {
        let mut members = [
            AnyLock::from(client.fair_lock(store.name("a"))),
            AnyLock::from(client.mutex(store.name("b"))),
            AnyLock::from(client.lock(store.name("c")).fenced()),
        ];
        if !forth {
            members.reverse();
        }
        MultiLock::new(members)
    })
    .await;
}

/// They do not know of each other's order, as they have only one in common.
pub(crate) async fn overlapping_multi_locks_exclude_each_other(store: &Store) {
    take_turns(store, |store, client, forth| {
        let others = if forth { ["b", "a"] } else { ["a", "c"] };
        MultiLock::new(others.map(|name| client.lock(store.name(name))))
    })
    .await;
}

pub(crate) async fn a_multi_lock_holds_different_kinds(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let multi = MultiLock::new([
        AnyLock::from(client.lock(store.name("lock"))),
        AnyLock::from(client.mutex(store.name("mutex"))),
        AnyLock::from(client.fair_lock(store.name("fair"))),
        AnyLock::from(client.fenced_lock(store.name("fenced"))),
        AnyLock::from(client.spin_lock(store.name("spin"))),
        client.rw_lock(store.name("read")).reader(),
        client.rw_lock(store.name("write")).writer(),
    ]);
    let guard = multi.lock().await.unwrap();
    for member in guard.members() {
        let is_fenced = member.name().to_string() == store.name("fenced");
        assert_eq!(member.token().is_some(), is_fenced, "{}", member.name());
    }
    assert!(other.mutex(store.name("mutex")).try_lock().await.unwrap().is_none());
    assert!(other.fair_lock(store.name("fair")).try_lock().await.unwrap().is_none());
    let (read, write) = (other.rw_lock(store.name("read")), other.rw_lock(store.name("write")));
    assert!(read.reader().is_locked().await.unwrap() && write.writer().is_locked().await.unwrap());
    read.try_read().await.unwrap().expect("readers share it").release().await.unwrap();
    assert!(read.try_write().await.unwrap().is_none());
    guard.release().await.unwrap();
    let busy = other.fair_lock(store.name("fair")).lease(store.long()).lock().await.unwrap();
    assert!(multi.try_lock().await.unwrap().is_none());
    for name in ["lock", "fenced", "spin"] {
        assert!(!other.lock(store.name(name)).is_locked().await.unwrap(), "{name}");
    }
    assert!(!other.mutex(store.name("mutex")).is_locked().await.unwrap());
    assert!(
        !read.reader().is_locked().await.unwrap() && !write.writer().is_locked().await.unwrap()
    );
    busy.release().await.unwrap();
    drop(multi.try_lock().await.unwrap().expect("all are free"));
}

/// One of them is on a store of its own.
pub(crate) async fn a_multi_lock_spans_stores(store: &Store) {
    let elsewhere = Store::memory();
    let (near, far) = (store.client().await, elsewhere.client().await);
    let (here, there) = (near.lock(store.name("it")), far.lock(store.name("it")));
    let multi = MultiLock::new([there.clone(), here.clone()]);
    let guard = multi.lock().await.expect("the same name in two stores is two locks");
    assert!(here.is_locked().await.unwrap() && there.is_locked().await.unwrap());
    guard.release().await.unwrap();
    for (busy, free) in [(&here, &there), (&there, &here)] {
        let busy = busy.lease(store.long()).lock().await.unwrap();
        assert!(multi.try_lock().await.unwrap().is_none());
        assert!(!free.is_locked().await.unwrap());
        busy.release().await.unwrap();
    }
    let guard = multi.try_lock().await.unwrap().expect("all are free");
    far.shutdown().await;
    assert!(guard.is_lost(), "one client's end is the end of all");
}

pub(crate) async fn a_multi_lock_spans_clients(store: &Store) {
    let (one, two) = (store.client().await, store.client().await);
    let multi = MultiLock::new([two.lock(store.name("b")), one.lock(store.name("a"))]);
    let guard = multi.lock().await.unwrap();
    let clients = guard.members().iter().map(|member| member.owner_id().client());
    assert!(clients.eq([one.id(), two.id()]), "each in the name of its own");
    assert!(two.lock(store.name("a")).try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    let twice = MultiLock::new([one.lock(store.name("a")), two.lock(store.name("a"))]);
    assert_is!(twice.try_lock().await, Err(Error::Invalid { .. }));
}

pub(crate) async fn the_loss_of_one_member_is_a_loss_of_all(store: &Store) {
    let (client, observer) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let guard = multi.lock().await.unwrap();
        store.delete::<Lock>(&guard.members()[1]).await;
        let (name, reason) = timeout(store.long() * 3, guard.lost()).await.expect("it is told");
        assert_eq!((name.to_string(), reason), (store.name("b"), LostReason::Deleted));
        assert!(guard.is_lost());
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert_is!(guard.release().await,
            Err(Error::NotHeld { lock, .. }) if lock.to_string() == store.name("b"));
        assert_eq!(locked(store, &observer).await, NONE, "the rest is given back");
    }
}

pub(crate) async fn a_force_released_member_is_lost_with_the_reason(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let guard = plain(store, &client).lock().await.unwrap();
    store.receives_notices_of(&guard.members()[0]).await;
    let lost = tokio::spawn(guard.lost());
    assert!(other.lock(store.name("c")).force_unlock("enough").await.unwrap());
    let (name, reason) = store.promptly("it is told", lost).await.unwrap();
    assert_eq!(name.to_string(), store.name("c"));
    assert_eq!(reason, LostReason::Revoked("enough".to_owned()));
    drop(guard);
    eventually("the rest is given back", async || locked(store, &other).await == NONE).await;
}

pub(crate) async fn all_members_are_renewed(store: &Store) {
    let client = store.client().await;
    for multi in each(store, &client) {
        let guard = multi.lock().await.unwrap();
        let before = Instant::now() + guard.remaining();
        for name in NAMES {
            store.is_renewed(&client.lock(store.name(name)).into()).await;
        }
        let moved = async || Instant::now() + guard.remaining() > before;
        eventually("the deadline moves on", moved).await;
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
}

/// What the deadline is worth: no member ends before it.
async fn assert_deadline(store: &Store, guard: &MultiGuard, observer: &Client) {
    for (member, name) in guard.members().iter().zip(NAMES) {
        assert!(guard.remaining() <= member.remaining() + Duration::from_millis(1));
        let stored = left(observer.lock(store.name(name)).inspect().await);
        // After the store was asked, however long that took.
        let safe = guard.remaining();
        assert!(safe < stored, "{name}: safe for {safe:?}, stored for {stored:?}");
    }
}

pub(crate) async fn all_members_have_the_same_lease(store: &Store) {
    let (client, observer) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let guard = multi.lease(store.long()).lock().await.unwrap();
        assert!(guard.remaining() <= store.long() - store.long() / 100);
        assert!(guard.remaining() > store.long() / 2);
        assert_deadline(store, &guard, &observer).await;
        for name in NAMES {
            let stored = left(observer.lock(store.name(name)).inspect().await);
            assert!(stored <= store.long(), "{name}: {stored:?}");
        }
        guard.release().await.unwrap();
    }
}

pub(crate) async fn a_lease_expires_for_all_members(store: &Store) {
    let (client, observer) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let start = store.timer();
        let guard = multi.lease(store.steady_lease()).lock().await.unwrap();
        assert_deadline(store, &guard, &observer).await;
        let (_, reason) = timeout(store.long(), guard.lost()).await.expect("it ends");
        start.took(store.steady_lease().mul_f64(0.9), store.steady_lease());
        assert_eq!(reason, LostReason::Expired);
        // No member is renewed for longer than it took to assemble them.
        let free = async || locked(store, &observer).await == NONE;
        eventually("they end at the store", free).await;
        start.took(Duration::ZERO, store.steady_lease().max(ASSEMBLING));
    }
}

/// Waiting longer than the lease does not cost the members that are there already.
pub(crate) async fn the_lease_starts_with_the_last_member(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let lease = store.steady_lease();
        let busy = other.lock(store.name("c")).lease(store.long()).lock().await.unwrap();
        let mut waiting = Box::pin(multi.lease(lease).lock());
        assert!(timeout(lease * 4 / 3, &mut waiting).await.is_err());
        busy.release().await.unwrap();
        let guard = timeout(store.long(), waiting).await.expect("it gets in").unwrap();
        let safe = guard.remaining();
        assert!(safe <= lease.max(ASSEMBLING) && safe > lease / 4, "{safe:?} of {lease:?}");
        assert_deadline(store, &guard, &other).await;
        let _ = guard.release().await;
        eventually("all is free", async || locked(store, &other).await == NONE).await;
    }
}

pub(crate) async fn renewed_is_a_watchdog_lease_for_all(store: &Store) {
    let options = store.options().watchdog_timeout(store.long() * 10);
    let client = store.client_with(options).await;
    for multi in each(store, &client) {
        let guard = multi.lease(lockkeeper::LeaseTime::Renewed(store.long())).lock().await.unwrap();
        assert_deadline(store, &guard, &client).await;
        for name in NAMES {
            let stored = left(client.lock(store.name(name)).inspect().await);
            assert!(stored <= store.long(), "{name}: {stored:?}");
        }
        guard.release().await.unwrap();
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: lockkeeper::Result<T>) -> String {
    match answer {
        Err(error @ Error::Invalid { .. }) => error.to_string(),
        other => panic!("expected Invalid, got {other:?}"),
    }
}

pub(crate) async fn an_empty_multi_lock_and_a_repeated_member_are_rejected(store: &Store) {
    let client = store.client().await;
    let none = MultiLock::new(Vec::<Lock>::new());
    refused(none.lock().await);
    refused(none.try_lock().await);
    refused(none.try_lock_for(store.long()).await);
    assert_is!(none.run(async |_| ()).await, Err(RunError::Acquire(Error::Invalid { .. })));
    assert_is!(
        none.try_run_for(Duration::ZERO, async |_| ()).await,
        Err(RunError::Acquire(Error::Invalid { .. }))
    );
    let (a, b) = (client.lock(store.name("a")), client.lock(store.name("b")));
    let as_mutex = AnyLock::from(client.mutex(store.name("a")));
    for twice in [
        MultiLock::new([a.clone(), b.clone(), a.clone()]),
        MultiLock::new([AnyLock::from(a.clone()), AnyLock::from(b.clone()), as_mutex]),
        MultiLock::new([
            AnyLock::from(a.clone()),
            AnyLock::from(client.fair_lock(store.name("a"))),
        ]),
    ] {
        let said = refused(twice.lock().await);
        assert!(said.contains(&store.name("a")), "it says which: {said}");
        refused(twice.try_lock().await);
    }
    for bad in [client.lock("")].map(|unnamed| MultiLock::new([a.clone(), unnamed])) {
        refused(bad.try_lock().await);
    }
    assert_eq!(locked(store, &client).await, NONE, "nothing was sent");
}

pub(crate) async fn an_invalid_lease_is_rejected(store: &Store) {
    let client = store.client().await;
    for multi in each(store, &client) {
        for request in [
            multi.lease(Duration::ZERO).lock(),
            multi.lease(Duration::MAX).lock(),
            multi.lease(lockkeeper::LeaseTime::Renewed(Duration::from_millis(1))).lock(),
        ] {
            refused::<MultiGuard>(request.await);
        }
        refused(multi.lease(Duration::ZERO).try_lock().await);
    }
    let leased = MultiLock::new([client.lock(store.name("a")).lease(store.lease())]);
    refused(leased.try_lock().await);
    assert_eq!(locked(store, &client).await, NONE, "nothing was sent");
}

pub(crate) async fn other_clients_see_and_force_release_all_members(store: &Store) {
    let client = store.client().await;
    let semaphore = client.permit_semaphore(store.name("permits"));
    assert!(semaphore.try_set_permits(1, None).await.unwrap());
    let locks = [AnyLock::from(client.lock(store.name("a"))), client.mutex(store.name("b")).into()];
    let multi = MultiLock::new(locks.clone());
    let with_permits = MultiLock::new(locks.into_iter().chain([semaphore.clone().into()]));
    assert!(!multi.is_locked().await.unwrap() && !with_permits.is_locked().await.unwrap());
    let permit = semaphore.acquire(1).await.unwrap();
    assert!(with_permits.is_locked().await.unwrap());
    let guard = client.mutex(store.name("b")).lock().await.unwrap();
    assert_is!(with_permits.force_unlock("").await, Err(Error::Invalid { .. }));
    assert!(multi.is_locked().await.unwrap(), "it is refused before anything is forced");
    assert!(multi.force_unlock("").await.unwrap());
    assert!(!multi.is_locked().await.unwrap() && !multi.force_unlock("").await.unwrap());
    assert_is!(guard.release().await, Err(Error::NotHeld { .. }));
    permit.release().await.unwrap();
}

pub(crate) async fn a_multi_lock_of_one_member_works(store: &Store) {
    let (client, observer) = (store.client().await, store.client().await);
    let multi = MultiLock::new([client.lock(store.name("b"))]);
    let guard = multi.lease(store.long()).lock().await.unwrap();
    assert_eq!(locked(store, &observer).await, ONLY_B);
    assert!(guard.remaining() <= store.long());
    guard.release().await.unwrap();
    assert_eq!(locked(store, &observer).await, NONE);
}

/// The name of one is in use for something else.
pub(crate) async fn an_error_of_one_member_leaves_the_others_free(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    let mutex = other.mutex(store.name("c")).lease(store.long()).lock().await.unwrap();
    for multi in each(store, &client) {
        for tries in [false, true] {
            let answer = if tries { multi.try_lock().await } else { multi.lock().await.map(Some) };
            assert_is!(answer,
                Err(Error::WrongKind { lock, .. }) if lock.to_string() == store.name("c"));
            for name in ["a", "b"] {
                assert!(!other.lock(store.name(name)).is_locked().await.unwrap(), "{name}");
            }
        }
    }
    mutex.release().await.unwrap();
}

pub(crate) async fn plain_locks_of_one_client_take_one_request(store: &Store) {
    let counting = Counting::new(store.backend().await);
    let client = Client::with_backend(counting.clone(), store.options()).unwrap();
    // In one slot of a cluster.
    let names = (0..10).map(|i| format!("{{{}}}{i}", store.name("")));
    let multi = MultiLock::new(names.map(|name| client.lock(name)));
    let guard = multi.lock().await.unwrap();
    assert_eq!(guard.members().len(), 10);
    assert_eq!(counting.acquires(), 1);
    guard.release().await.unwrap();
    drop(multi.try_lock().await.unwrap().expect("all are free"));
    assert_eq!(counting.acquires(), 2);
    // The others go one by one.
    let before = counting.acquires();
    mixed(store, &client).lock().await.unwrap().release().await.unwrap();
    assert!(counting.acquires() >= before + 3, "the counter counts");
}

/// One step at a time: wherever it is dropped, nothing stays.
pub(crate) async fn a_multi_lock_dropped_at_any_step_leaves_nothing_behind(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        for steps in 1..20 {
            let mut acquiring = Box::pin(multi.lease(store.long()).lock());
            for _ in 0..steps {
                if poll_once(&mut acquiring).is_ready() {
                    break;
                }
                // What was asked for is answered, but not looked at.
                other.lock(store.name("other")).is_locked().await.unwrap();
            }
            drop(acquiring);
            eventually("all is free", async || locked(store, &other).await == NONE).await;
        }
    }
    eventually("no place in a queue", async || store.stored(&store.name("a")) == 0).await;
}

pub(crate) async fn run_holds_all_members_while_the_work_runs(store: &Store) {
    let (client, other) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let ran = multi.run(async |holds| {
            assert!(holds.iter().map(|hold| hold.name()).eq(multi.names()));
            assert!(holds.iter().all(|hold| !hold.is_lost()));
            locked(store, &other).await
        });
        assert_eq!(ran.await.unwrap().output, ALL);
        assert_eq!(locked(store, &other).await, NONE);
        let busy = other.lock(store.name("b")).lease(store.long()).lock().await.unwrap();
        let tried = multi
            .try_run_for(Duration::ZERO, async |_| panic!("one of them is busy"))
            .await
            .unwrap();
        assert!(tried.is_none());
        busy.release().await.unwrap();
        assert_eq!(
            multi
                .try_run_for(Duration::ZERO, async |_| 7)
                .await
                .unwrap()
                .expect("all are free")
                .output,
            7
        );
    }
}

pub(crate) async fn the_work_is_dropped_when_a_member_is_lost(store: &Store) {
    let (client, observer) = (store.client().await, store.client().await);
    for multi in each(store, &client) {
        let run = multi.run(async |holds| {
            store.delete_held::<Lock>(&observer.lock(store.name("c")).into()).await;
            assert_eq!(holds.len(), 3);
            std::future::pending::<()>().await;
        });
        let ran = timeout(store.long() * 3, run).await.expect("it ends");
        assert_is!(ran, Err(RunError::Lost { reason, output: None, .. }) if reason == LostReason::Deleted);
        eventually("the rest is given back", async || locked(store, &observer).await == NONE).await;
    }
}

pub(crate) async fn an_owner_reenters_members_that_it_holds(store: &Store) {
    let client = store.client().await;
    let owner = client.new_owner();
    let a = client.lock(store.name("a")).as_owner(&owner);
    let multi = MultiLock::new([a.clone(), client.lock(store.name("b")).as_owner(&owner)]);
    let held = a.lease(store.long()).lock().await.unwrap();
    let guard = store.promptly("it is its own", multi.try_lock()).await.unwrap();
    let guard = guard.expect("it is its own");
    assert_eq!(a.hold_count(&owner).await.unwrap(), 2);
    guard.release().await.unwrap();
    assert_eq!(a.hold_count(&owner).await.unwrap(), 1);
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

pub(crate) async fn shutdown_releases_all_members(store: &Store) {
    let other = store.client().await;
    for which in 0..2 {
        let client = store.client().await;
        let [plain, mixed] = each(store, &client);
        let multi = if which == 0 { plain } else { mixed };
        let guard = multi.lease(store.long()).lock().await.unwrap();
        client.shutdown().await;
        assert!(guard.is_lost());
        assert_eq!(store.promptly("lost", guard.lost()).await.1, LostReason::Closed);
        assert_eq!(locked(store, &other).await, NONE);
        assert_is!(multi.lock().await, Err(Error::Closed { .. }));
        assert_is!(multi.try_lock().await, Err(Error::Closed { .. }));
    }
}

pub(crate) async fn waiters_fail_when_their_client_shuts_down(store: &Store) {
    let other = store.client().await;
    let _busy = other.lock(store.name("b")).lease(store.long()).lock().await.unwrap();
    for which in 0..2 {
        let client = store.client().await;
        let mut waiting = each(store, &client)[which].lock();
        assert!(poll_once(&mut waiting).is_pending());
        let waiting = tokio::spawn(waiting);
        client.shutdown().await;
        let told = timeout(store.long(), waiting).await.expect("it is told").unwrap();
        assert_is!(told, Err(Error::Closed { .. }));
        eventually("the rest is free", async || locked(store, &other).await == ONLY_B).await;
    }
}
