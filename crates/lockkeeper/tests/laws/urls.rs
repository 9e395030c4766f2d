//! URLs, settings and passwords. The faults test connections to real servers.

use std::time::Duration;

use lockkeeper::{Client, ClientOptions, Error, RedisOptions, Result};

const SECRET: &str = "s3cr3t-Pa55";

async fn locks(client: &Client) {
    let lock = client.lock("it");
    let guard = lock.try_lock().await.unwrap().expect("it is free");
    assert!(lock.is_locked().await.unwrap());
    guard.release().await.unwrap();
}

fn refused(answer: Result<Client>, what: &str) -> String {
    match answer {
        Err(error @ Error::Invalid { .. }) => {
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(SECRET), "{what}: the password is shown: {shown}");
            error.to_string()
        }
        other => panic!("{what}: expected Invalid, got {other:?}"),
    }
}

#[tokio::test]
async fn memory_without_a_name_is_a_store_of_its_own() {
    let (a, b) = (Client::connect("memory:").await.unwrap(), Client::memory());
    let _held = (a.lock("it").lock().await.unwrap(), b.lock("it").lock().await.unwrap());
    let c = Client::connect("memory:").await.unwrap();
    assert!(c.lock("it").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn memory_of_one_name_is_shared_within_the_process() {
    let a = Client::connect("memory:shared").await.unwrap();
    let b = Client::connect("memory:shared").await.unwrap();
    let c = Client::connect("memory:other").await.unwrap();
    let _held = a.lock("it").lock().await.unwrap();
    assert!(b.lock("it").try_lock().await.unwrap().is_none());
    assert!(c.lock("it").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn an_invalid_url_is_rejected() {
    for url in [
        "",
        ":",
        "nonsense",
        "memory",
        "http://127.0.0.1:6379",
        "127.0.0.1:6379",
        "REDIS",
        "redis",
        "redis:",
        "redis://",
        "redis://127.0.0.1:notaport",
        "redis://127.0.0.1:99999",
        "redis://127.0.0.1/notadb",
        "redis+unix://",
        "etcd://127.0.0.1",
        "redis+replicated://ann@a",
    ] {
        let said = refused(Client::connect(url).await, url);
        assert!(said.len() > 20, "{url}: says too little: {said}");
    }
    for url in [
        format!("http://ann:{SECRET}@127.0.0.1"),
        format!("redis://ann:{SECRET}@127.0.0.1:port"),
        format!("redis://ann:{SECRET}@[bad"),
        format!("redis://:{SECRET}@127.0.0.1/{SECRET}"),
        format!("redis+unix:{SECRET}"),
        format!("{SECRET}@host:6379"),
        format!("user:{SECRET}@host:6379"),
        format!(":{SECRET}@host:6379"),
        format!("{SECRET}@host"),
        format!("//{SECRET}@host:6379"),
        format!("redis//user:{SECRET}@host"),
        format!("redis://u:{SECRET}"),
        format!("redis+sentinel://:{SECRET}@a,b"),
        format!("redis+sentinel://:{SECRET}@a,,b/m"),
        format!("redis+sentinel://:{SECRET}@a/m/x"),
        format!("redis+sentinel://a/m?password={SECRET}"),
        format!("redis+sentinel://a/m?sentinel_user={SECRET}"),
        format!("redis+sentinel://:{SECRET}@a/m?sentinel_tls=maybe"),
        format!("redis+sentinel://:{SECRET}@a:0/m"),
        format!("redis+replicated://:{SECRET}@a,b/x"),
        format!("redis+replicated://:{SECRET}@a,/0"),
        format!("redis+replicated://:{SECRET}@a/1/2"),
        format!("redis+cluster://:{SECRET}@a,b/1"),
        format!("redis+cluster://:{SECRET}@a,,b"),
        format!("redis+cluster://a?password={SECRET}"),
    ] {
        refused(Client::connect(&url).await, &url);
    }
    for (url, ignored) in [
        ("redis://h?db=3", "\"db\""),
        ("redis+unix:///tmp/x.sock?database=3", "\"database\""),
        ("redis://ann@h", "no password"),
    ] {
        assert!(refused(Client::connect(url).await, url).contains(ignored));
    }
    for host in ["\u{fc}bung", "%C3%BCbung", "a b", "::1", "[::1", "[1.2.3.4]", "[::]", "0.0.0.0"] {
        for url in [format!("redis://{host}"), format!("redis+cluster://a,{host}:7000")] {
            refused(Client::connect(&url).await, &url);
        }
    }
}

fn named(name: &str) -> ClientOptions {
    ClientOptions::new().redis(RedisOptions::new().client_name(name))
}

#[tokio::test]
async fn invalid_settings_are_rejected() {
    let o = ClientOptions::new;
    let ms = Duration::from_millis;
    for (what, options) in [
        ("watchdog 0", o().watchdog_timeout(Duration::ZERO)),
        ("watchdog 1 ms", o().watchdog_timeout(ms(1))),
        ("watchdog max", o().watchdog_timeout(Duration::MAX)),
        ("connect 0", o().connect_timeout(Duration::ZERO)),
        ("connect max", o().connect_timeout(Duration::MAX)),
        ("response 0", o().response_timeout(Duration::ZERO)),
        ("response max", o().response_timeout(Duration::MAX)),
        ("back-off 0", o().retry_backoff(Duration::ZERO, ms(1))),
        ("back-off reversed", o().retry_backoff(ms(2), ms(1))),
        ("back-off max", o().retry_backoff(ms(2), Duration::MAX)),
        ("drift negative", o().drift(-0.1, ms(2))),
        ("drift half", o().drift(0.5, ms(2))),
        ("drift NaN", o().drift(f64::NAN, ms(2))),
        ("tokens for no time", o().token_ttl(Duration::ZERO)),
        ("tokens for 999 ms", o().token_ttl(ms(999))),
        ("tokens for ever", o().token_ttl(Duration::MAX)),
        ("client name with a space", named("a b")),
        ("client name with a line break", named("a\nb")),
        ("client name not ASCII", named("caf\u{e9}")),
    ] {
        refused(Client::connect_with("memory:", options.clone()).await, what);
        // Rejected before a connection is made: no server listens there.
        refused(Client::connect_with("redis://127.0.0.1:1", options).await, what);
    }
}

#[tokio::test]
async fn settings_at_their_limits_work() {
    let o = ClientOptions::new;
    for options in [
        o().watchdog_timeout(Duration::from_millis(30)),
        o().watchdog_timeout(lockkeeper::MAX_LEASE),
        o().drift(0.0, Duration::ZERO),
        o().drift(0.49, Duration::MAX / 4),
        o().unreachable_after(Duration::MAX),
        o().unreachable_after(Duration::ZERO),
        named(""),
        o().name_prefix(b"\xff\x00{"),
    ] {
        locks(&Client::connect_with("memory:", options).await.unwrap()).await;
    }
}
