//! A wall clock that can be moved while its server runs.
//!
//! libfaketime stands between the server and the C library, and reads from a file how far to move. Only the
//! wall clock is moved: time limits inside the server are by another one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Makes a server read its clock through the library, with the offset in `file`.
pub(super) fn prepare(command: &mut Command, file: &Path) {
    if !file.exists() {
        set(file, 0);
    }
    // With the memory allocator of the C library: jemalloc and libfaketime each need the other one first.
    command.env("LD_PRELOAD", format!("{}:libc.so.6", library()));
    // The file is read each time.
    command.env("FAKETIME_TIMESTAMP_FILE", file).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// Removes what the library would leave behind if the server were killed. It needs them only to start.
pub(super) fn tidy(process: u32) {
    for file in [format!("faketime_shm_{process}"), format!("sem.faketime_sem_{process}")] {
        let _ = fs::remove_file(Path::new("/dev/shm").join(file));
    }
}

/// By a new file, so that the server never reads half of it.
pub(super) fn set(file: &Path, seconds: i64) {
    let new = file.with_extension("new");
    fs::write(&new, format!("{seconds:+}")).expect("the directory is ours");
    fs::rename(new, file).expect("the directory is ours");
}

pub(super) fn seconds_of_this_machine() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_secs()).expect("not that far in the future")
}

/// Where it is depends on the distribution; its command knows.
fn library() -> &'static str {
    static LIBRARY: OnceLock<String> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let asked = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
        let output = asked.unwrap_or_else(|error| {
            panic!(
                "faketime cannot be run ({error}): run `cargo xtask test`, which installs it \
                 (or `apt-get install faketime`)"
            )
        });
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}
