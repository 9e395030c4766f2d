//! What the manual tells people to type.

use lockkeeper::Client;
use testkit::RedisServer;

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
    assert!(client.lock("app:a").force_unlock().await.unwrap());
    drop(guard);
    client.mutex("app:m").lock().await.unwrap().release().await.unwrap();
    client.shutdown().await;

    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(refused.array().len(), 0, "{refused:?}");
}

#[tokio::test]
async fn the_permissions_of_the_manual_are_enough_for_the_whole_family() {
    let server = RedisServer::start();
    server.cli(&acl(0)).ok();
    server.cli(&acl(1)).ok();
    let client = Client::connect(&server.url_with("locks", "secret")).await.unwrap();

    let queue = client.fair_lock("app:fair");
    let fair = queue.fenced();
    let guard = fair.lock().await.unwrap();
    let next = tokio::spawn(fair.lock());
    while queue.waiting().await.unwrap() == 0 {
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
    assert_eq!(rw.holders().await.unwrap().len(), 1);
    assert!(rw.force_unlock().await.unwrap());

    let semaphore = client.semaphore("app:semaphore");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let permit = semaphore.acquire(2).await.unwrap();
    assert!(semaphore.try_acquire_for(1, soon).await.unwrap().is_none());
    permit.release().await.unwrap();
    assert_eq!(semaphore.add_permits(1).await.unwrap(), 3);
    assert_eq!(semaphore.drain_permits().await.unwrap(), 3);

    let permits = client.permit_semaphore("app:permits");
    permits.set_permits(2).await.unwrap();
    let guard = permits.acquire(1).await.unwrap();
    let [id] = guard.permit_ids()[..] else { panic!("one permit") };
    assert!(permits.update_lease(id, std::time::Duration::from_secs(9)).await.unwrap());
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
async fn whoever_looks_needs_no_more_than_the_manual_says() {
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
    let refused = server.cli(&["ACL", "LOG"]);
    assert_eq!(refused.array().len(), 0, "{refused:?}");
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
