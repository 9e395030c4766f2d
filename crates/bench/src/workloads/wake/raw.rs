//! The least that can be done: a thread blocked on a subscription that sends the acquire script when
//! a message comes.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::{SETTLE, micros};
use crate::Result;
use crate::contenders::UUID;
use crate::contenders::raw::encoded;
use crate::form::{Form, Name, granted};
use crate::wire::Wire;

/// The holder's connection, and a thread that waits.
pub(super) struct RawPair {
    wire: Wire,
    acquire: Vec<u8>,
    release: Vec<u8>,
    start_waiting: mpsc::Sender<()>,
    refused: mpsc::Receiver<Result<()>>,
    acquired: mpsc::Receiver<Result<Instant>>,
}

impl RawPair {
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let mut wire = Wire::connect(address)?;
        let (acquire, release) = commands(&mut wire, 1)?;
        let (start_waiting, started) = mpsc::channel();
        let (report_refused, refused) = mpsc::channel();
        let (report_acquired, acquired) = mpsc::channel();
        let mut waiter = RawWaiter::connect(address)?;
        thread::spawn(move || {
            while started.recv().is_ok() {
                // Fails only when the other side has gone; the next `recv` then ends the thread.
                let _ = report_refused.send(waiter.be_refused());
                let _ = report_acquired.send(waiter.wait());
            }
        });
        Ok(Self { wire, acquire, release, start_waiting, refused, acquired })
    }

    pub(super) fn sample(&mut self) -> Result<f64> {
        self.wire.send(&self.acquire)?;
        if !granted(self.wire.reply()?) {
            return Err("the raw holder was refused".into());
        }
        self.start_waiting.send(())?;
        self.refused.recv()??;
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
        subscription.call(&[b"SUBSCRIBE", Name::of("wkr", 0).channel.as_bytes()])?;
        Ok(Self { wire, subscription, acquire, release })
    }

    fn be_refused(&mut self) -> Result<()> {
        match self.acquire()? {
            true => Err("the raw waiter did not have to wait".into()),
            false => Ok(()),
        }
    }

    fn wait(&mut self) -> Result<Instant> {
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
    let name = Name::of("wkr", 0);
    let owner = format!("{UUID}:{owner}");
    Ok((
        encoded(wire, Form::Lock.acquire(&name, &owner))?,
        encoded(wire, Form::Lock.release(&name, &owner))?,
    ))
}
