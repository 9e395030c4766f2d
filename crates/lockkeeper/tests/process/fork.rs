//! A process is forked: in the child the client is closed, and nothing of the parent's is touched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, exit};
use std::thread;
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid_nohang};
use lockkeeper::blocking::{self, Wait, this_thread};
use lockkeeper::{Client, ClientOptions, Error, LostReason};
use testkit::RedisServer;
use tokio::runtime::{Builder, Runtime};

use crate::lockfile::LockFile;
use crate::{PATIENCE, Test};

pub(crate) const TESTS: &[Test] = &[
    ("fork::a_blocking_client_is_closed_in_a_child", || on_each_store(blocking_client)),
    ("fork::an_async_client_is_closed_in_a_child", || on_each_store(async_client)),
    ("fork::a_child_can_connect_again", connects_anew),
    ("fork::a_child_opens_no_file_that_its_parent_has_open", opens_no_file_that_was_open),
    ("fork::a_child_that_drops_everything_sends_nothing", sends_nothing),
];

fn on_each_store(test: fn(&str)) {
    let (server, file) = (RedisServer::start(), LockFile::new());
    for url in ["memory:".to_owned(), file.url(), server.url()] {
        test(&url);
    }
}

/// Does `work` with `given` in a fork of this process, which then ends without dropping anything else.
/// In this process nothing happens to `given`.
#[track_caller]
fn in_child<T>(given: T, work: impl FnOnce(T)) -> T {
    let pid = match fork().expect("a process can be forked") {
        Fork::Child => {
            let done = catch_unwind(AssertUnwindSafe(|| work(given)));
            exit(i32::from(done.is_err()))
        }
        Fork::Parent(pid) => pid,
    };
    let limit = Instant::now() + PATIENCE;
    loop {
        match waitpid_nohang(pid).expect("it is our child") {
            Some(status) => {
                assert_eq!(status, 0, "the child failed");
                return given;
            }
            None if Instant::now() < limit => thread::sleep(Duration::from_millis(2)),
            None => {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
                panic!("the child hangs");
            }
        }
    }
}

#[track_caller]
fn assert_closed<T>(outcome: Result<T, Error>) {
    match outcome {
        Err(Error::Closed { .. }) => {}
        Err(Error::Lost { reason: LostReason::Closed, .. }) => {}
        Err(error) => panic!("not closed, but: {error}"),
        Ok(_) => panic!("not closed"),
    }
}

/// A client whose end would be waited for too long, if it were waited for.
fn connect(url: &str) -> Client {
    let options = ClientOptions::new().response_timeout(PATIENCE * 2);
    blocking::connect_with(url, options).expect("the store is there")
}

fn blocking_client(url: &str) {
    let client = connect(url);
    let lock = client.lock("it");
    let (guard, again, mutex) = (
        lock.lock().wait().unwrap(),
        lock.lock().wait().unwrap(),
        client.mutex("other").lock().wait().unwrap(),
    );
    let semaphore = client.semaphore("permits");
    semaphore.try_set_permits(2, None).wait().unwrap();
    let (permit, kept) =
        (semaphore.acquire(1).wait().unwrap(), semaphore.acquire(1).wait().unwrap());
    let given = (client, lock, guard, again, mutex, semaphore, permit, kept);
    let given = in_child(given, |(client, lock, guard, again, mutex, semaphore, permit, kept)| {
        assert!(guard.is_lost() && mutex.is_lost());
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert_eq!(guard.lost().wait(), LostReason::Closed);
        assert_closed(lock.lock().wait());
        assert_closed(lock.try_lock().wait());
        assert_closed(lock.try_lock_for(PATIENCE).wait());
        assert_closed(lock.is_locked().wait());
        assert_closed(lock.force_unlock("").wait());
        // Another owner, which would wait behind the parent's.
        let other = lock.clone();
        assert_closed(thread::spawn(move || other.lock().wait().map(drop)).join().unwrap());
        assert_closed(client.lock("new").lock().wait());
        assert_closed(client.mutex("other").lock().wait());
        assert_closed(client.rw_lock("new").read().wait());
        assert_closed(semaphore.acquire(1).wait());
        assert_closed(semaphore.available().wait());
        assert_closed(client.count_down_latch("new").wait().wait());
        assert_closed(client.inspector().inspect("it").wait());
        assert_closed(client.inspector().list("*").next().wait());
        assert_closed(client.inspector().watch("*").next().wait());
        assert_closed(client.check().wait().map(drop));
        assert_closed(guard.reenter().wait());
        assert_closed(guard.extend(PATIENCE).wait());
        assert_closed(again.release().wait());
        assert_closed(permit.release().wait());
        kept.forget();
        client.shutdown().wait();
        client.abandon();
        drop((guard, mutex, semaphore, lock, client));
    });
    let (client, lock, guard, again, ..) = &given;
    assert!(!guard.is_lost() && !again.is_lost(), "the parent's are its own, on {url}");
    assert_eq!(lock.hold_count(&this_thread(client)).wait().unwrap(), 2, "on {url}");
}

/// The parent keeps what the child was given, and its connection.
fn sends_nothing() {
    let (server, file) = (RedisServer::start(), LockFile::new());
    for url in ["memory:".to_owned(), file.url(), server.url()] {
        let client = connect(&url);
        let lock = client.lock("it");
        let held = lock.lock().wait().unwrap();
        for _ in 0..3 {
            let guard = in_child(lock.lock().wait().unwrap(), drop);
            assert_eq!(lock.hold_count(&this_thread(&client)).wait().unwrap(), 2, "on {url}");
            guard.release().wait().unwrap();
        }
        // Nothing is held, and the child drops the last handle.
        held.release().wait().unwrap();
        let (lock, _client) = in_child((lock, client), drop);
        lock.lock().wait().unwrap().release().wait().unwrap();
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn async_client(url: &str) {
    let home = runtime();
    let (client, lock, guard, other) = home.block_on(async {
        let client = Client::connect(url).await.expect("the store is there");
        let lock = client.lock("async");
        let (guard, other) = (lock.lock().await.unwrap(), client.mutex("other async").lock().await);
        (client, lock, guard, other.unwrap())
    });
    let given = (client, lock, guard, other);
    let given = in_child(given, |(client, lock, guard, other)| {
        let lost = guard.lost();
        let here = Builder::new_current_thread().enable_all().build().expect("a runtime");
        here.block_on(async {
            assert!(guard.is_lost());
            assert_eq!(lost.await, LostReason::Closed);
            assert_closed(lock.lock().await);
            assert_closed(lock.try_lock_for(PATIENCE).await);
            assert_closed(guard.reenter().await);
            assert_closed(guard.release().await);
            client.shutdown().await;
            drop((other, lock, client));
        });
    });
    let (client, lock, guard, other) = given;
    home.block_on(async {
        assert!(!guard.is_lost() && !other.is_lost(), "the parent's are its own, on {url}");
        other.release().await.unwrap();
        guard.release().await.unwrap();
        lock.lock().await.unwrap().release().await.unwrap();
        client.shutdown().await;
    });
}

fn connects_anew() {
    let server = RedisServer::start();
    let client = blocking::connect(server.url()).expect("the store is there");
    let guard = client.lock("shared").lock().wait().unwrap();
    in_child((), |()| {
        let client = blocking::connect(server.url()).expect("the store is there");
        let own = client.lock("own").lock().wait().unwrap();
        assert!(client.lock("shared").try_lock().wait().unwrap().is_none(), "it is the parent's");
        own.release().wait().unwrap();
    });
    assert!(!guard.is_lost());
    guard.release().wait().unwrap();
}

fn opens_no_file_that_was_open() {
    let file = LockFile::new();
    let client = blocking::connect(file.url()).expect("the file can be opened");
    in_child((), |()| {
        let refused = blocking::connect(file.url()).err();
        assert!(matches!(refused, Some(Error::Invalid { .. })), "{refused:?}");
    });
    client.lock("it").lock().wait().unwrap().release().wait().unwrap();
    drop(client);
    in_child((), |()| {
        let client = blocking::connect(file.url()).expect("no other thread has it open");
        client.lock("it").lock().wait().unwrap().release().wait().unwrap();
    });
}
