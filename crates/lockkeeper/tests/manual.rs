//! What the manual tells people to type.

use std::time::Duration;

use lockkeeper::{AnyGuard, Client, ClientOptions, Error, LockGuard, MultiLock, RedisOptions};
use testkit::{Cluster, Flavour, Node, RedisServer, Replicated, Sentinels, Shape};

/// The commands in the section on permissions, each as one line.
fn acl(number: usize) -> Vec<String> {
    let page = include_str!("../src/manual/redis.md");
    block(page, "text", number).split_whitespace().map(str::to_owned).collect()
}

/// A block of code of a page.
fn block<'a>(page: &'a str, language: &str, number: usize) -> &'a str {
    let blocks = page.split(&format!("```{language}\n")).skip(1 + number).collect::<Vec<_>>();
    let block = blocks.first().and_then(|rest| rest.split("```").next());
    block.expect("the manual shows it")
}

#[tokio::test]
async fn the_permissions_of_the_manual_are_enough() {
    let server = RedisServer::start();
    server.cli(&acl(0)).ok();
    let client = Client::connect(&server.url_with("locks", "secret")).await.unwrap();
    let other = Client::connect(&server.url_with("locks", "secret")).await.unwrap();

    let guard = client.lock("app:a").lock().await.unwrap();
    let again = guard.reenter().await.unwrap();
    again.release().await.unwrap();
    assert!(client.lock("app:a").is_locked().await.unwrap());
    let waiter = tokio::spawn(async move { other.lock("app:a").lock().await });
    guard.extend(std::time::Duration::from_secs(20)).await.unwrap();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(client.lock("app:a").force_unlock("").await.unwrap());
    drop(guard);
    client.mutex("app:m").lock().await.unwrap().release().await.unwrap();
    client.shutdown().await;

    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(refused.array().len(), 0, "{refused:?}");
}

#[tokio::test]
async fn the_permissions_of_the_manual_are_enough_for_every_primitive() {
    let server = RedisServer::start();
    server.cli(&acl(0)).ok();
    server.cli(&acl(1)).ok();
    let client = Client::connect(&server.url_with("locks", "secret")).await.unwrap();

    let queue = client.fair_lock("app:fair");
    let fair = queue.fenced();
    let guard = fair.lock().await.unwrap();
    let next = tokio::spawn(fair.lock());
    while queue.inspect().await.unwrap().queue.is_empty() {
        tokio::task::yield_now().await;
    }
    let gives_up = fair.try_lock_for(std::time::Duration::from_secs(1)).await.unwrap();
    assert!(gives_up.is_none());
    guard.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    client.fenced_lock("app:fenced").lock().await.unwrap().release().await.unwrap();

    let rw = client.rw_lock("app:rw").fenced();
    let reading = rw.read().await.unwrap();
    let writer = tokio::spawn(rw.write());
    let soon = std::time::Duration::from_secs(1);
    assert!(rw.try_write_for(soon).await.unwrap().is_none());
    reading.release().await.unwrap();
    let reading = writer.await.unwrap().unwrap().downgrade().await.unwrap();
    reading.extend(std::time::Duration::from_secs(60)).await.unwrap();
    let writing = reading.try_upgrade().await.expect("it is the only reader");
    let _reading = writing.downgrade().await.unwrap();
    assert_eq!(rw.inspect().await.unwrap().holders.len(), 1);
    assert!(rw.force_unlock("").await.unwrap());

    let semaphore = client.semaphore("app:semaphore");
    assert!(semaphore.try_set_permits(2, None).await.unwrap());
    let permit = semaphore.acquire(2).await.unwrap();
    assert!(semaphore.try_acquire_for(1, soon).await.unwrap().is_none());
    permit.release().await.unwrap();
    assert_eq!(semaphore.add_permits(1).await.unwrap(), 3);
    assert_eq!(semaphore.drain_permits().await.unwrap(), 3);

    let permits = client.permit_semaphore("app:permits");
    permits.set_permits(2).await.unwrap();
    let guard = permits.acquire(1).await.unwrap();
    let [id] = guard.permit_ids()[..] else { panic!("one permit") };
    assert!(permits.extend(id, std::time::Duration::from_secs(9)).await.unwrap());
    assert!(permits.release(&[id]).await.unwrap());
    assert_eq!(permits.available().await.unwrap(), 2);

    let latch = client.count_down_latch("app:latch");
    assert!(latch.try_set_count(2).await.unwrap());
    let waiter = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    latch.count_down().await.unwrap();
    assert!(latch.delete().await.unwrap());
    waiter.await.unwrap().unwrap();
    client.shutdown().await;

    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(refused.array().len(), 0, "{refused:?}");
}

#[tokio::test]
async fn inspection_needs_only_the_documented_permissions() {
    let server = RedisServer::start();
    server.cli(&acl(2)).ok();
    let holder = Client::connect(&server.url()).await.unwrap();
    let _plain = holder.lock("a").lock().await.unwrap();
    let _string = holder.mutex("b").lock().await.unwrap();
    let _fair = holder.fair_lock("c").fenced().lock().await.unwrap();
    let _reading = holder.rw_lock("d").read().await.unwrap();
    let permits = holder.permit_semaphore("e");
    permits.set_permits(2).await.unwrap();
    let _permit = permits.acquire(1).await.unwrap();

    let client = Client::connect(&server.url_with("ops", "secret")).await.unwrap();
    let inspector = client.inspector();
    // The mutex is found once its client has said that it holds it.
    while inspector.inspect("b").await.unwrap().holders[0].since.is_none() {
        tokio::task::yield_now().await;
    }
    let mut names = std::collections::BTreeSet::new();
    let mut listing = inspector.list("*");
    while let Some(page) = listing.next().await.unwrap() {
        names.extend(page.into_iter().map(|lock| lock.name.to_string()));
    }
    assert!(listing.is_complete());
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(inspector.inspect(name).await.unwrap().holders.len(), 1, "{name}");
    }
    client.shutdown().await;
    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(refused.array().len(), 0, "{refused:?}");
}

#[track_caller]
fn assert_nothing_refused(node: &Node) {
    let refused = node.server().cli(&["ACL", "LOG"]);
    assert_eq!(refused.array().len(), 0, "{refused:?}");
}

fn hosts(nodes: &[Node]) -> String {
    let hosts = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
    hosts.collect::<Vec<_>>().join(",")
}

/// Creates the user of the manual on each server.
fn set_users(servers: &Replicated) {
    for node in servers.nodes() {
        node.server().cli(&acl(0)).ok();
        node.server().cli(&acl(3)).ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_the_manual_are_enough_for_a_failover_of_sentinels() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    set_users(sentinels.servers());
    for sentinel in sentinels.sentinels() {
        sentinel.server().cli(&acl(4)).ok();
    }
    let url = format!(
        "redis+sentinel://locks:secret@{}/mymaster?sentinel_user=locks&sentinel_password=secret",
        hosts(sentinels.sentinels()),
    );
    let client = Client::connect(&url).await.unwrap();
    let guard = client.lock("app:a").lock().await.unwrap();
    let sentinels = tokio::task::spawn_blocking(move || {
        sentinels.failover();
        sentinels
    });
    let sentinels = sentinels.await.unwrap();
    let next = client.lock("app:b").lock().await.unwrap();
    assert_eq!(sentinels.servers().primary().server().cli(&["EXISTS", "app:b"]).int(), 1);
    next.release().await.unwrap();
    guard.release().await.unwrap();
    client.shutdown().await;
    sentinels.servers().nodes().iter().for_each(assert_nothing_refused);
    sentinels.sentinels().iter().for_each(assert_nothing_refused);
}

/// The old primary stays up, and no announcement is heard: the sentinels are asked now and then.
#[tokio::test(flavor = "multi_thread")]
async fn without_channels_of_sentinels_a_failover_is_noticed_later() {
    let sentinels = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    for sentinel in sentinels.sentinels() {
        sentinel.server().cli(&acl(4)).ok();
        sentinel.server().cli(&["ACL", "SETUSER", "locks", "resetchannels"]).ok();
    }
    let url = format!(
        "redis+sentinel://{}/mymaster?sentinel_user=locks&sentinel_password=secret",
        hosts(sentinels.sentinels()),
    );
    let client = Client::connect(&url).await.unwrap();
    let failover = move || {
        sentinels.failover();
        sentinels
    };
    let sentinels = tokio::task::spawn_blocking(failover).await.unwrap();
    let (old, new) = (&sentinels.servers().nodes()[0], sentinels.servers().primary());
    while new.server().commandstats("evalsha") == 0 {
        // Some are granted by the old primary, and some fail while the client changes over.
        if let Ok(Some(guard)) = client.lock("a").try_lock().await {
            let _ = guard.release().await;
        }
        // Which would end the connection.
        assert!(old.is_primary(), "the old primary was demoted before");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_the_manual_are_enough_for_replicas() {
    let servers = tokio::task::spawn_blocking(Replicated::start).await.unwrap();
    set_users(&servers);
    let acknowledged = || {
        ClientOptions::new().redis(RedisOptions::new().acknowledged_by(2, Duration::from_secs(1)))
    };
    let url = format!("redis+replicated://locks:secret@{}", hosts(servers.nodes()));
    let single = servers.primary().server().url_with("locks", "secret");
    for url in [url.as_str(), &single] {
        let client = Client::connect_with(url, acknowledged()).await.unwrap();
        client.lock("app:a").lock().await.unwrap().release().await.unwrap();
        client.shutdown().await;
    }
    servers.nodes().iter().for_each(assert_nothing_refused);

    // What the table says of users that lack something.
    let deny = |rights: &[&str]| {
        set_users(&servers);
        for node in servers.nodes() {
            node.server().cli(&[&["ACL", "SETUSER", "locks"], rights].concat()).ok();
        }
    };
    let locks = async |url: &str, options: ClientOptions| {
        let client = Client::connect_with(url, options).await?;
        client.lock("app:a").lock().await?.release().await
    };
    let may = |answer| match answer {
        Ok(()) => true,
        Err(Error::Denied { .. }) => false,
        Err(other) => panic!("{other:?}"),
    };
    for (rights, replicated, strict) in [
        (&["-role"][..], true, true),
        (&["-info"], true, false),
        (&["-role", "-info"], false, false),
        (&["-wait"], true, false),
    ] {
        deny(rights);
        assert!(may(locks(&single, ClientOptions::new()).await), "{rights:?}");
        let found = may(locks(url.as_str(), ClientOptions::new()).await);
        assert_eq!(found, replicated, "{rights:?}");
        assert_eq!(may(locks(&single, acknowledged()).await), strict, "{rights:?}");
    }
}

/// Creates the users of the manual on each node. `number` is the block for the version of the servers.
fn set_cluster_users(cluster: &Cluster, number: usize) {
    for node in cluster.nodes() {
        if number == OLD {
            // It logs a refusal of `CLIENT SETINFO`, which it does not know.
            let rights = ["resetchannels", "+client|setinfo"];
            node.server().cli(&[&["ACL", "SETUSER", "locks"], &rights[..]].concat()).ok();
        }
        for block in [0, 1, number] {
            node.server().cli(&acl(block)).ok();
        }
        node.server().cli(&["ACL", "LOG", "RESET"]).ok();
    }
}

/// The blocks of the manual for a cluster.
const NEW: usize = 5;
const OLD: usize = 6;
const OPS: usize = 7;

async fn started(shape: Shape, flavour: Flavour) -> Cluster {
    let start = move || Cluster::builder(shape).flavour(flavour).start();
    tokio::task::spawn_blocking(start).await.unwrap()
}

fn cluster_url(cluster: &Cluster, user: &str) -> String {
    format!("redis+cluster://{user}:secret@{}", hosts(cluster.nodes()))
}

/// Extends a hold, again while its slot or its primary changes.
async fn extended(guard: &LockGuard, seconds: u64) {
    while let Err(error) = guard.extend(Duration::from_secs(seconds)).await {
        assert!(matches!(error, Error::Unreachable { .. } | Error::Refused { .. }), "{error:?}");
    }
}

/// Whether a client waits for the lock `app:a`, as `PUBSUB` with this word tells.
fn listens(cluster: &Cluster, word: &str) -> bool {
    let channel = "redisson_lock__channel:{app:a}";
    let heard = |node: &Node| node.server().cli(&["PUBSUB", word, channel]).ok();
    cluster.nodes().iter().any(|node| !heard(node).array().is_empty())
}

/// Every primitive, a slot that moves, and a failover. `word` lists the channels of wake-ups.
async fn uses_a_cluster(cluster: Cluster, word: &str) {
    let url = cluster_url(&cluster, "locks");
    let client = Client::connect(&url).await.unwrap();
    let other = Client::connect(&url).await.unwrap();
    let guard = client.lock("app:a").lock().await.unwrap();
    let waiter = tokio::spawn(other.lock("app:a").lock());
    while !listens(&cluster, word) {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    client.mutex("app:m").lock().await.unwrap().release().await.unwrap();
    client.fenced_lock("app:fenced").lock().await.unwrap().release().await.unwrap();
    client.fair_lock("app:fair").lock().await.unwrap().release().await.unwrap();
    let writing = client.rw_lock("app:rw").write().await.unwrap();
    writing.downgrade().await.unwrap().release().await.unwrap();
    let semaphore = client.semaphore("app:semaphore");
    assert!(semaphore.try_set_permits(2, None).await.unwrap());
    semaphore.acquire(1).await.unwrap().release().await.unwrap();
    let permits = client.permit_semaphore("app:permits");
    permits.set_permits(2).await.unwrap();
    permits.acquire(1).await.unwrap().release().await.unwrap();
    for name in ["app:latch", "{app:}latch"] {
        let latch = client.count_down_latch(name);
        assert!(latch.try_set_count(1).await.unwrap());
        latch.count_down().await.unwrap();
        latch.wait().await.unwrap();
    }

    let guard = client.lock("app:moves").lock().await.unwrap();
    let slot = Cluster::slot_of("app:moves");
    let step = |cluster: Cluster, step: fn(&Cluster, u16)| {
        let step = move || {
            step(&cluster, slot);
            cluster
        };
        async { tokio::task::spawn_blocking(step).await.unwrap() }
    };
    let cluster = step(cluster, |cluster, slot| {
        cluster.begin_migration(slot, (cluster.shard_of_slot(slot) + 1) % 3);
        assert!(cluster.move_key("app:moves"));
    });
    let cluster = cluster.await;
    extended(&guard, 50).await;
    let cluster = step(cluster, |cluster, slot| {
        cluster.move_keys(slot);
        cluster.end_migration(slot);
    });
    let cluster = cluster.await;
    extended(&guard, 60).await;
    let fails_over = |cluster: &Cluster, slot| {
        cluster.failover(cluster.shard_of_slot(slot));
    };
    let cluster = step(cluster, fails_over).await;
    extended(&guard, 70).await;
    assert_eq!(cluster.owner_of("app:moves").server().cli(&["EXISTS", "app:moves"]).int(), 1);
    guard.release().await.unwrap();
    client.shutdown().await;
    other.shutdown().await;
    cluster.nodes().iter().for_each(assert_nothing_refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_the_manual_are_enough_for_a_cluster() {
    let cluster = started(Shape::Replicated, Flavour::System).await;
    set_cluster_users(&cluster, NEW);
    uses_a_cluster(cluster, "SHARDCHANNELS").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_the_manual_are_enough_for_a_cluster_of_redis_6_2() {
    let cluster = started(Shape::Replicated, Flavour::Redis62).await;
    set_cluster_users(&cluster, OLD);
    uses_a_cluster(cluster, "CHANNELS").await;
}

/// What the table says of users that lack something.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_permissions_that_lack_have_the_documented_effects() {
    let cluster = started(Shape::Primaries, Flavour::System).await;
    let deny = |right: &str| {
        set_cluster_users(&cluster, NEW);
        for node in cluster.nodes() {
            node.server().cli(&["ACL", "SETUSER", "locks", right]).ok();
        }
    };
    let url = cluster_url(&cluster, "locks");
    deny("-cluster|slots");
    let denied = Client::connect(&url).await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");

    for (right, plain, sharded) in [
        ("-cluster|info", false, true),
        ("-cluster|myid", false, true),
        ("-pubsub|shardnumsub", true, true),
    ] {
        deny(right);
        let client = Client::connect(&url).await.unwrap();
        let guard = client.lock("app:a").lock().await.unwrap();
        let other = Client::connect(&url).await.unwrap();
        let waiter = tokio::spawn(other.lock("app:a").lock());
        while (listens(&cluster, "CHANNELS"), listens(&cluster, "SHARDCHANNELS"))
            != (plain, sharded)
        {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }

    for right in ["-spublish", "-ssubscribe"] {
        deny(right);
        let [client, other] = [(); 2].map(|()| Client::connect(&url));
        let (client, other) = (client.await.unwrap(), other.await.unwrap());
        let guard = client.lock("app:a").lock().await.unwrap();
        let waiter = tokio::spawn(other.lock("app:a").lock());
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }

    deny("-asking");
    let client = Client::connect(&url).await.unwrap();
    let guard = client.lock("app:a").lease(Duration::from_secs(600)).lock().await.unwrap();
    let slot = Cluster::slot_of("app:a");
    cluster.begin_migration(slot, (cluster.shard_of_slot(slot) + 1) % 3);
    assert!(cluster.move_key("app:a"));
    let refused = guard.extend(Duration::from_secs(601)).await;
    assert!(refused.is_err(), "it cannot be asked for");
    cluster.end_migration(slot);
    extended(&guard, 602).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_of_a_cluster_needs_only_the_documented_permissions() {
    let cluster = started(Shape::Primaries, Flavour::System).await;
    for node in cluster.nodes() {
        node.server().cli(&acl(2)).ok();
        node.server().cli(&acl(OPS)).ok();
    }
    let holder = Client::connect(&cluster.url()).await.unwrap();
    let names: Vec<_> = (0..3).map(|shard| cluster.name_on(shard)).collect();
    let _read = holder.rw_lock(&names[0]).read().await.unwrap();
    let _fair = holder.fair_lock(&names[1]).lock().await.unwrap();
    let _lock = holder.lock(&names[2]).lock().await.unwrap();
    let url = cluster_url(&cluster, "ops");
    let options = ClientOptions::new().redis(RedisOptions::new().unacknowledged());
    let client = Client::connect_with(&url, options).await.unwrap();
    let (inspector, mut listed) = (client.inspector(), Vec::new());
    let mut listing = inspector.list("*");
    while let Some(page) = listing.next().await.unwrap() {
        listed.extend(page.into_iter().map(|lock| lock.name.to_string()));
    }
    assert!(listing.is_complete());
    listed.sort();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(listed, expected);
    for name in &names {
        assert_eq!(inspector.inspect(name).await.unwrap().holders.len(), 1, "{name}");
    }
    cluster.nodes().iter().for_each(assert_nothing_refused);
    cluster.begin_migration(Cluster::slot_of(&names[2]), 0);
    let found = client.check().await.unwrap().findings;
    assert!(found.iter().any(|finding| finding.detail.contains("being moved")), "{found:?}");
    for node in cluster.nodes() {
        node.server().cli(&["ACL", "SETUSER", "ops", "-cluster|nodes"]).ok();
    }
    let found = client.check().await.unwrap().findings;
    assert!(!found.iter().any(|finding| finding.detail.contains("being moved")), "{found:?}");
}

const CLUSTER: &str = include_str!("../src/manual/cluster.md");

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(kind: &str, answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Refused { .. })), "{kind}: {answer:?}");
}

/// The table of the chapter on clusters.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_migrated_slot_serves_what_the_manual_says() {
    let cluster = started(Shape::Primaries, Flavour::chosen()).await;
    // A change of a counter is repeated, and fails after this time.
    let options = ClientOptions::new().unreachable_after(Duration::from_secs(1));
    let client = Client::connect_with(cluster.url(), options).await.unwrap();
    let name = |kind: &str| format!("{{slot}}:{kind}");
    let semaphore = client.semaphore(name("semaphore"));
    assert!(semaphore.try_set_permits(2, None).await.unwrap());
    let permits = client.permit_semaphore(name("permits"));
    permits.set_permits(2).await.unwrap();
    let latch = client.count_down_latch(name("latch"));
    assert!(latch.try_set_count(1).await.unwrap());
    let open = client.count_down_latch(name("open"));
    let holds = [
        ("lock", AnyGuard::from(client.lock(name("lock")).lock().await.unwrap())),
        ("mutex", client.mutex(name("mutex")).lock().await.unwrap().into()),
        ("fenced", client.fenced_lock(name("fenced")).lock().await.unwrap().into()),
        ("fair", client.fair_lock(name("fair")).lock().await.unwrap().into()),
        ("read", client.rw_lock(name("read")).read().await.unwrap().into()),
        ("write", client.rw_lock(name("write")).write().await.unwrap().into()),
        ("permits", permits.acquire(1).await.unwrap().into()),
    ];
    let slot = Cluster::slot_of(&name("any"));
    cluster.begin_migration(slot, (cluster.shard_of_slot(slot) + 1) % 3);
    // Their other key, which records recent changes, stays.
    assert!(cluster.move_key(&name("semaphore")) && cluster.move_key(&name("latch")));

    for (kind, guard) in &holds {
        let extended = guard.extend(Duration::from_secs(100)).await;
        assert!(extended.is_ok(), "{kind}: {extended:?}");
    }
    let other = |kind: &str| name(&format!("other {kind}"));
    let guard = client.lock(other("lock")).try_lock().await.unwrap().unwrap();
    guard.release().await.unwrap();
    let guard = client.mutex(other("mutex")).try_lock().await.unwrap().unwrap();
    guard.release().await.unwrap();
    let guard = client.spin_lock(other("spin")).try_lock().await.unwrap().unwrap();
    guard.release().await.unwrap();
    let members = ["a", "b"].map(|member| client.lock(other(member)));
    let guard = MultiLock::new(members).try_lock().await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_refused("fenced", client.fenced_lock(other("fenced")).try_lock().await);
    assert_refused("fair", client.fair_lock(other("fair")).try_lock().await);
    assert_refused("read", client.rw_lock(other("read")).try_read().await);
    assert_refused("write", client.rw_lock(other("write")).try_write().await);
    assert_refused("permits", permits.try_acquire(1).await);
    assert_refused("semaphore", semaphore.try_acquire(1).await);
    assert_refused("latch", latch.count_down().await);
    open.wait().await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 1);

    // Releases are served, or repeated until the slot is complete.
    for (kind, guard) in holds {
        let released = guard.release().await;
        match kind {
            "lock" | "mutex" | "fenced" => assert!(released.is_ok(), "{kind}: {released:?}"),
            _ => {
                let unconfirmed = matches!(released, Err(Error::Unconfirmed { .. }));
                assert!(unconfirmed, "{kind}: {released:?}");
            }
        }
    }
    cluster.move_keys(slot);
    cluster.end_migration(slot);
    for kind in ["fair", "read", "write"] {
        while cluster.owner_of(&name(kind)).server().cli(&["EXISTS", &name(kind)]).int() == 1 {
            tokio::task::yield_now().await;
        }
    }
    while permits.available().await.unwrap() < 2 {
        tokio::task::yield_now().await;
    }

    let split = client.lock("a}b").try_lock().await;
    let Err(Error::Invalid { .. }) = &split else { panic!("{split:?}") };
    let said = split.unwrap_err().to_string();
    assert!(said.contains(block(CLUSTER, "text", 0).trim()), "{said}");
}

const FENCING: &str = include_str!("../src/manual/fencing.md");

#[tokio::test]
async fn the_script_of_the_manual_refuses_an_older_token() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.fenced_lock("account");
    let token = async || {
        let guard = lock.lock().await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        token.to_string()
    };
    let (old, new): (String, String) = (token().await, token().await);
    let write = |token: &str, value: &str| {
        let script = block(FENCING, "lua", 0);
        server.cli(&["EVAL", script, "2", "{a}:value", "{a}:token", token, value]).int()
    };
    assert_eq!(write(&old, "first"), 1);
    assert_eq!(write(&new, "second"), 1);
    assert_eq!(write(&new, "third"), 1, "the same holder may come again");
    assert_eq!(write(&old, "late"), 0);
    assert_eq!(server.cli(&["GET", "{a}:value"]).text(), "third");
    assert_eq!(server.cli(&["GET", "{a}:token"]).text(), new, "plain digits");
}

/// The block of the manual for the members of a quorum.
const MEMBER: usize = 8;

fn quorum_url(members: &[RedisServer], login: &str) -> String {
    let urls = members.iter().map(|member| format!("redis://{login}127.0.0.1:{}", member.port()));
    format!("quorum:{}", urls.collect::<Vec<_>>().join(","))
}

#[tokio::test]
async fn the_permissions_of_the_manual_are_enough_for_a_quorum() {
    let members = [(); 3].map(|()| RedisServer::start());
    for member in &members {
        member.cli(&acl(0)).ok();
        member.cli(&["ACL", "SETUSER", "locks", "~redisson_lock_token:*"]).ok();
    }
    let lease = Duration::from_secs(1);
    let options = || {
        let options = ClientOptions::new().longest_lease(lease).watchdog_timeout(lease);
        options.unreachable_after(Duration::from_secs(30))
    };
    let url = quorum_url(&members, "locks:secret@");
    let (client, other) = (
        Client::connect_with(&url, options()).await.unwrap(),
        Client::connect_with(&url, options()).await.unwrap(),
    );
    // After the cold start.
    let guard = client.lock("app:a").lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.lock("app:a").lock().await });
    guard.reenter().await.unwrap().release().await.unwrap();
    guard.extend(lease).await.unwrap();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(client.lock("app:a").force_unlock("").await.unwrap());
    drop(guard);
    client.mutex("app:m").lock().await.unwrap().release().await.unwrap();
    client.fenced_lock("app:f").lock().await.unwrap().release().await.unwrap();
    client.shutdown().await;
    for member in &members {
        let refused = member.cli(&["ACL", "LOG"]);
        assert_eq!(refused.array().len(), 0, "{refused:?}");
    }
}

/// A quorum needs each of these.
#[tokio::test]
async fn a_member_without_a_permission_of_the_manual_does_not_join() {
    let members = [(); 3].map(|()| RedisServer::start());
    let command = acl(MEMBER);
    let (user, needed) = command.split_at(3);
    assert_eq!(user, ["ACL", "SETUSER", "locks"]);
    let url = quorum_url(&members, "locks:secret@");
    for without in needed {
        for member in &members {
            member.cli(&["ACL", "DELUSER", "locks"]).ok();
            member.cli(&acl(0)).ok();
            let only = match without.strip_prefix('+') {
                Some(right) => format!("-{right}"),
                None => "resetkeys".to_owned(),
            };
            member.cli(&["ACL", "SETUSER", "locks", &only]).ok();
        }
        let connected = Client::connect(&url).await;
        let Err(Error::Denied { detail, .. }) = &connected else {
            panic!("{without}: {connected:?}");
        };
        let is_named = |member: &&RedisServer| detail.contains(&format!(":{}: ", member.port()));
        assert!(members.iter().filter(is_named).count() >= 2, "{without}: {detail}");
    }
}

/// The blocks of the manual for inspection of a quorum.
const INSPECTED_MEMBER: [usize; 2] = [9, 10];

/// Also of members without a marker.
#[tokio::test]
async fn inspection_of_a_quorum_needs_only_the_documented_permissions() {
    let members = [(); 3].map(|()| RedisServer::start());
    let on_all = |command: &[&str]| {
        for member in &members {
            member.cli(command).ok();
        }
    };
    let url = quorum_url(&members, "");
    // No cold start.
    Client::connect(&url).await.unwrap().shutdown().await;
    on_all(&["HSET", "lockkeeper_quorum", "since", "0"]);
    let holder = Client::connect(&url).await.unwrap();
    let _lock = holder.lock("a").lock().await.unwrap();
    let _mutex = holder.mutex("b").lock().await.unwrap();
    let url = quorum_url(&members, "ops:secret@");
    for block in INSPECTED_MEMBER {
        on_all(&["DEL", "lockkeeper_quorum"]);
        on_all(&["ACL", "DELUSER", "ops"]);
        for member in &members {
            member.cli(&acl(2)).ok();
            member.cli(&acl(block)).ok();
        }
        let client = Client::connect(&url).await.unwrap();
        let (inspector, mut names) = (client.inspector(), std::collections::BTreeSet::new());
        // The mutex is found once its client has said that it holds it.
        while names.len() < 2 {
            let mut listing = inspector.list("*");
            while let Some(page) = listing.next().await.unwrap() {
                names.extend(page.into_iter().map(|lock| lock.name.to_string()));
            }
            assert!(listing.is_complete());
        }
        for name in ["a", "b"] {
            assert_eq!(inspector.inspect(name).await.unwrap().holders.len(), 1, "{name}");
        }
    }
    for member in &members {
        let refused = member.cli(&["ACL", "LOG"]);
        assert_eq!(refused.array().len(), 0, "{refused:?}");
    }
}
