//! The Lua scripts: one file each, sent by their hash.
//!
//! **Scripts share parts by concatenation** (`token.lua`, `hash.lua`, `fair.lua`, …). A script is still
//! one text with one hash, and each rule is written once. A variant that issues tokens is the same text
//! with one more part, so that the other variants do not pay for it.
//!
//! **Channels are arguments, not keys.** A channel of a plain `PUBLISH` has no slot. Declaring it as a
//! key would make unusual names (`foo{bar`) fail in a cluster.
//!
//! **A force-release notifies the former holders inside the script**, so that they learn of it even if
//! the reply to the operator is lost.

use std::sync::LazyLock;

use redis::{Arg, Cmd};

use super::shape::Shape;
use crate::OwnerId;
use crate::backend::Fenced;

/// A script and the hash by which it is called.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: &'static str,
    pub(super) hash: LazyLock<String>,
    /// The form of its reply, as in its header.
    pub(super) returns: Shape,
}

/// A script has a reply form and one file, which follows the parts that it shares with others.
/// Scripts that issue tokens are the same file with one more part, which the others do not need.
macro_rules! scripts {
    ($($NAME:ident: $shape:ident = $($file:literal)+;)*) => {
        $(pub(super) static $NAME: Script = {
            const SOURCE: &str = concat!($(include_str!(concat!("lua/", $file))),+);
            Script {
                source: SOURCE,
                hash: LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned()),
                returns: Shape::$shape,
            }
        };)*

        /// All scripts by name.
        pub(super) static ALL: &[(&str, &Script)] = &[$((stringify!($NAME), &$NAME)),*];
    };
}

scripts! {
    LOCK_ACQUIRE: Attempt = "busy.lua" "hash.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_FENCED: Attempt = "busy.lua" "hash.lua" "token.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_TOGETHER: Attempt = "hash.lua" "lock_acquire_together.lua";
    LOCK_HANDOVER: Attempt = "lock_handover.lua";
    LOCK_HANDOVER_FENCED: Attempt = "token.lua" "lock_handover.lua";
    LOCK_RELEASE: Released = "lock_release.lua";
    LOCK_RENEW: List = "lock_renew.lua";
    LOCK_FORCE_UNLOCK: Forced = "holders_match.lua" "lock_force_unlock.lua";
    LOCK_INSPECT: List = "lock_inspect.lua";
    FAIR_ACQUIRE: Attempt = "hash.lua" "fair.lua" "fair_acquire.lua";
    FAIR_ACQUIRE_FENCED: Attempt = "hash.lua" "token.lua" "fair.lua" "fair_acquire.lua";
    FAIR_RELEASE: Released = "fair.lua" "fair_release.lua";
    FAIR_KEEP: List = "fair.lua" "fair_keep.lua";
    FAIR_FORCE_UNLOCK: Forced = "hash.lua" "fair.lua" "holders_match.lua" "fair_force_unlock.lua";
    FAIR_QUEUE: List = "fair.lua" "fair_queue.lua";
    MUTEX_ACQUIRE: Text = "mutex_acquire.lua";
    MUTEX_HANDOVER: Attempt = "mutex_handover.lua";
    MUTEX_RELEASE: Released = "mutex_release.lua";
    MUTEX_RENEW: List = "mutex_renew.lua";
    MUTEX_FORCE_UNLOCK: Forced = "holders_match.lua" "mutex_force_unlock.lua";
    MUTEX_INSPECT: List = "mutex_inspect.lua";
    READ_ACQUIRE: Attempt = "rw.lua" "read_acquire.lua";
    READ_RELEASE: Released = "rw.lua" "read_release.lua";
    READ_RENEW: List = "rw.lua" "read_renew.lua";
    WRITE_ACQUIRE: Attempt = "busy.lua" "rw.lua" "write_acquire.lua";
    WRITE_ACQUIRE_FENCED: Attempt = "busy.lua" "token.lua" "rw.lua" "write_acquire.lua";
    WRITE_HANDOVER: Attempt = "rw.lua" "write_handover.lua";
    WRITE_HANDOVER_FENCED: Attempt = "token.lua" "rw.lua" "write_handover.lua";
    WRITE_RELEASE: Released = "rw.lua" "write_release.lua";
    WRITE_RENEW: List = "rw.lua" "write_renew.lua";
    RW_FORCE_UNLOCK: Forced = "rw.lua" "holders_match.lua" "rw_force_unlock.lua";
    RW_INSPECT: List = "rw.lua" "rw_inspect.lua";
    SEMAPHORE_ACQUIRE: Attempt = "busy.lua" "counter.lua" "replies.lua" "semaphore_acquire.lua";
    SEMAPHORE_RELEASE: Released = "counter.lua" "replies.lua" "semaphore_release.lua";
    SEMAPHORE_CHANGE: Word = "counter.lua" "replies.lua" "permits.lua" "semaphore_change.lua";
    LATCH_CHANGE: Word = "counter.lua" "replies.lua" "latch_change.lua";
    COUNTER_INSPECT: List = "counter.lua" "counter_inspect.lua";
    PERMITS_ACQUIRE: Attempt = "busy.lua" "counter.lua" "permits.lua" "permits_acquire.lua";
    PERMITS_RELEASE: Released = "counter.lua" "permits.lua" "permits_release.lua";
    PERMITS_CHANGE: Released = "counter.lua" "replies.lua" "permits.lua" "permits_release.lua";
    PERMITS_RENEW: List = "counter.lua" "permits.lua" "permits_renew.lua";
    CLIENT_ANNOUNCE: Nothing = "client_announce.lua";
    FORCED_LOG: Nothing = "forced_log.lua";
    FORCED_READ: List = "forced_read.lua";
}

impl Script {
    /// Creates a call with `keys` keys: append them, then the arguments.
    pub(super) fn call(&'static self, keys: usize) -> Command {
        let mut cmd = Cmd::with_capacity(3 + keys + 6, 192 + 64 * keys);
        cmd.arg("EVALSHA").arg(&*self.hash).arg(keys);
        Command { cmd, script: Some(self), shape: self.returns }
    }
}

/// A command, and the script it calls, if any.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) cmd: Cmd,
    script: Option<&'static Script>,
    shape: Shape,
}

impl Command {
    pub(super) fn plain(name: &str) -> Self {
        let mut cmd = Cmd::with_capacity(8, 128);
        cmd.arg(name);
        Self { cmd, script: None, shape: Shape::of_name(name.as_bytes()) }
    }

    /// Creates a call of a script with its whole text: see [`in_full`].
    pub(super) fn whole(cmd: Cmd, shape: Shape) -> Self {
        Self { cmd, script: None, shape }
    }

    /// Declares that the reply is a list of exactly `count` values.
    pub(super) fn answering_each(mut self, count: usize) -> Self {
        self.shape = Shape::Each(count);
        self
    }

    pub(super) fn arg(mut self, arg: impl redis::ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// Appends an owner id.
    pub(super) fn owner(self, owner: &OwnerId) -> Self {
        self.arg(owner.encode(&mut OwnerId::encode_buffer()))
    }

    /// Appends a TTL, or an empty argument for none.
    pub(super) fn ttl_or_empty(self, ttl: Option<u64>) -> Self {
        match ttl {
            Some(ttl) => self.arg(ttl),
            None => self.arg(""),
        }
    }

    /// Appends the TTL of a fencing token, if one is requested.
    pub(super) fn token_ttl(self, fenced: Option<Fenced>) -> Self {
        match fenced {
            Some(fenced) => self.ttl_or_empty(fenced.ttl),
            None => self,
        }
    }

    /// Appends the TTL of a token and the channel that a waiter would listen on.
    pub(super) fn waiting_on(self, fenced: Option<Fenced>, channel: Option<Vec<u8>>) -> Self {
        match channel {
            Some(channel) => self.ttl_or_empty(fenced.and_then(|fenced| fenced.ttl)).arg(channel),
            None => self.token_ttl(fenced),
        }
    }

    pub(super) fn script(&self) -> Option<&'static Script> {
        self.script
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }
}

/// Returns the same call with the whole text, for a server that does not know the hash and so did
/// not run it.
pub(super) fn in_full(script: &'static Script, by_hash: &Cmd) -> Cmd {
    let mut cmd = Cmd::with_capacity(12, script.source.len() + 256);
    cmd.arg("EVAL").arg(script.source);
    for arg in by_hash.args_iter().skip(2) {
        if let redis::Arg::Simple(bytes) = arg {
            cmd.arg(bytes);
        }
    }
    cmd
}

/// Returns the form of the reply to any command. A script call is recognized by its hash.
pub(super) fn shape_of(cmd: &Cmd) -> Shape {
    let mut words = cmd.args_iter().map(|arg| match arg {
        Arg::Simple(word) => word,
        _ => b"",
    });
    let (name, hash) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if name != b"EVALSHA" {
        return Shape::of_name(name);
    }
    let known = ALL.iter().find(|(_, script)| script.hash.as_bytes() == hash);
    known.map_or(Shape::Any, |(_, script)| script.returns)
}
