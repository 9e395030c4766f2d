//! The Lua scripts: one file each, sent by their hash.

use std::sync::LazyLock;

use redis::Cmd;

use crate::OwnerId;

/// A script and the hash it is called by.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: &'static str,
    hash: LazyLock<String>,
}

macro_rules! scripts {
    ($($NAME:ident = $file:literal;)*) => {
        $(pub(super) static $NAME: Script = Script {
            source: include_str!(concat!("lua/", $file)),
            hash: LazyLock::new(|| {
                redis::Script::new(include_str!(concat!("lua/", $file))).get_hash().to_owned()
            }),
        };)*
    };
}

scripts! {
    LOCK_ACQUIRE = "lock_acquire.lua";
    LOCK_HANDOVER = "lock_handover.lua";
    LOCK_RELEASE = "lock_release.lua";
    LOCK_RENEW = "lock_renew.lua";
    LOCK_FORCE_UNLOCK = "lock_force_unlock.lua";
    LOCK_INSPECT = "lock_inspect.lua";
    MUTEX_ACQUIRE = "mutex_acquire.lua";
    MUTEX_HANDOVER = "mutex_handover.lua";
    MUTEX_RELEASE = "mutex_release.lua";
    MUTEX_RENEW = "mutex_renew.lua";
    MUTEX_FORCE_UNLOCK = "mutex_force_unlock.lua";
    MUTEX_INSPECT = "mutex_inspect.lua";
    CLIENT_ANNOUNCE = "client_announce.lua";
    FORCED_LOG = "forced_log.lua";
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
