//! `RedissonMultiLock` and our `MultiLock`: all or none, in any order of names.

use std::time::{Duration, Instant};

use lockkeeper::{Client, ClientOptions, MultiLock};
use testkit::Redisson;

use crate::support::*;

on_versions! { [newest v3_27 v3_14]
    a_holder_of_all_members_excludes_the_other_side
    opposite_orders_of_both_sides_do_not_deadlock
    opposite_orders_lose_nothing
}

/// Three names of a test's own.
fn names(name: &str) -> [String; 3] {
    ["a", "b", "c"].map(|member| format!("{name}:{member}"))
}

fn multi(client: &Client, names: &[String; 3]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| client.lock(name)))
}

/// Backwards: ours are taken in the order of their names.
fn backwards(names: &[String; 3]) -> [&str; 3] {
    let [a, b, c] = names;
    [c, b, a]
}

fn held(names: &[String; 3]) -> i64 {
    server().cli(&[&["EXISTS".to_owned()], &names[..]].concat()).int()
}

async fn a_holder_of_all_members_excludes_the_other_side(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "multi excludes").await;
    let names = names(&name);
    let (ours, theirs) = (multi(&client, &names), one.multi(&backwards(&names)));

    let guard = ours.lock().await.unwrap();
    assert!(!theirs.try_lock().await.ok());
    assert!(!theirs.try_lock_within(SHORT, Some(LONG)).await.ok());
    for name in &names {
        assert!(!two.lock(name).try_lock().await.ok());
        assert!(!one.multi(&[name.as_str()]).try_lock().await.ok());
    }
    guard.release().await.unwrap();
    assert_eq!(held(&names), 0);

    theirs.lock().await.ok();
    assert_eq!(held(&names), 3);
    assert!(ours.try_lock().await.unwrap().is_none());
    assert!(ours.try_lock_for(IN_VAIN).await.unwrap().is_none());
    for name in &names {
        assert!(client.lock(name).try_lock().await.unwrap().is_none());
    }
    theirs.unlock().await.ok();

    // One busy member is enough to fail, and the free ones stay free.
    for name in &names {
        one.lock(name).lock().await.ok();
        assert!(ours.try_lock().await.unwrap().is_none());
        assert_eq!(held(&names), 1);
        one.lock(name).unlock().await.ok();
        let guard = client.lock(name).lock().await.unwrap();
        assert!(!theirs.try_lock().await.ok());
        assert_eq!(held(&names), 1);
        guard.release().await.unwrap();
    }
}

/// Java gives up what it cannot complete within 1.5 s a member, and we within 1.5 s; then it is the
/// other's turn.
const STUCK: Duration = Duration::from_secs(10);

/// Each side holds one member and wants those of the other.
async fn opposite_orders_of_both_sides_do_not_deadlock(redisson: Redisson) {
    let Stage { client, name, one, two, .. } = Stage::new(redisson, "multi middle").await;
    let names = names(&name);
    // Members of two clients: those of one client would be acquired in one request.
    let other = connect(server(), ClientOptions::new()).await;
    let [a, b, c] = &names;
    let ours = MultiLock::new([client.lock(a), other.lock(b), client.lock(c)]);
    let (theirs, middle) = (one.multi(&backwards(&names)), two.lock(b));
    middle.lock().await.ok();
    let java = theirs.lock();
    eventually("Java has its end", || held(&names) == 2).await;
    let rust = tokio::spawn(async move { ours.lock().await.unwrap() });
    listened_to(server(), &lock_channel(b), 2).await;
    let start = Instant::now();
    middle.unlock().await.ok();
    let java = async {
        let grant = java.await;
        grant.result.as_ref().expect("Java has all");
        let owner = client.lock(a).inspect().await.unwrap().holders.remove(0).id;
        for name in [b, c] {
            assert_eq!(client.lock(name).inspect().await.unwrap().holders.remove(0).id, owner);
        }
        theirs.unlock().await.ok();
        grant.ended
    };
    let rust = async {
        let guard = joined(rust).await;
        let granted = Instant::now();
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        granted
    };
    let (java, rust) = tokio::join!(java, rust);
    let (java, rust) = (java.saturating_duration_since(start), rust - start);
    println!("{}: met in the middle: Java {java:.1?}, Rust {rust:.1?}", redisson.profile());
    assert!(java < STUCK && rust < STUCK, "Java {java:?}, Rust {rust:?}");
    assert_eq!(held(&names), 0);
}

/// Java takes one after the other, backwards, and we all the while forwards.
async fn opposite_orders_lose_nothing(redisson: Redisson) {
    const ROUNDS: u32 = 100;
    let Stage { client, name, one, .. } = Stage::new(redisson, "multi orders").await;
    let names = names(&name);
    let counter = format!("{name}:counter");
    let theirs = one.multi(&backwards(&names)).stress(&counter, ROUNDS, 2);
    let ours = multi(&client, &names);
    let mut connection = server().connection();
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    while theirs.is_pending() {
        let asked = Instant::now();
        let guard = within(LONG, "all", ours.lock()).await.unwrap();
        longest = longest.max(asked.elapsed());
        increment(&mut connection, &counter);
        guard.release().await.unwrap();
        rounds += 1;
    }
    let stress = theirs.await.ok();
    println!(
        "{}: {rounds} rounds of ours beside Java's; longest wait: Rust {longest:.1?}, Java {:.1?}",
        redisson.profile(),
        stress.longest_wait
    );
    assert!(longest < STUCK && stress.longest_wait < STUCK);
    assert_eq!(server().cli(&["GET", &counter]).text(), (2 * ROUNDS + rounds).to_string());
    assert_eq!(held(&names), 0);
}
