//! The least that can be done to hand a lock from one process to another: blocking sockets, the scripts of
//! `Lock`, a subscription. It obeys those commands of `peers/README.md` that a handoff needs.

use std::net::SocketAddr;

use super::now;
use crate::Result;
use crate::contenders::UUID;
use crate::contenders::raw::encoded;
use crate::form::{Form, Name, granted, released};
use crate::wire::Wire;

/// The word that makes this program a raw subscriber.
pub(crate) const WORD: &str = "raw-subscriber";

/// Serves commands until the input ends. The first argument is the URL.
pub(crate) fn serve(arguments: &[String]) -> Result<()> {
    let address = arguments.first().and_then(|url| url.strip_prefix("redis://"));
    let address = address.ok_or("the URL of a server is missing")?.parse()?;
    let wire = Wire::connect(address)?;
    let mut raw = Raw { address, wire, messages: None, release: Vec::new() };
    println!("ready scripts of lockkeeper {}", env!("CARGO_PKG_VERSION"));
    for line in std::io::stdin().lines() {
        let line = line?;
        let at = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["acquire", name] => raw.acquire(name)?,
            ["release"] => raw.release()?,
            ["wait", name] => raw.wait(name)?,
            _ => return Err(format!("unknown command {line}").into()),
        };
        println!("ok {at}");
    }
    Ok(())
}

/// Its connections, and the command that releases what it holds.
struct Raw {
    address: SocketAddr,
    wire: Wire,
    messages: Option<Wire>,
    release: Vec<u8>,
}

impl Raw {
    /// Encodes the commands for a lock; returns the first.
    fn prepare(&mut self, name: &Name) -> Result<Vec<u8>> {
        let owner = format!("{UUID}:{}", std::process::id());
        self.release = encoded(&mut self.wire, Form::Lock.release(name, &owner))?;
        encoded(&mut self.wire, Form::Lock.acquire(name, &owner))
    }

    fn acquire(&mut self, name: &str) -> Result<u64> {
        let acquire = self.prepare(&Name::new(name.to_owned()))?;
        match granted(self.wire.ask(&acquire)?) {
            true => Ok(now()),
            false => Err("the lock is busy".into()),
        }
    }

    fn release(&mut self) -> Result<u64> {
        let start = now();
        match released(self.wire.ask(&self.release)?) {
            true => Ok(start),
            false => Err("the lock was not held".into()),
        }
    }

    /// A message that is older, such as that of its own last release, costs one attempt more.
    fn wait(&mut self, name: &str) -> Result<u64> {
        let name = Name::new(name.to_owned());
        let acquire = self.prepare(&name)?;
        let mut messages = match self.messages.take() {
            Some(messages) => messages,
            None => {
                let mut messages = Wire::connect(self.address)?;
                messages.call(&[b"SUBSCRIBE", name.channel.as_bytes()])?;
                messages
            }
        };
        while !granted(self.wire.ask(&acquire)?) {
            messages.reply()?;
        }
        let acquired = now();
        self.messages = Some(messages);
        self.release().map(|_| acquired)
    }
}
