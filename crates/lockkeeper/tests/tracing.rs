//! What a log shows: every step of a lock's life, with its name, and no password.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{Client, ClientOptions, LostReason};
use tokio::time::sleep;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

/// Everything that is logged on this thread while it lives.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// This thread logs while it lives.
struct Logging {
    _default: DefaultGuard,
    /// While there is only one subscriber, a thread that has none, such as that of a test that has just ended,
    /// and comes first to a place in the code turns that place off for all. With two, all are asked.
    _second: tracing::Dispatch,
}

impl Log {
    fn start(level: Level) -> (Self, Logging) {
        let log = Self::default();
        let subscriber = || {
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
            subscriber.with_writer(move || writer.clone()).finish()
        };
        let logging = Logging {
            _second: tracing::Dispatch::new(subscriber()),
            _default: tracing::subscriber::set_default(subscriber()),
        };
        (log, logging)
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The one line that has all of `words`.
    fn line(&self, words: &[&str]) -> String {
        let lines = self.lines();
        let mut found = lines.iter().filter(|line| words.iter().all(|word| line.contains(word)));
        let Some(line) = found.next() else { panic!("no line with {words:?} in {lines:#?}") };
        line.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_wait_renew_and_release_are_logged_with_the_locks_name() {
    let (log, _on) = Log::start(Level::TRACE);
    let (ann, bob) = (client("steps").await, client("steps").await);
    let guard = ann.lock("orders:42").lock().await.unwrap();
    let waiter = tokio::spawn(async move { bob.lock("orders:42").lock().await });
    sleep(Duration::from_secs(25)).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();

    let acquired = log.line(&["acquire{lock=orders:42 kind=lock}", "acquired", "waited="]);
    assert!(acquired.contains("DEBUG"), "{acquired}");
    log.line(&["acquire{lock=orders:42 kind=lock}", "waiting"]);
    log.line(&["renewed", "lock=orders:42"]);
    log.line(&["release{lock=orders:42 kind=lock}", "released", "held="]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_a_warning_with_its_reason() {
    let (log, _on) = Log::start(Level::WARN);
    let client = client("loss").await;
    let guard = client.lock("a").lease(Duration::from_secs(1)).lock().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Expired);
    log.line(&["WARN", "lock lost", "lock=a", "its lease expired"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_itself_is_warned_of_once_a_second_at_most() {
    let (log, _on) = Log::start(Level::WARN);
    let client = client("self").await;
    let guard = client.lock("a").lock().await.unwrap();
    let lock = client.lock("a");
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    sleep(Duration::from_secs(6)).await;
    log.line(&["WARN", "waiting for a lock that this client holds itself", "lock=a"]);
    assert_eq!(log.lines().len(), 1, "{:#?}", log.lines());
    waiters.iter().for_each(|waiter| waiter.abort());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_another_is_not_warned_of() {
    let (log, _on) = Log::start(Level::WARN);
    let (ann, bob) = (client("other").await, client("other").await);
    let guard = ann.lock("a").lock().await.unwrap();
    let first = bob.lock("a");
    let (first, second) = (
        tokio::spawn({
            let lock = first.clone();
            async move { lock.lock().await }
        }),
        tokio::spawn(async move { first.lock().await }),
    );
    sleep(Duration::from_secs(20)).await;
    assert_eq!(log.lines(), Vec::<String>::new());
    first.abort();
    second.abort();
    drop(guard);
}

#[tokio::test]
async fn no_password_is_ever_logged() {
    let (log, _on) = Log::start(Level::TRACE);
    let server = testkit::RedisServer::builder().password("s3cr3t-word").start();
    let options = ClientOptions::new().response_timeout(Duration::from_millis(300));
    let url = server.url_with("default", "s3cr3t-word");
    let client = Client::connect_with(&url, options).await.unwrap();
    let guard = client.lock("a").lock().await.unwrap();
    server.kill();
    client.lock("b").try_lock().await.unwrap_err();
    drop(guard);
    let wrong = Client::connect(&server.url_with("default", "s3cr3t-guess")).await.unwrap_err();
    assert!(!format!("{client:?} {wrong} {wrong:?}").contains("s3cr3t"));
    assert!(!log.lines().is_empty());
    // Nor a form of Rust, which is not for people.
    for hidden in ["s3cr3t", "maybe_ran", "detail:"] {
        assert_eq!(log.lines().into_iter().find(|line| line.contains(hidden)), None);
    }
}

async fn client(store: &str) -> Client {
    Client::connect(&format!("memory:tracing-{store}")).await.unwrap()
}
