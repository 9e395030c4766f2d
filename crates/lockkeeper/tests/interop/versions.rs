//! What is the same in every version of Redisson, and here: the names, the bytes, the messages; and all
//! of them at one lock.

use std::time::Instant;

use lockkeeper::ClientOptions;
use testkit::{Cli, Redisson, Stopwatch};

use crate::support::*;

on_versions! { [newest v3_27 v3_14]
    the_same_is_stored_and_published
    any_name_is_the_same_lock
    a_prefix_is_a_part_of_the_name
    no_key_is_left_for_ever
}

/// What has been published, in the order of it; whatever is still under way is waited for.
fn published(connection: &mut Cli, channel: &str) -> Vec<String> {
    server().cli(&["PUBLISH", channel, "that is all"]);
    let mut messages = Vec::new();
    loop {
        let (_, message) = connection.next_message(PATIENCE).expect("that is not all");
        match String::from_utf8(message).unwrap() {
            message if message == "that is all" => return messages,
            message => messages.push(message),
        }
    }
}

fn shape(name: &str) -> (Vec<String>, String) {
    let hash = server().cli(&["HGETALL", name]);
    // The number of an owner is a thread's id in Java and drawn here.
    let owner = |text: &str| {
        let (client, number) = text.split_once(':').expect("an owner has a client");
        assert_eq!(client.len(), 36, "{text}");
        assert!(number.parse::<i64>().is_ok_and(|number| number > 0), "{text}");
        client.replace(|c: char| c.is_ascii_hexdigit() && !c.is_ascii_uppercase(), "x")
    };
    let fields = hash.array().chunks(2);
    let fields = fields.map(|field| format!("{} {}", owner(field[0].text()), field[1].text()));
    (fields.collect(), server().cli(&["TYPE", name]).text().to_owned())
}

async fn the_same_is_stored_and_published(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "same").await;
    let channel = lock_channel(&name);
    let mut connection = server().connection();
    connection.subscribe(&[&channel]);
    let mut java = Vec::new();
    let theirs = one.lock(&name);
    theirs.lock().await.ok();
    java.push((shape(&name), published(&mut connection, &channel)));
    theirs.lock().await.ok();
    java.push((shape(&name), published(&mut connection, &channel)));
    theirs.unlock().await.ok();
    java.push((shape(&name), published(&mut connection, &channel)));
    theirs.unlock().await.ok();
    java.push((shape(&name), published(&mut connection, &channel)));
    theirs.lock().await.ok();
    assert!(theirs.force_unlock().await.ok());
    java.push((shape(&name), published(&mut connection, &channel)));

    let mut rust = Vec::new();
    let ours = client.lock(&name);
    let guard = ours.lock().await.unwrap();
    rust.push((shape(&name), published(&mut connection, &channel)));
    let again = guard.reenter().await.unwrap();
    rust.push((shape(&name), published(&mut connection, &channel)));
    again.release().await.unwrap();
    rust.push((shape(&name), published(&mut connection, &channel)));
    guard.release().await.unwrap();
    rust.push((shape(&name), published(&mut connection, &channel)));
    let _guard = ours.lock().await.unwrap();
    assert!(ours.force_unlock("").await.unwrap());
    rust.push((shape(&name), published(&mut connection, &channel)));

    assert_eq!(java, rust);
    let counts: Vec<_> = rust.iter().map(|(_, messages)| messages.join(" ")).collect();
    assert_eq!(counts, ["", "", "", "0", "0"], "only what frees it is made known");
}

async fn any_name_is_the_same_lock(redisson: Redisson) {
    let Stage { client, one, two, .. } = Stage::new(redisson, "names").await;
    let names =
        ["order:7", "{eu}:order:7", "foo{bar", "a}b{c}", "{}x", "two words", "50%", "schlüssel🔒"];
    for name in names.map(|name| format!("{name}:{}", redisson.profile())) {
        let channel = lock_channel(&name);
        one.lock(&name).lock().await.ok();
        let waiter = tokio::spawn({
            let lock = client.lock(&name);
            async move { (lock.lock().await.unwrap(), Instant::now()) }
        });
        listened_to(server(), &channel, 1).await;
        let release = one.lock(&name).unlock().await;
        let (guard, granted) = joined(waiter).await;
        assert!(awake_between(release.started, granted) < SOON, "{name}");
        release.ok();
        listened_to(server(), &channel, 0).await;
        let waiter = two.lock(&name).lock();
        listened_to(server(), &channel, 1).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        let grant = waiter.await;
        assert!(awake_between(released, grant.ended) < SOON, "{name}");
        grant.ok();
        two.lock(&name).unlock().await.ok();
    }
}

/// As a `NameMapper` of Redisson would have it.
async fn a_prefix_is_a_part_of_the_name(redisson: Redisson) {
    let options = ClientOptions::new().name_prefix("shop:");
    let Stage { client, name, one, .. } = Stage::with(redisson, "prefix", options).await;
    let whole = format!("shop:{name}");
    let guard = client.lock(&name).lock().await.unwrap();
    assert!(!one.lock(&whole).try_lock().await.ok());
    assert!(one.lock(&name).try_lock().await.ok(), "another lock");
    let waiter = one.lock(&whole).lock();
    listened_to(server(), &lock_channel(&whole), 1).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let grant = waiter.await;
    assert!(awake_between(released, grant.ended) < SOON);
    grant.ok();
    assert!(client.lock(&name).try_lock().await.unwrap().is_none());
    one.lock(&whole).unlock().await.ok();
    one.lock(&name).unlock().await.ok();
}

/// Not even the latches by which newer Redissons repeat an unlock.
async fn no_key_is_left_for_ever(redisson: Redisson) {
    let Stage { client, name, one, .. } = Stage::new(redisson, "left behind").await;
    for _ in 0..5 {
        one.lock(&name).lock().await.ok();
        let waiter = tokio::spawn({
            let lock = client.lock(&name);
            async move { lock.lock().await.unwrap() }
        });
        one.lock(&name).unlock().await.ok();
        joined(waiter).await.release().await.unwrap();
    }
    let pattern = format!("*{name}*");
    eventually("no key of the name is left", || {
        server().cli(&["KEYS", &pattern]).array().is_empty()
    })
    .await;
    eventually("nobody listens any more", || {
        server().cli(&["PUBSUB", "CHANNELS", &pattern]).array().is_empty()
    })
    .await;
}

/// A fleet in the middle of an upgrade, and a service of ours beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_every_version_and_ours_share_one_queue() {
    const NAME: &str = "fleet";
    let client = connect(server(), ClientOptions::new()).await;
    let mut guard = Some(client.lock(NAME).lock().await.unwrap());
    for round in 0..3 {
        let mut java: Vec<_> = Redisson::ALL
            .map(|redisson| {
                let worker = peer(redisson).on(NAME);
                let waiter = worker.lock(NAME).lock();
                (worker, waiter)
            })
            .into();
        let other = connect(server(), ClientOptions::new()).await.lock(NAME);
        let mut rust = Some(tokio::spawn(async move { other.lock().await.unwrap() }));
        listened_to(server(), &lock_channel(NAME), 4).await;
        let mut released = Stopwatch::start();
        guard.take().expect("we hold it").release().await.unwrap();
        // The next holder is not known in advance.
        for _ in 0..4 {
            let mut winner = None;
            eventually("somebody has it", || {
                let served = java.iter().position(|(_, waiter)| !waiter.is_pending());
                winner = Some(served);
                served.is_some() || rust.as_ref().is_some_and(|task| task.is_finished())
            })
            .await;
            let took = released.elapsed();
            assert!(round == 0 || took < SOON, "{took:?}");
            match winner.flatten() {
                Some(index) => {
                    let (worker, waiter) = java.swap_remove(index);
                    waiter.await.ok();
                    released = Stopwatch::start();
                    worker.lock(NAME).unlock().await.ok();
                }
                None => {
                    let heir = joined(rust.take().expect("it was Rust's turn")).await;
                    released = Stopwatch::start();
                    heir.release().await.unwrap();
                }
            }
        }
        assert!(java.is_empty() && rust.is_none());
        guard = Some(within(PATIENCE, "the next round", client.lock(NAME).lock()).await.unwrap());
        listened_to(server(), &lock_channel(NAME), 0).await;
    }
}
