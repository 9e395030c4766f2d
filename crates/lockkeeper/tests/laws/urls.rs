//! Opening a store: URLs, settings, secrets.

use std::net::TcpListener;
use std::time::Duration;

use lockkeeper::{Client, ClientOptions, Error, Phase, Result};
use testkit::RedisServer;

use crate::store::assert_is;

const SECRET: &str = "s3cr3t-Pa55";

async fn locks(client: &Client) {
    let lock = client.lock("it");
    let guard = lock.try_lock().await.unwrap().expect("it is free");
    assert!(lock.is_locked().await.unwrap());
    guard.release().await.unwrap();
}

fn no_secret(shown: &str) {
    assert!(!shown.contains(SECRET), "the password is shown: {shown}");
}

fn refused(answer: Result<Client>, what: &str) -> String {
    match answer {
        Err(error @ Error::Invalid { .. }) => {
            no_secret(&format!("{error} {error:?}"));
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
async fn a_server_is_reached_by_tcp_with_and_without_a_database() {
    let server = RedisServer::start();
    locks(&Client::connect(&server.url()).await.unwrap()).await;
    let third = Client::connect(&format!("{}/3", server.url())).await.unwrap();
    let guard = third.lock("it").lock().await.unwrap();
    assert!(server.info_field("keyspace", "db3").starts_with("keys="));
    let zero = Client::connect(&server.url()).await.unwrap();
    assert!(!zero.lock("it").is_locked().await.unwrap(), "databases are apart");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_is_reached_by_a_unix_socket() {
    let server = RedisServer::builder().unix_socket().start();
    locks(&Client::connect(&server.url()).await.unwrap()).await;
    let server = RedisServer::builder().unix_socket().password(SECRET).start();
    let client = Client::connect(&server.url()).await.unwrap();
    no_secret(&format!("{client:?}"));
    locks(&client).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_is_reached_by_tls() {
    let server = RedisServer::builder().tls().password(SECRET).start();
    let trusting = ClientOptions::new().tls_ca(server.ca_pem());
    let client = Client::connect_with(&server.url(), trusting).await.unwrap();
    no_secret(&format!("{client:?}"));
    locks(&client).await;
    let distrusting = ClientOptions::new().connect_timeout(Duration::from_secs(1));
    let error = Client::connect_with(&server.url(), distrusting).await.unwrap_err();
    no_secret(&format!("{error} {error:?}"));
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_may_ask_for_a_certificate() {
    let server = RedisServer::builder().tls_with_client_certificate().start();
    let trusting = ClientOptions::new().tls_ca(server.ca_pem());
    let known = trusting.clone().tls_identity(server.client_cert_pem(), server.client_key_pem());
    let options = format!("{known:?}");
    assert!(!options.contains("BEGIN") && !options.contains("[45, 45"), "{options}");
    locks(&Client::connect_with(&server.url(), known).await.unwrap()).await;
    let unknown = trusting.connect_timeout(Duration::from_secs(1));
    assert!(Client::connect_with(&server.url(), unknown).await.is_err());
}

#[tokio::test]
async fn the_client_name_is_shown_in_client_list() {
    let server = RedisServer::start();
    let options = ClientOptions::new().client_name("checkout-7");
    let client = Client::connect_with(&server.url(), options).await.unwrap();
    locks(&client).await;
    let list = server.cli(&["CLIENT", "LIST"]);
    assert!(list.text().contains("name=checkout-7"), "{}", list.text());
    let plain = Client::connect(&server.url()).await.unwrap();
    locks(&plain).await;
    let list = server.cli(&["CLIENT", "LIST"]);
    assert!(list.text().contains("name=lockkeeper"), "{}", list.text());
}

#[tokio::test]
async fn a_user_and_a_password_are_used() {
    let server = RedisServer::start();
    let rights = ["~*", "&*", "+@all", &format!(">{SECRET}")].map(str::to_owned);
    let mut acl = vec!["ACL".to_owned(), "SETUSER".to_owned(), "ann".to_owned(), "on".to_owned()];
    acl.extend(rights);
    server.cli(&acl).ok();
    let client = Client::connect(&server.url_with("ann", SECRET)).await.unwrap();
    locks(&client).await;
    let list = server.cli(&["CLIENT", "LIST"]);
    assert!(list.text().contains("user=ann"), "{}", list.text());
    no_secret(&format!("{client:?}"));
    no_secret(&format!("{:?}", client.lock("it")));
    no_secret(&format!("{:?}", client.lock("it").lock().await.unwrap()));
}

#[tokio::test]
async fn a_wrong_password_is_denied_at_once_and_never_shown() {
    let server = RedisServer::builder().password("another").start();
    let start = std::time::Instant::now();
    let error = Client::connect(&server.url_with("", SECRET)).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_millis(2500), "{:?}", start.elapsed());
    no_secret(&format!("{error} {error:?} {:?}", std::error::Error::source(&error)));
    assert_is!(error, Error::Denied { lock: None, phase: Phase::Connect, .. });
    let url = format!("redis://127.0.0.1:{}", server.port());
    assert_is!(Client::connect(&url).await, Err(Error::Denied { .. }));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_in_time() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let options = ClientOptions::new().connect_timeout(Duration::from_millis(500));
    let start = std::time::Instant::now();
    let url = format!("redis://ann:{SECRET}@127.0.0.1:{port}");
    let error = Client::connect_with(&url, options.clone()).await.unwrap_err();
    no_secret(&format!("{error} {error:?}"));
    assert_is!(error, Error::Unreachable { lock: None, phase: Phase::Connect, .. });
    let url = format!("redis+unix:///nowhere/redis.sock?pass={SECRET}");
    let error = Client::connect_with(&url, options).await.unwrap_err();
    no_secret(&format!("{error} {error:?}"));
    assert_is!(error, Error::Unreachable { phase: Phase::Connect, .. });
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

/// Accepts, and never says a word.
#[tokio::test]
async fn a_server_that_says_nothing_is_unreachable_in_time() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://:{SECRET}@{}", mute.local_addr().unwrap());
    let options = ClientOptions::new().connect_timeout(Duration::from_millis(400));
    let start = std::time::Instant::now();
    let error = Client::connect_with(&url, options).await.unwrap_err();
    no_secret(&format!("{error} {error:?}"));
    assert_is!(error, Error::Unreachable { phase: Phase::Connect, .. });
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_url_that_makes_no_sense_is_refused() {
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
    ] {
        refused(Client::connect(&url).await, &url);
    }
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
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
        ("client name with a space", o().client_name("a b")),
        ("client name with a line break", o().client_name("a\nb")),
        ("client name not ASCII", o().client_name("caf\u{e9}")),
    ] {
        refused(Client::connect_with("memory:", options.clone()).await, what);
        // Before anything is sent: nobody listens there.
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
        o().client_name(""),
        o().name_prefix(b"\xff\x00{"),
    ] {
        locks(&Client::connect_with("memory:", options).await.unwrap()).await;
    }
}
