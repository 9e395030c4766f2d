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

use super::command::{Script, Text, by_hash};
use super::reply::{Counted, Forced, ForcedLog, Held, Marker, Renewals};
use crate::backend::{Attempt, Changed, Released, Renewed};

/// A script has a type of reply and one file, which follows the parts that it shares with others.
/// Scripts that issue tokens are the same file with one more part, which the others do not need.
macro_rules! scripts {
    ($($NAME:ident: $reply:ty = $($file:literal)+;)*) => {
        $(pub(super) static $NAME: Script<$reply> = {
            const SOURCE: &str = concat!($(include_str!(concat!("lua/", $file))),+);
            Script::new(SOURCE, || by_hash(SOURCE))
        };)*

        /// All scripts by name.
        pub(super) static ALL: &[(&str, &Text)] = &[$((stringify!($NAME), &$NAME.text)),*];
    };
}

scripts! {
    LOCK_ACQUIRE: Attempt = "busy.lua" "hash.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_FENCED: Attempt = "busy.lua" "hash.lua" "token.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_MEMBER: Attempt = "member.lua" "busy.lua" "hash.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_MEMBER_FENCED: Attempt = "member.lua" "busy.lua" "hash.lua" "token.lua" "lock_acquire.lua";
    LOCK_ACQUIRE_TOGETHER: Attempt = "hash.lua" "lock_acquire_together.lua";
    LOCK_HANDOFF: Attempt = "lock_handoff.lua";
    LOCK_HANDOFF_FENCED: Attempt = "token.lua" "lock_handoff.lua";
    LOCK_RELEASE: Released = "notify.lua" "lock_release.lua";
    LOCK_RENEW: Renewals = "lock_renew.lua";
    LOCK_FORCE_UNLOCK: Forced = "notify.lua" "holders_match.lua" "lock_force_unlock.lua";
    LOCK_INSPECT: Held<2> = "lock_inspect.lua";
    FAIR_ACQUIRE: Attempt = "notify.lua" "hash.lua" "fair.lua" "fair_acquire.lua";
    FAIR_ACQUIRE_FENCED: Attempt = "notify.lua" "hash.lua" "token.lua" "fair.lua" "fair_acquire.lua";
    FAIR_RELEASE: Released = "notify.lua" "fair.lua" "fair_release.lua";
    FAIR_KEEP: Renewals = "notify.lua" "fair.lua" "fair_keep.lua";
    FAIR_FORCE_UNLOCK: Forced = "notify.lua" "hash.lua" "fair.lua" "holders_match.lua" "fair_force_unlock.lua";
    FAIR_QUEUE: Vec<Vec<u8>> = "fair.lua" "fair_queue.lua";
    MUTEX_ACQUIRE: Option<Vec<u8>> = "mutex_acquire.lua";
    MUTEX_ACQUIRE_MEMBER: Option<Vec<u8>> = "member.lua" "mutex_acquire.lua";
    MUTEX_HANDOFF: Attempt = "mutex_handoff.lua";
    MUTEX_RELEASE: Released = "notify.lua" "mutex_release.lua";
    MUTEX_RENEW: Renewals = "mutex_renew.lua";
    MUTEX_FORCE_UNLOCK: Forced = "notify.lua" "holders_match.lua" "mutex_force_unlock.lua";
    MUTEX_INSPECT: Held<2> = "mutex_inspect.lua";
    READ_ACQUIRE: Attempt = "rw.lua" "read_acquire.lua";
    READ_RELEASE: Released = "notify.lua" "rw.lua" "read_release.lua";
    READ_RENEW: Renewals = "rw.lua" "read_renew.lua";
    WRITE_ACQUIRE: Attempt = "busy.lua" "unfenced.lua" "rw.lua" "write_acquire.lua";
    WRITE_ACQUIRE_FENCED: Attempt = "busy.lua" "token.lua" "rw.lua" "write_acquire.lua";
    WRITE_HANDOFF: Attempt = "notify.lua" "unfenced.lua" "rw.lua" "write_handoff.lua";
    WRITE_HANDOFF_FENCED: Attempt = "notify.lua" "token.lua" "rw.lua" "write_handoff.lua";
    WRITE_RELEASE: Released = "notify.lua" "rw.lua" "write_release.lua";
    WRITE_RENEW: Renewals = "rw.lua" "write_renew.lua";
    RW_FORCE_UNLOCK: Forced = "notify.lua" "rw.lua" "holders_match.lua" "rw_force_unlock.lua";
    RW_INSPECT: Held<3> = "rw.lua" "rw_inspect.lua";
    SEMAPHORE_ACQUIRE: Attempt = "busy.lua" "counter.lua" "replies.lua" "semaphore_acquire.lua";
    SEMAPHORE_RELEASE: Released = "notify.lua" "counter.lua" "replies.lua" "semaphore_release.lua";
    SEMAPHORE_CHANGE: Changed = "notify.lua" "counter.lua" "replies.lua" "permits.lua" "semaphore_change.lua";
    LATCH_CHANGE: Changed = "notify.lua" "counter.lua" "replies.lua" "latch_change.lua";
    COUNTER_INSPECT: Counted = "counter.lua" "counter_inspect.lua";
    PERMITS_ACQUIRE: Attempt = "notify.lua" "busy.lua" "counter.lua" "permits.lua" "permits_acquire.lua";
    PERMITS_RELEASE: Released = "notify.lua" "counter.lua" "permits.lua" "permits_release.lua";
    PERMITS_CHANGE: Released = "notify.lua" "counter.lua" "replies.lua" "permits.lua" "permits_release.lua";
    PERMITS_RENEW: Renewals = "notify.lua" "counter.lua" "permits.lua" "permits_renew.lua";
    PERMIT_ENDS_RENEW: Renewed = "counter.lua" "permits.lua" "permit_ends_renew.lua";
    KEY_RENEW: Renewed = "key_renew.lua";
    QUORUM_JOIN: Marker = "quorum_join.lua";
    TOKEN_RAISE: u64 = "token_raise.lua";
    CLIENT_ANNOUNCE: () = "client_announce.lua";
    CLIENT_LIST: () = "client_list.lua";
    FORCED_LOG: () = "forced_log.lua";
    FORCED_READ: ForcedLog = "forced_read.lua";
}
