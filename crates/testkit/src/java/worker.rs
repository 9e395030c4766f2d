//! A thread of the peer.

use super::objects::{Latch, Lock, Permits, Semaphore};
use super::{JavaPeer, Pending};
use crate::percent;

/// A thread of a [`JavaPeer`]: the owner of what it locks. It does one command after the other.
#[derive(Clone, Debug)]
pub struct Worker<'a> {
    peer: &'a JavaPeer,
    name: String,
}

impl<'a> Worker<'a> {
    pub(super) fn new(peer: &'a JavaPeer, name: &str) -> Self {
        Self { peer, name: name.to_owned() }
    }

    /// `getLock`
    pub fn lock(&self, name: &str) -> Lock<'a> {
        self.lock_of("lock", &[name])
    }

    /// `getFairLock`
    pub fn fair(&self, name: &str) -> Lock<'a> {
        self.lock_of("fair", &[name])
    }

    /// `getReadWriteLock().readLock()`
    pub fn read(&self, name: &str) -> Lock<'a> {
        self.lock_of("read", &[name])
    }

    /// `getReadWriteLock().writeLock()`
    pub fn write(&self, name: &str) -> Lock<'a> {
        self.lock_of("write", &[name])
    }

    /// `getSpinLock`; not in 3.14.
    pub fn spin(&self, name: &str) -> Lock<'a> {
        self.lock_of("spin", &[name])
    }

    /// `getFencedLock`; not in 3.14.
    pub fn fenced(&self, name: &str) -> Lock<'a> {
        self.lock_of("fenced", &[name])
    }

    /// `getMultiLock` of plain locks, in this order.
    pub fn multi(&self, names: &[&str]) -> Lock<'a> {
        self.lock_of("multi", names)
    }

    /// `getNonReentrantLock`; only in the newest.
    pub fn non_reentrant(&self, name: &str) -> Lock<'a> {
        self.lock_of("nonReentrant", &[name])
    }

    /// `getSemaphore`
    pub fn semaphore(&self, name: &str) -> Semaphore<'a> {
        Semaphore::new(self.clone(), name)
    }

    /// `getPermitExpirableSemaphore`
    pub fn permits(&self, name: &str) -> Permits<'a> {
        Permits::new(self.clone(), name)
    }

    /// `getCountDownLatch`
    pub fn latch(&self, name: &str) -> Latch<'a> {
        Latch::new(self.clone(), name)
    }

    /// The id of the thread.
    pub fn thread_id(&self) -> Pending<u64> {
        self.send(&["threadId"], |words| words[0].parse().expect("a thread's id is a number"))
    }

    /// The name under which this thread owns things in Redis: `<client id>:<thread id>`. Not while it
    /// waits: a worker does one thing after the other.
    pub fn owner(&self) -> String {
        format!("{}:{}", self.peer.client_id(), self.thread_id().ok())
    }

    /// `Thread.interrupt()`, while the worker is in a command. What ends a wait, in Java.
    pub fn interrupt(&self) {
        let known = self.send(&["interrupt"], |words| words[0] == "true").ok();
        assert!(known, "there is no worker {:?} to interrupt", self.name);
    }

    /// `words` are written as they are.
    pub(super) fn send<T>(&self, words: &[&str], read: fn(&[String]) -> T) -> Pending<T> {
        self.peer.send(&self.name, words, read)
    }

    fn lock_of(&self, kind: &'static str, names: &[&str]) -> Lock<'a> {
        let names: Vec<_> = names.iter().map(|name| percent::encoded(name)).collect();
        Lock::new(self.clone(), kind, names.join(","))
    }
}
