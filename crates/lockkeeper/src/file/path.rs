//! The path of the file: whether it can be trusted to hold locks, and whether it is still the same
//! file.
//!
//! **Each request checks whether the path still is the file that was opened**, and the files beside it:
//! four `stat` calls, a few microseconds. The thread checks every three seconds, or each second while
//! it listens. Locks in a deleted file exclude no other process, and as long as a process has the
//! deleted file open SQLite takes the files beside it for those of the new one. So a process that finds
//! it deleted closes it, and opens the new one only for a request that needs it.
//!
//! **Only SQLite opens the database**; `mknod` creates it without opening it. Closing any descriptor of
//! a file releases all locks that the process has on that file.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatFs;

use crate::backend::Fault;

/// A path of a file of locks.
#[derive(Clone, Debug)]
pub(super) struct Location {
    /// Absolute, without symbolic links. The names of the files beside it are derived from it, and
    /// must be the same for all processes.
    path: PathBuf,
    /// The path as given: a symbolic link in it may change.
    given: PathBuf,
    wal: PathBuf,
    shm: PathBuf,
    /// Open the file read-only if it may not be written.
    read_only: bool,
}

/// The maximum length of a path for SQLite, in bytes.
const LONGEST: usize = 504;

/// The identities of the database, the two files beside it, and the file at the given path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Inodes([Option<(u64, u64)>; 4]);

impl Location {
    /// Parses the part after `file:`. The path is used literally: nothing in it is decoded.
    pub(super) fn parse(rest: &str) -> Result<PathBuf, Fault> {
        let form = "write file:PATH or file:///PATH";
        let path = match rest.strip_prefix("//") {
            None => rest,
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => return Err(Fault::invalid(format!("a file has no host: {form}"))),
        };
        if path.is_empty() || path.contains('\0') {
            return Err(Fault::invalid(form));
        }
        Ok(PathBuf::from(path))
    }

    /// Examines the path without changing it. There may be a file or nothing yet.
    pub(super) fn find(path: &Path, read_only: bool) -> Result<Self, Fault> {
        let given = std::path::absolute(path).map_err(|error| cannot("be found", path, &error))?;
        let path = match fs::metadata(&given) {
            Ok(found) => {
                check_file(&given, &found)?;
                let path = fs::canonicalize(&given);
                let path = path.map_err(|error| cannot("be found", &given, &error))?;
                if found.size() == 0 {
                    check_links(&given)?;
                }
                path
            }
            Err(error) if error.kind() == ErrorKind::NotFound => new_path(&given)?,
            Err(error) => return Err(cannot("be opened", &given, &error)),
        };
        if path.as_os_str().len() > LONGEST {
            let detail = format!("{} is longer than {LONGEST} bytes", path.display());
            return Err(Fault::invalid(
                detail + ", which is more than SQLite takes: name a shorter path",
            ));
        }
        let folder = folder(&path);
        let system = rustix::fs::statfs(folder)
            .map_err(|error| cannot("be looked at", folder, &error.into()))?;
        if let Some(named) = shared(&system) {
            return Err(Fault::invalid(format!(
                "{} is on {named}: locks in a file hold only where every process sees the same \
                 memory, on a disk of this host; use another path, or a Redis server for several hosts",
                path.display()
            )));
        }
        if is_mounted_by_itself(&path) {
            return Err(Fault::invalid(format!(
                "{} is mounted by itself, so that other processes would miss the files beside it: \
                 mount its directory instead",
                path.display()
            )));
        }
        let beside = |suffix: &str| {
            let mut name = path.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        Ok(Self { wal: beside("-wal"), shm: beside("-shm"), path, given, read_only })
    }

    /// Resolves the given path again.
    pub(super) fn found_anew(&self) -> Result<Self, Fault> {
        Self::find(&self.given, self.read_only)
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the write-ahead log, which exists while the database is open.
    pub(super) fn wal(&self) -> &Path {
        &self.wal
    }

    /// Creates an empty file if there is none, with the permissions that the umask leaves. It is
    /// not opened for that: closing it would release the locks that this process holds on it by
    /// other descriptors.
    pub(super) fn create(&self) -> Result<(), Fault> {
        #[cfg(not(target_vendor = "apple"))]
        {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            let mode = Mode::from_raw_mode(0o666);
            match mknodat(CWD, &self.path, FileType::RegularFile, mode, 0) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(cannot("be created", &self.path, &error.into())),
            }
        }
        Ok(())
    }

    /// Returns the identities of the current files.
    pub(super) fn inodes(&self) -> Inodes {
        let inode = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
        Inodes([&self.path, &self.wal, &self.shm, &self.given].map(|path| inode(path)))
    }

    /// Returns the identity of the current database.
    pub(super) fn inode(&self) -> Option<(u64, u64)> {
        self.inodes().0[0]
    }

    /// Creates a fault about this file, with advice.
    pub(super) fn denied(&self, what: &str) -> Fault {
        denied(&self.path, what)
    }
}

fn denied(path: &Path, what: &str) -> Fault {
    let (path, folder) = (path.display(), folder(path).display());
    Fault::Denied {
        detail: format!(
            "{path} {what}; the file, the files beside it and {folder} must be writable for this \
             user: change that, or name another path with file:PATH"
        )
        .into(),
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Fault {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            denied(path, &format!("cannot {what}: {error}"))
        }
        _ => Fault::invalid(format!("{} cannot {what}: {error}", path.display())),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn check_file(path: &Path, found: &Metadata) -> Result<(), Fault> {
    let path = path.display();
    if found.is_dir() {
        return Err(Fault::invalid(format!("{path} is a directory: name a file in it")));
    }
    if !found.is_file() {
        return Err(Fault::invalid(format!("{path} is no regular file")));
    }
    if found.nlink() > 1 {
        let why = "each name would have other files beside it";
        return Err(Fault::invalid(format!("{path} has {} names: {why}; keep one", found.nlink())));
    }
    Ok(())
}

/// Checks that an empty file may become a file of locks. It may not if a part of its path is a
/// symbolic link that any user can have created: another user could then choose the file.
fn check_links(path: &Path) -> Result<(), Fault> {
    const OTHERS_WRITE: u32 = 0o002;
    for part in path.ancestors() {
        let folder = folder(part);
        let writable = || fs::metadata(folder).is_ok_and(|data| data.mode() & OTHERS_WRITE != 0);
        if part.is_symlink() && writable() {
            let (path, part, folder) = (path.display(), part.display(), folder.display());
            return Err(Fault::invalid(format!(
                "{path} is empty, and found by the symbolic link {part} in {folder}, where every user \
                 can make one: name the file without that link, or another path"
            )));
        }
    }
    Ok(())
}

/// Returns the path of a new file in an existing directory.
fn new_path(path: &Path) -> Result<PathBuf, Fault> {
    if let Ok(link) = fs::read_link(path) {
        let (path, link) = (path.display(), link.display());
        return Err(Fault::invalid(format!("{path} points to {link}, where there is nothing")));
    }
    let Some(name) = path.file_name() else {
        return Err(Fault::invalid(format!("{} names no file", path.display())));
    };
    match fs::canonicalize(folder(path)) {
        Ok(folder) => Ok(folder.join(name)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = folder(path).display();
            Err(Fault::invalid(format!("the directory {folder} does not exist: create it first")))
        }
        Err(error) => Err(cannot("be created", path, &error)),
    }
}

/// File systems that other hosts may change without this kernel's knowledge, or that have no locks.
/// SQLite does not work there. By name, with the numbers of `statfs`.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SHARED: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0x564c, "NCP"),
    (0xaad7_aaea, "PanFS"),
    (0xbeef_dead, "SNFS"),
    (0x786f_4256, "a folder shared by VirtualBox"),
    (0xbacb_acbc, "a folder shared by VMware"),
    (0x7c7c_6673, "a folder shared by Parallels"),
];

/// Returns the name of a shared file system; `None` for a local one.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared(system: &StatFs) -> Option<&'static str> {
    named(system.f_type as u32)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn named(magic: u32) -> Option<&'static str> {
    SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// `MNT_LOCAL` of BSD systems.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn shared(system: &StatFs) -> Option<&'static str> {
    const LOCAL: u64 = 0x1000;
    (system.f_flags as u64 & LOCAL == 0).then_some("a file system of another host")
}

/// Whether the file itself is a mount point, as in some containers. Then its directory differs, and so
/// do the files beside it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_mounted_by_itself(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let mount = |path: &Path| {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        // An old kernel does not report it.
        (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
    };
    mount(path).zip(mount(folder(path))).is_some_and(|(own, folders)| own != folders)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_mounted_by_itself(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_as_they_are_written() {
        let parsed = |rest| Location::parse(rest).map(|path| path.display().to_string());
        assert_eq!(parsed("locks.db").unwrap(), "locks.db");
        assert_eq!(parsed("/var/a%20b?c#d.db").unwrap(), "/var/a%20b?c#d.db");
        assert_eq!(parsed("///var/locks.db").unwrap(), "/var/locks.db");
        for wrong in ["", "//", "//host/path", "//relative.db", "a\0b"] {
            assert!(matches!(parsed(wrong), Err(Fault::Invalid { .. })), "{wrong:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn file_systems_of_several_hosts_are_known_by_their_numbers() {
        for (magic, name) in [(0x6969, "NFS"), (0xfe53_4d42, "SMB"), (0x0102_1997, "9p")] {
            assert_eq!(named(magic), Some(name));
        }
        let own = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1];
        assert!(
            own.iter().all(|magic| named(*magic).is_none()),
            "ext4 xfs btrfs tmpfs overlay zfs"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_mounted_by_itself_is_seen() {
        assert!(is_mounted_by_itself(Path::new("/proc")));
        assert!(!is_mounted_by_itself(Path::new("/proc/uptime")));
        assert!(!is_mounted_by_itself(Path::new("/nowhere")));
    }
}
