//! From the start of a release to the moment the next waiter, in another client, holds the lock.
//!
//! The two lockkeeper clients have a runtime each, as two processes would. The reference is the
//! least that can be done: a thread blocked on a subscription that sends the acquire script when a
//! message comes.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use tokio::runtime::{Builder, Handle};

use super::Bench;
use crate::Result;
use crate::contenders::UUID;
use crate::contenders::keeper::KEEPER;
use crate::contenders::raw::encoded;
use crate::form::{Form, Name, granted};
use crate::probe::Probe;
use crate::report::{Aim, Row, median};
use crate::wire::Wire;

/// Far longer than the waiter needs to be refused, subscribe and try once more: what is measured is
/// a waiter that waits.
const SETTLE: Duration = Duration::from_millis(3);

/// Median of the samples of each round.
pub(super) fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let other = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let runtimes = [bench.runtime.handle().clone(), other.handle().clone()];
    let clients = runtimes
        .each_ref()
        .map(|runtime| runtime.block_on(Client::connect(&bench.url())));
    let [here, there] = clients;
    let clients = [here?, there?];
    let mut raw = RawPair::connect(bench.address)?;
    let samples = if bench.plan.quick { 60 } else { 250 };
    let results = bench.interleave(2, |probe, turn, _| {
        let times: Result<Vec<f64>> = (0..samples)
            .map(|_| match turn {
                0 => raw.sample(),
                _ => sample(&runtimes, &clients, probe),
            })
            .collect();
        Ok(median(&times?))
    })?;
    let reference = Row::of("wake-up", "raw subscriber", "µs p50", &results[0]);
    let row = Row::of("wake-up", KEEPER, "µs p50", &results[1]).against(&reference);
    let aim = Aim::at_most("raw", row.over(&reference), 1.2);
    Ok(vec![reference, row.aiming([aim])])
}

/// Microseconds from the call of `release` on one client to the return of `lock` on the other.
fn sample(runtimes: &[Handle; 2], clients: &[Client; 2], probe: &mut Probe) -> Result<f64> {
    let name = Name::of("wake", 0);
    let [holder, waiter] = clients.each_ref().map(|client| client.lock(&name.key));
    let guard = runtimes[0].block_on(async { holder.lock().await })?;
    let waiting = runtimes[1].spawn(async move {
        let guard = waiter.lock().await;
        (guard, Instant::now())
    });
    while !probe.subscribers(name.channel.as_bytes())? {
        thread::yield_now();
    }
    thread::sleep(SETTLE);
    // On a worker, where a user's code would be.
    let releasing = runtimes[0].spawn(async move {
        let start = Instant::now();
        guard.release().await.map(|()| start)
    });
    let start = runtimes[0].block_on(releasing)??;
    let (guard, end) = runtimes[1].block_on(waiting)?;
    runtimes[1].block_on(guard?.release())?;
    Ok(micros(end - start))
}

/// The holder's connection, and a thread that waits.
struct RawPair {
    wire: Wire,
    acquire: Vec<u8>,
    release: Vec<u8>,
    start_waiting: mpsc::Sender<()>,
    acquired: mpsc::Receiver<Result<Instant>>,
}

impl RawPair {
    fn connect(address: SocketAddr) -> Result<Self> {
        let mut wire = Wire::connect(address)?;
        let (acquire, release) = commands(&mut wire, 1)?;
        let (start_waiting, started) = mpsc::channel();
        let (report, acquired) = mpsc::channel();
        let mut waiter = RawWaiter::connect(address)?;
        thread::spawn(
            move || {
                while started.recv().is_ok() && report.send(waiter.wait()).is_ok() {}
            },
        );
        Ok(Self {
            wire,
            acquire,
            release,
            start_waiting,
            acquired,
        })
    }

    fn sample(&mut self) -> Result<f64> {
        self.wire.send(&self.acquire)?;
        if !granted(self.wire.reply()?) {
            return Err("the raw holder was refused".into());
        }
        self.start_waiting.send(())?;
        thread::sleep(SETTLE);
        let start = Instant::now();
        self.wire.send(&self.release)?;
        self.wire.reply()?;
        Ok(micros(self.acquired.recv()?? - start))
    }
}

/// Waits as a client must: try, be told by the subscription, try again.
struct RawWaiter {
    wire: Wire,
    subscription: Wire,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl RawWaiter {
    fn connect(address: SocketAddr) -> Result<Self> {
        let mut wire = Wire::connect(address)?;
        let (acquire, release) = commands(&mut wire, 2)?;
        let mut subscription = Wire::connect(address)?;
        subscription.call(&[b"SUBSCRIBE", Name::of("rawwake", 0).channel.as_bytes()])?;
        Ok(Self {
            wire,
            subscription,
            acquire,
            release,
        })
    }

    fn wait(&mut self) -> Result<Instant> {
        if self.acquire()? {
            return Err("the raw waiter did not have to wait".into());
        }
        self.subscription.reply()?;
        if !self.acquire()? {
            return Err("the raw waiter was woken in vain".into());
        }
        let acquired = Instant::now();
        self.wire.send(&self.release)?;
        self.wire.reply()?;
        // Its own release was published too.
        self.subscription.reply()?;
        Ok(acquired)
    }

    fn acquire(&mut self) -> Result<bool> {
        self.wire.send(&self.acquire)?;
        Ok(granted(self.wire.reply()?))
    }
}

fn commands(wire: &mut Wire, owner: u64) -> Result<(Vec<u8>, Vec<u8>)> {
    let name = Name::of("rawwake", 0);
    let owner = format!("{UUID}:{owner}");
    Ok((
        encoded(wire, Form::Lock.acquire(&name, &owner))?,
        encoded(wire, Form::Lock.release(&name, &owner))?,
    ))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
