//! The ceiling: what the server can do for these commands when the client is next to nothing.
//!
//! One blocking socket drives N virtual tasks, each alternating acquire and release of its own
//! name. Commands are encoded once; a repetition patches the digits of the owner id, because
//! lockkeeper never uses an id twice either. The tasks go in two waves: while the server works on
//! one, the other's replies are checked and its next commands written. With one wave the server
//! would idle meanwhile, and the ceiling would be too low by a quarter.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::Contender;
use crate::Result;
use crate::form::{Form, Name, Request, granted, released};
use crate::wire::{Wire, encode};

/// Digits at the end of an owner id that change with every acquire; all of lockkeeper's 63 random
/// bits.
const DIGITS: usize = 19;

/// The raw contender.
pub(crate) struct Raw {
    wire: Wire,
    form: Form,
    tasks: Vec<Task>,
    out: Vec<u8>,
}

/// One virtual task: its two commands, and where the changing digits are in each.
struct Task {
    acquire: Vec<u8>,
    release: Vec<u8>,
    digits: [usize; 2],
}

/// Tasks that are always in the same step.
struct Wave {
    tasks: Range<usize>,
    holds: bool,
}

impl Raw {
    /// Connects and loads the scripts.
    pub(crate) fn connect(address: SocketAddr, form: Form) -> Result<Self> {
        Ok(Self { wire: Wire::connect(address)?, form, tasks: Vec::new(), out: Vec::new() })
    }

    fn grow(&mut self, tasks: usize) -> Result<()> {
        for task in self.tasks.len()..tasks {
            let name = Name::of("raw", task);
            let digits = format!("{:0DIGITS$}", 1_000_000_000_000 * (task + 1));
            let owner = format!("{}:{digits}", super::UUID);
            let acquire = encoded(&mut self.wire, self.form.acquire(&name, &owner))?;
            let release = encoded(&mut self.wire, self.form.release(&name, &owner))?;
            let digits = [position(&acquire, &owner)?, position(&release, &owner)?]
                .map(|start| start + owner.len() - DIGITS);
            self.tasks.push(Task { acquire, release, digits });
        }
        Ok(())
    }

    fn send(&mut self, wave: &Wave) -> Result<()> {
        self.out.clear();
        for task in &mut self.tasks[wave.tasks.clone()] {
            self.out.extend_from_slice(if wave.holds { &task.release } else { &task.acquire });
            if wave.holds {
                task.renew_owner();
            }
        }
        self.wire.send(&self.out)
    }

    fn receive(&mut self, wave: &mut Wave) -> Result<()> {
        for _ in wave.tasks.clone() {
            let reply = self.wire.reply()?;
            let as_expected = if wave.holds { released(reply) } else { granted(reply) };
            if !as_expected {
                return Err(format!("unexpected: {}", String::from_utf8_lossy(reply)).into());
            }
        }
        wave.holds = !wave.holds;
        Ok(())
    }
}

impl Contender for Raw {
    fn name(&self) -> String {
        "raw ceiling".into()
    }

    fn run(&mut self, tasks: usize, time: Duration) -> Result<u64> {
        self.grow(tasks)?;
        let end = Instant::now() + time;
        let half = tasks.div_ceil(2);
        let mut waves: Vec<_> = [0..half, half..tasks]
            .into_iter()
            .filter(|tasks| !tasks.is_empty())
            .map(|tasks| Wave { tasks, holds: false })
            .collect();
        for wave in &waves {
            self.send(wave)?;
        }
        let mut pairs = 0;
        while !waves.is_empty() {
            let mut wave = waves.remove(0);
            self.receive(&mut wave)?;
            let pair_done = !wave.holds;
            if pair_done {
                pairs += wave.tasks.len() as u64;
            }
            if !(pair_done && Instant::now() >= end) {
                self.send(&wave)?;
                waves.push(wave);
            }
        }
        Ok(pairs)
    }
}

impl Task {
    /// Adds one to the digits of both commands.
    fn renew_owner(&mut self) {
        for (command, start) in [&mut self.acquire, &mut self.release].into_iter().zip(self.digits)
        {
            for digit in command[start..start + DIGITS].iter_mut().rev() {
                if *digit != b'9' {
                    *digit += 1;
                    break;
                }
                *digit = b'0';
            }
        }
    }
}

/// The bytes of a request; a script is loaded and called by its SHA-1.
pub(crate) fn encoded(wire: &mut Wire, request: Request<'_>) -> Result<Vec<u8>> {
    let loaded = request.script.map(|script| wire.load(script)).transpose()?;
    let keys = request.keys.to_string();
    let call = loaded.iter().flat_map(|hash| ["EVALSHA", hash, &keys]);
    let words: Vec<_> = call.chain(request.words().iter().copied()).map(str::as_bytes).collect();
    let mut out = Vec::new();
    encode(&mut out, &words);
    Ok(out)
}

fn position(command: &[u8], owner: &str) -> Result<usize> {
    let found = command.windows(owner.len()).position(|window| window == owner.as_bytes());
    found.ok_or_else(|| "a request without its owner id".into())
}
