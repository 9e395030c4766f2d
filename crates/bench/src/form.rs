//! The two lock forms as they are on the wire: what raw ceiling and plain driver send is what
//! lockkeeper sends.

/// The lease every contender asks for, in milliseconds: lockkeeper's default.
pub(crate) const LEASE_MS: &str = "30000";

// The library's own files, so that a change of a script changes the ceiling with it.
const LOCK_ACQUIRE: &str = concat!(
    include_str!("../../lockkeeper/src/redis/lua/busy.lua"),
    include_str!("../../lockkeeper/src/redis/lua/hash.lua"),
    include_str!("../../lockkeeper/src/redis/lua/lock_acquire.lua"),
);
const LOCK_RELEASE: &str = concat!(
    include_str!("../../lockkeeper/src/redis/lua/notify.lua"),
    include_str!("../../lockkeeper/src/redis/lua/lock_release.lua"),
);
const MUTEX_RELEASE: &str = concat!(
    include_str!("../../lockkeeper/src/redis/lua/notify.lua"),
    include_str!("../../lockkeeper/src/redis/lua/mutex_release.lua"),
);

/// Which lock is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Form {
    /// The hash lock, Redisson's: two scripts.
    Lock,
    /// The string lock of the Redlock family: `SET NX` and a compare-and-delete script.
    Mutex,
}

/// A lock's name and the channel its releases are published on.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    /// The key.
    pub(crate) key: String,
    /// The channel.
    pub(crate) channel: String,
}

/// One request, borrowed and without a heap: the plain driver must not pay for our bookkeeping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// The script, or none if the words are a plain command.
    pub(crate) script: Option<&'static str>,
    /// How many of the words are keys, if it is a script.
    pub(crate) keys: usize,
    words: [&'a str; 8],
    length: usize,
}

impl<'a> Request<'a> {
    fn new(script: Option<&'static str>, keys: &[&'a str], rest: &[&'a str]) -> Self {
        let mut words = [""; 8];
        let length = keys.len() + rest.len();
        for (word, given) in words.iter_mut().zip(keys.iter().chain(rest)) {
            *word = given;
        }
        Self { script, keys: keys.len(), words, length }
    }

    /// Keys then arguments of a script, or a whole command.
    pub(crate) fn words(&self) -> &[&'a str] {
        &self.words[..self.length]
    }
}

impl Name {
    /// The name of a task's own lock. All contenders have three letters, so all names are as long.
    pub(crate) fn of(contender: &str, task: usize) -> Self {
        Self::new(format!("bench:{contender}:{task:06}"))
    }

    /// Any name.
    pub(crate) fn new(key: String) -> Self {
        let channel = format!("redisson_lock__channel:{{{key}}}");
        Self { key, channel }
    }
}

impl Form {
    /// The word for it in workload names.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Mutex => "mutex",
        }
    }

    /// The scripts it needs: to acquire, if by script, and to release.
    pub(crate) fn scripts(self) -> (Option<&'static str>, &'static str) {
        match self {
            Self::Lock => (Some(LOCK_ACQUIRE), LOCK_RELEASE),
            Self::Mutex => (None, MUTEX_RELEASE),
        }
    }

    /// Takes the lock for `owner`.
    pub(crate) fn acquire<'a>(self, name: &'a Name, owner: &'a str) -> Request<'a> {
        match self {
            Self::Lock => Request::new(Some(LOCK_ACQUIRE), &[&name.key], &[owner, LEASE_MS, "1"]),
            Self::Mutex => {
                Request::new(None, &[], &["SET", &name.key, owner, "NX", "GET", "PX", LEASE_MS])
            }
        }
    }

    /// Gives it back.
    pub(crate) fn release<'a>(self, name: &'a Name, owner: &'a str) -> Request<'a> {
        let arguments: &[&str] = match self {
            Self::Lock => &[owner, "0", "PUBLISH", &name.channel],
            Self::Mutex => &[owner, "PUBLISH", &name.channel, ""],
        };
        Request::new(Some(self.scripts().1), &[&name.key], arguments)
    }
}

/// Whether the undecoded reply to an acquire says that the lock is ours.
pub(crate) fn granted(reply: &[u8]) -> bool {
    reply == b"$-1\r\n"
}

/// Whether the undecoded reply to a release says that it was: how many were told, 0 or more.
pub(crate) fn released(reply: &[u8]) -> bool {
    reply[0] == b':' && reply[1] != b'-'
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_scripts_have_the_parts_that_the_library_gives_them() {
        let scripts = include_str!("../../lockkeeper/src/redis/script.rs");
        for script in [
            r#"LOCK_ACQUIRE: Attempt = "busy.lua" "hash.lua" "lock_acquire.lua";"#,
            r#"LOCK_RELEASE: Released = "notify.lua" "lock_release.lua";"#,
            r#"MUTEX_RELEASE: Released = "notify.lua" "mutex_release.lua";"#,
        ] {
            assert!(scripts.contains(script), "form.rs has other parts than {script}");
        }
    }
}
