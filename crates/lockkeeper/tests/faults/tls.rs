//! TLS: trusted servers, client certificates, and errors.

use lockkeeper::{Client, ClientOptions, Kind, RedisOptions};
use testkit::RedisServer;
use tokio::io::AsyncWriteExt;

use crate::support::*;

/// Acquire, wait and release over TLS. Wake-ups have their own connection.
async fn works(server: &RedisServer, options: ClientOptions) {
    let (one, two) =
        (connect(&server.url(), options.clone()).await, connect(&server.url(), options).await);
    for kind in KINDS {
        let holder = taken(&lock_of(&one, kind, "a")).await;
        let handle = lock_of(&two, kind, "a");
        let waiter = tokio::spawn(handle.lock());
        eventually(PATIENCE, "listening", || listeners(server, "a") == 1).await;
        assert_held(server, kind, "a", &holder, 1);
        holder.release().await.expect("held");
        let guard = within(SOON, "the waiter", joined(waiter)).await;
        guard.expect("freed").release().await.expect("held");
        assert_free(server, kind, "a");
    }
}

fn trusting(server: &RedisServer) -> ClientOptions {
    options().redis(RedisOptions::new().tls_ca(server.ca_pem()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_ca_is_trusted_when_configured() {
    let server = RedisServer::builder().tls().start();
    works(&server, trusting(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_and_a_password_are_accepted() {
    let server = RedisServer::builder().tls_with_client_certificate().password("p@ss:w/rd").start();
    let identified = RedisOptions::new().tls_ca(server.ca_pem());
    let identified = identified.tls_identity(server.client_cert_pem(), server.client_key_pem());
    let identified = options().redis(identified);
    let shown = format!("{identified:?}");
    assert!(!shown.contains("BEGIN") && !shown.contains("[45, 45"), "{shown}");
    works(&server, identified).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_ca_is_rejected_and_the_error_says_so() {
    let server = RedisServer::builder().tls().start();
    let other = RedisServer::builder().tls().start();
    for options in [trusting(&other), options()] {
        let url = server.url();
        let connecting = Client::connect_with(&url, options);
        let answer = within(SOON + SOON, "an answer", connecting).await;
        let said = assert_unreachable(&answer).to_lowercase();
        assert!(said.contains("certificate"), "{said}");
    }
}

/// A Redis server waits for more, any other one answers at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_reported() {
    let server = RedisServer::start();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let other = listener.local_addr().expect("it has one").port();
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            let _ = caller.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    for port in [server.port(), other] {
        let url = format!("rediss://127.0.0.1:{port}");
        let connecting = Client::connect_with(&url, options());
        let answer = within(SOON + SOON, "an answer", connecting).await;
        let said = assert_unreachable(&answer);
        assert!(said.contains("does not speak TLS: write redis instead of rediss"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_client_certificate_is_reported() {
    let server = RedisServer::builder().tls_with_client_certificate().start();
    let url = server.url();
    let connecting = Client::connect_with(&url, trusting(&server));
    let answer = within(SOON + SOON, "an answer", connecting).await;
    assert!(answer.is_err(), "{answer:?}");
    let said = answer.expect_err("refused").to_string().to_lowercase();
    assert!(said.contains("certificate"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_over_tls_is_denied_and_not_printed() {
    let server = RedisServer::builder().tls().password("right").start();
    let url = server.url_with("", "wr0ng-s3cret");
    let connecting = Client::connect_with(&url, trusting(&server));
    let error = within(SOON + SOON, "an answer", connecting).await;
    let error = error.expect_err("the password is wrong");
    assert!(matches!(error, lockkeeper::Error::Denied { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wr0ng-s3cret"));
}

/// Over TLS a cut is a cut, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_survives_a_lost_tls_connection() {
    let server = RedisServer::builder().tls().start();
    let client = connect(&server.url(), trusting(&server)).await;
    let guard = taken(&lock_of(&client, Kind::Lock, "a")).await;
    let notices = || !server.cli(&["PUBSUB", "CHANNELS", "lockkeeper_notice:*"]).array().is_empty();
    eventually(PATIENCE, "listening for notices", notices).await;
    server.cli(&["PEXPIRE", "a", "30000"]);
    cut_all(&server);
    eventually(SOON, "renewed", || pttl(&server, "a") > 45_000).await;
    assert_held(&server, Kind::Lock, "a", &guard, 1);
}
