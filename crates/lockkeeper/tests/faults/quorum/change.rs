//! Clients with different lists of members.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockkeeper::{Client, Error};
use testkit::{History, Quorum};
use tokio::time::Instant;

use super::markers::invalid;
use super::{LEASE, MARKER, away, back, host, leased, on, started};
use crate::support::*;

/// Both lists have member 2, and majorities without it.
const OLD: [usize; 3] = [0, 1, 2];
const NEW: [usize; 3] = [2, 3, 4];

async fn connected(quorum: &Quorum, list: [usize; 3]) -> lockkeeper::Result<Client> {
    let urls = list.map(|index| quorum.node(index).url());
    Client::connect_with(format!("quorum:{}", urls.join(",")), leased()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_another_member_list_refuse_each_other() {
    let quorum = started(Quorum::builder(5).proxied()).await;
    let old = connected(&quorum, OLD).await.expect("the first list");
    let refused = invalid(connected(&quorum, NEW).await);
    for part in OLD.into_iter().chain(NEW).map(|index| host(&quorum, index)) {
        assert!(refused.contains(&part), "{part}: {refused}");
    }
    // The member that both lists have is away while a client connects.
    away(&quorum, 2).await;
    let new = connected(&quorum, NEW).await.expect("a majority without a list");
    back(&quorum, 2);
    let lock = new.lock("a");
    let mut refused = false;
    within(PATIENCE, "it is refused", async {
        while !refused {
            match lock.try_lock().await {
                Err(Error::Invalid { .. }) => refused = true,
                // Its members are new to it, too.
                Err(Error::Refused { .. } | Error::Unreachable { .. }) => {}
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    // The first list goes on, also when the other one's members would vote.
    let guard = within(PATIENCE, "the cold start", old.lock("a").lock()).await.expect("granted");
    invalid(lock.try_lock().await);
    invalid(new.mutex("b").try_lock().await);
    invalid(new.fenced_lock("c").lock().await);
    // Nor when the member that has refused it is down, and the others vote.
    let proxy = quorum.node(2).proxy();
    away(&quorum, 2).await;
    proxy.wait_for_refusals(proxy.refused() + 2).await;
    let down = Instant::now();
    while down.elapsed() < LEASE {
        invalid(lock.try_lock().await);
        tokio::time::sleep(ms(20)).await;
    }
    guard.release().await.expect("held");
}

/// A worker of a service, which is restarted with another list at some time.
struct Worker {
    number: usize,
    quorum: Arc<Quorum>,
    new: AtomicBool,
    /// It has been restarted with the new list.
    restarted: AtomicBool,
    stop: AtomicBool,
    /// With the old list, and with the new one.
    grants: [AtomicUsize; 2],
    refusals: AtomicUsize,
    history: History,
}

impl Worker {
    fn start(number: usize, quorum: &Arc<Quorum>, history: &History) -> Arc<Self> {
        let worker = Arc::new(Self {
            number,
            quorum: Arc::clone(quorum),
            new: AtomicBool::new(false),
            restarted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            grants: Default::default(),
            refusals: AtomicUsize::new(0),
            history: history.clone(),
        });
        tokio::spawn(Arc::clone(&worker).run());
        worker
    }

    async fn run(self: Arc<Self>) {
        while !self.stop.load(Ordering::SeqCst) {
            let new = self.new.load(Ordering::SeqCst);
            self.restarted.store(new, Ordering::SeqCst);
            match connected(&self.quorum, if new { NEW } else { OLD }).await {
                Ok(client) => self.work(client, new).await,
                Err(error) => self.refused(&error),
            }
            tokio::time::sleep(ms(20)).await;
        }
    }

    /// Until it is restarted, or refused.
    async fn work(&self, client: Client, new: bool) {
        let holder = format!("worker {}", self.number);
        let ended = || self.stop.load(Ordering::SeqCst) || self.new.load(Ordering::SeqCst) != new;
        while !ended() {
            match client.lock("a").try_lock_for(LEASE).await {
                Ok(None) => {}
                Ok(Some(guard)) => {
                    self.history.granted("a", &holder, None);
                    self.grants[usize::from(new)].fetch_add(1, Ordering::SeqCst);
                    let work = tokio::time::sleep(ms(fastrand::u64(..20)));
                    tokio::select! {
                        biased;
                        _ = guard.lost() => self.history.lost("a", &holder),
                        () = work => self.history.released("a", &holder),
                    }
                    drop(guard.release().await);
                }
                Err(error) => {
                    self.refused(&error);
                    tokio::time::sleep(ms(20)).await;
                }
            }
        }
        client.shutdown().await;
    }

    fn refused(&self, error: &Error) {
        match error {
            Error::Invalid { .. } => drop(self.refusals.fetch_add(1, Ordering::SeqCst)),
            Error::Refused { .. } | Error::Unreachable { .. } => {}
            other => panic!("worker {}: {other:?}", self.number),
        }
    }

    fn count(&self, new: bool) -> usize {
        self.grants[usize::from(new)].load(Ordering::SeqCst)
    }
}

/// At every moment, the sum of these counts grows soon.
async fn grows(what: &str, count: impl Fn() -> usize) {
    let before = count();
    eventually(PATIENCE, what, || count() >= before + 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_change_of_the_list_never_leaves_two_groups_locking() {
    let quorum = started(Quorum::builder(5)).await;
    let history = History::new();
    let workers: Vec<_> = (0..3).map(|n| Worker::start(n, &quorum, &history)).collect();
    let grants = |new: bool| workers.iter().map(|worker| worker.count(new)).sum::<usize>();
    grows("the old list locks", || grants(false)).await;
    // Restarted one by one; those with the new list are refused, as long as there is any with the old one
    // and afterwards.
    for worker in &workers[..2] {
        worker.new.store(true, Ordering::SeqCst);
        grows("the new list is refused", || worker.refusals.load(Ordering::SeqCst)).await;
        grows("the old list locks", || grants(false)).await;
    }
    assert_eq!(grants(true), 0, "{history:?}");
    // As the manual says: no worker has the old list any more.
    workers[2].new.store(true, Ordering::SeqCst);
    // An attempt with the old list may still be under way.
    let restarted = || workers.iter().all(|worker| worker.restarted.load(Ordering::SeqCst));
    eventually(PATIENCE, "no worker has the old list", restarted).await;
    let before = grants(false);
    delete_markers(&quorum).await;
    grows("the new list locks", || grants(true)).await;
    assert_eq!(grants(false), before);
    workers.iter().for_each(|worker| worker.stop.store(true, Ordering::SeqCst));
    history.assert_valid();
}

async fn delete_markers(quorum: &Arc<Quorum>) {
    on(quorum, |quorum| {
        for node in quorum.nodes() {
            node.server().cli(&["DEL", MARKER]).ok();
        }
    })
    .await;
}
