//! The Lua scripts: one file each, sent by their hash.

use std::sync::LazyLock;

use redis::Cmd;

use crate::OwnerId;
use crate::backend::Fenced;

/// A script and the hash it is called by.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: &'static str,
    hash: LazyLock<String>,
}

/// A script is one file, behind the parts it shares with others. Those that issue tokens are the same
/// file with one part more, which the others need not carry.
macro_rules! scripts {
    ($($NAME:ident = $($file:literal)+;)*) => {
        $(pub(super) static $NAME: Script = {
            const SOURCE: &str = concat!($(include_str!(concat!("lua/", $file))),+);
            Script {
                source: SOURCE,
                hash: LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned()),
            }
        };)*

        /// All of them, by name.
        pub(super) static ALL: &[(&str, &Script)] = &[$((stringify!($NAME), &$NAME)),*];
    };
}

scripts! {
    LOCK_ACQUIRE = "busy.lua" "hash.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_FENCED = "busy.lua" "hash.lua" "token.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_TOGETHER = "hash.lua" "lock_acquire_together.lua";
    LOCK_HANDOVER = "lock_handover.lua";
    LOCK_HANDOVER_FENCED = "token.lua" "lock_handover.lua";
    LOCK_RELEASE = "lock_release.lua";
    LOCK_RENEW = "lock_renew.lua";
    LOCK_FORCE_UNLOCK = "meant.lua" "lock_force_unlock.lua";
    LOCK_INSPECT = "lock_inspect.lua";
    FAIR_ACQUIRE = "hash.lua" "fair.lua" "fair_acquire.lua";
    FAIR_ACQUIRE_FENCED = "hash.lua" "token.lua" "fair.lua" "fair_acquire.lua";
    FAIR_RELEASE = "fair.lua" "fair_release.lua";
    FAIR_KEEP = "fair.lua" "fair_keep.lua";
    FAIR_FORCE_UNLOCK = "hash.lua" "fair.lua" "meant.lua" "fair_force_unlock.lua";
    FAIR_QUEUE = "fair.lua" "fair_queue.lua";
    MUTEX_ACQUIRE = "mutex_acquire.lua";
    MUTEX_HANDOVER = "mutex_handover.lua";
    MUTEX_RELEASE = "mutex_release.lua";
    MUTEX_RENEW = "mutex_renew.lua";
    MUTEX_FORCE_UNLOCK = "meant.lua" "mutex_force_unlock.lua";
    MUTEX_INSPECT = "mutex_inspect.lua";
    READ_ACQUIRE = "rw.lua" "read_acquire.lua";
    READ_RELEASE = "rw.lua" "read_release.lua";
    READ_RENEW = "rw.lua" "read_renew.lua";
    WRITE_ACQUIRE = "busy.lua" "rw.lua" "write_acquire.lua";
    WRITE_ACQUIRE_FENCED = "busy.lua" "token.lua" "rw.lua" "write_acquire.lua";
    WRITE_HANDOVER = "rw.lua" "write_handover.lua";
    WRITE_HANDOVER_FENCED = "token.lua" "rw.lua" "write_handover.lua";
    WRITE_RELEASE = "rw.lua" "write_release.lua";
    WRITE_RENEW = "rw.lua" "write_renew.lua";
    RW_FORCE_UNLOCK = "rw.lua" "meant.lua" "rw_force_unlock.lua";
    RW_INSPECT = "rw.lua" "rw_inspect.lua";
    SEMAPHORE_ACQUIRE = "busy.lua" "counter.lua" "replies.lua" "semaphore_acquire.lua";
    SEMAPHORE_RELEASE = "counter.lua" "replies.lua" "semaphore_release.lua";
    SEMAPHORE_CHANGE = "counter.lua" "replies.lua" "permits.lua" "semaphore_change.lua";
    LATCH_CHANGE = "counter.lua" "replies.lua" "latch_change.lua";
    COUNTER_INSPECT = "counter.lua" "counter_inspect.lua";
    PERMITS_ACQUIRE = "busy.lua" "counter.lua" "permits.lua" "permits_acquire.lua";
    PERMITS_RELEASE = "counter.lua" "permits.lua" "permits_release.lua";
    PERMITS_CHANGE = "counter.lua" "replies.lua" "permits.lua" "permits_release.lua";
    PERMITS_RENEW = "counter.lua" "permits.lua" "permits_renew.lua";
    CLIENT_ANNOUNCE = "client_announce.lua";
    FORCED_LOG = "forced_log.lua";
    FORCED_READ = "forced_read.lua";
}

impl Script {
    /// A call with `keys` keys: append them, then the arguments.
    pub(super) fn call(&'static self, keys: usize) -> Command {
        let mut cmd = Cmd::with_capacity(3 + keys + 6, 192 + 64 * keys);
        cmd.arg("EVALSHA").arg(&*self.hash).arg(keys);
        Command { cmd, script: Some(self) }
    }
}

/// A command, and the script it calls, if any.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) cmd: Cmd,
    script: Option<&'static Script>,
}

impl Command {
    pub(super) fn plain(name: &str) -> Self {
        let mut cmd = Cmd::with_capacity(8, 128);
        cmd.arg(name);
        Self { cmd, script: None }
    }

    pub(super) fn arg(mut self, arg: impl redis::ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// An owner id as the next argument.
    pub(super) fn owner(self, owner: &OwnerId) -> Self {
        self.arg(owner.encode(&mut OwnerId::encode_buffer()))
    }

    /// A time to live as the next argument, or an empty one for none.
    pub(super) fn ttl_or_empty(self, ttl: Option<u64>) -> Self {
        match ttl {
            Some(ttl) => self.arg(ttl),
            None => self.arg(""),
        }
    }

    /// How long a token lives, if one is asked for.
    pub(super) fn token_ttl(self, fenced: Option<Fenced>) -> Self {
        match fenced {
            Some(fenced) => self.ttl_or_empty(fenced.ttl),
            None => self,
        }
    }

    /// The channel that a waiter would listen on as the last argument, behind how long a token lives.
    pub(super) fn waiting_on(self, fenced: Option<Fenced>, channel: Option<Vec<u8>>) -> Self {
        match channel {
            Some(channel) => self.ttl_or_empty(fenced.and_then(|fenced| fenced.ttl)).arg(channel),
            None => self.token_ttl(fenced),
        }
    }

    pub(super) fn script(&self) -> Option<&'static Script> {
        self.script
    }
}

/// The same call with the whole text, for a server that does not know the hash. It has not run.
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
