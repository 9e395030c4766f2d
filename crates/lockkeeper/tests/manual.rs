//! What the manual tells people to type.

use lockkeeper::Client;
use testkit::RedisServer;

/// The command in the section on permissions, as one line.
fn acl() -> Vec<String> {
    let page = include_str!("../src/manual/redis.md");
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("the manual shows an ACL").split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn the_permissions_of_the_manual_are_enough() {
    let server = RedisServer::start();
    server.cli(&acl()).ok();
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
