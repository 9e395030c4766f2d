//! Paths that are no place for locks: each is refused with words that help, and left as it was.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

use lockkeeper::{Error, Phase};
use rusqlite::Connection;

use super::*;

async fn refused(url: &str) -> Error {
    match Client::connect(url).await {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error,
    }
}

/// Invalid, and the words are in it.
async fn invalid(path: &Path, words: &[&str]) {
    let error = refused(&format!("file:{}", path.display())).await;
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    let said = error.to_string();
    for word in words {
        assert!(said.contains(word), "not {word:?} in {said:?}");
    }
    assert!(said.contains(&path.display().to_string()), "{said:?} names the path");
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_rejected_and_not_changed() {
    let file = LockFile::new();
    for text in ["hello", &"SQLite format 2\0and so on".repeat(100)] {
        fs::write(file.path(), text).unwrap();
        invalid(&file.path(), &["no file of locks"]).await;
        assert_eq!(fs::read_to_string(file.path()).unwrap(), text);
        assert_eq!(fs::read_dir(file.folder()).unwrap().count(), 1, "nothing lies beside it");
    }
}

#[tokio::test]
async fn a_database_of_another_program_is_rejected_and_not_changed() {
    for mode in ["DELETE", "WAL"] {
        for mark in ["", "PRAGMA application_id = 7"] {
            let file = LockFile::new();
            let other = Connection::open(file.path()).unwrap();
            let set = format!("PRAGMA journal_mode = {mode}; CREATE TABLE theirs (a); {mark}");
            other.execute_batch(&set).unwrap();
            drop(other);
            let before = fs::read(file.path()).unwrap();
            invalid(&file.path(), &["another program"]).await;
            assert_eq!(fs::read(file.path()).unwrap(), before);
            assert_eq!(fs::read_dir(file.folder()).unwrap().count(), 1, "nothing lies beside it");
        }
    }
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
    let file = LockFile::new();
    connect(&file).await.shutdown().await;
    let version = |number: i32| file.look().pragma_update(None, "user_version", number).unwrap();
    version(4);
    invalid(&file.path(), &["newer lockkeeper"]).await;
    version(3);
    connect(&file).await;
}

#[tokio::test]
async fn a_file_of_an_older_version_is_brought_up_to_date() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let guard = client.lock("it").lease(PATIENCE).lock().await.unwrap();
    std::mem::forget((client, guard));
    for older in [1, 2] {
        file.look().pragma_update(None, "user_version", older).unwrap();
        let client = connect(&file).await;
        assert!(client.lock("it").try_lock().await.unwrap().is_none(), "what it held is there");
        assert_eq!(file.count("PRAGMA user_version", []), 3);
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_a_file_is_rejected() {
    let file = LockFile::new();
    invalid(file.folder(), &["is a directory"]).await;
    let error = refused(&format!("file:{}/no/such/locks.db", file.folder().display())).await;
    let said = error.to_string();
    assert!(said.contains("no/such") && said.contains("does not exist"), "{said}");
    symlink("nowhere", file.path()).unwrap();
    invalid(&file.path(), &["points to nowhere"]).await;
    invalid(Path::new("/dev/null"), &["no regular file"]).await;
    for url in ["file", "file:", "file://", "file://host/locks.db"] {
        let error = refused(url).await;
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error:?}");
        assert!(error.to_string().contains("file:"), "{url}: {error}");
    }
}

/// Under each name it would have other files beside it, and two processes would not see each other.
#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let file = LockFile::new();
    connect(&file).await.shutdown().await;
    let second = file.folder().join("second");
    fs::hard_link(file.path(), &second).unwrap();
    invalid(&second, &["has 2 names"]).await;
    fs::remove_file(second).unwrap();
    connect(&file).await;
}

#[tokio::test]
async fn one_file_is_one_store_however_its_path_is_written() {
    let file = LockFile::new();
    let link = file.folder().join("link");
    symlink(file.path(), &link).unwrap();
    let holder = connect(&file).await;
    let _guard = holder.lock("it").lock().await.unwrap();
    let folder = file.folder().display().to_string();
    let name = file.folder().file_name().unwrap().to_str().unwrap();
    for url in [
        format!("file://{folder}/locks.db"),
        format!("file:{folder}/./locks.db"),
        format!("file:{folder}/../{name}/locks.db"),
        format!("file:{}", link.display()),
    ] {
        let client = Client::connect(&url).await.unwrap();
        assert!(client.lock("it").try_lock().await.unwrap().is_none(), "{url}");
    }
    let names = fs::read_dir(file.folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let lasting = names.filter(|name| !name.to_string_lossy().contains("-bell-")).count();
    assert_eq!(lasting, 4, "the file, two beside it, the link");
}

/// A process of the test below, which may do less than we may.
pub(crate) fn one_with_fewer_rights() {
    let (url, _) = given();
    let opened = async {
        let client = Client::connect(&url).await?;
        Ok(client.lock("it").try_lock().await?.is_some())
    };
    match block_on(opened) {
        Ok(free) => println!("opened: free {free}"),
        Err(Error::Denied { lock: None, phase: Phase::Connect, detail, .. }) => {
            println!("denied: {detail}")
        }
        Err(error) => println!("another error: {error:?}"),
    }
}

pub(crate) fn one_that_looks() {
    let (url, _) = given();
    let looked = async {
        let client = Client::connect_with(&url, ClientOptions::new().read_only()).await?;
        let lock = client.lock("it");
        let held = lock.is_locked().await?;
        let mut listing = client.inspector().list("*");
        let listed = listing.next().await?.map_or(0, |page| page.len());
        let refused = lock.try_lock().await;
        let denied =
            matches!(&refused, Err(Error::Denied { detail, .. }) if detail.contains("writable"));
        Ok::<_, Error>(format!("held {held}, listed {listed}, denied {denied}"))
    };
    println!("looked: {:?}", block_on(looked));
}

/// A user with read permission sees the locks and changes nothing.
#[tokio::test]
async fn a_read_only_file_can_be_inspected() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let guard = client.lock("it").lock().await.unwrap();
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let all = |of_files, of_folder| {
        for entry in fs::read_dir(file.folder()).unwrap() {
            mode(&entry.unwrap().path(), of_files);
        }
        mode(file.folder(), of_folder);
    };
    let looked = || {
        let command = as_nobody(command("paths::one_that_looks", &file.url(), ""));
        ChildProcess::from_command(command).expect_line("looked: ")
    };
    all(0o444, 0o555);
    let said = looked();
    assert!(said.contains("held true, listed 1, denied true"), "{said}");
    all(0o644, 0o755);
    guard.release().await.unwrap();
    client.shutdown().await;
    // Where no other process has it open, and its index is not in use.
    all(0o444, 0o555);
    let said = looked();
    assert!(said.contains("held false, listed 0, denied true"), "{said}");
    all(0o644, 0o755);
}

/// What is in the way is said of a file that cannot be read without being written.
#[tokio::test]
async fn the_error_says_why_a_read_only_file_cannot_be_inspected() {
    let file = LockFile::new();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let tells = |what: &str| {
        let command = as_nobody(command("paths::one_that_looks", &file.url(), ""));
        let said = ChildProcess::from_command(command).expect_line("looked: ");
        assert!(said.contains(what), "{said}");
    };
    mode(file.folder(), 0o755);
    fs::write(file.path(), "").unwrap();
    mode(&file.path(), 0o444);
    tells("is empty and cannot be written");
    connect(&file).await.shutdown().await;
    let look = file.look();
    look.pragma_update(None, "user_version", 99).unwrap();
    tells("by a newer lockkeeper");
}

/// A user with write permission can store triggers; they do not run in other processes.
#[tokio::test]
async fn triggers_in_the_file_do_not_run() {
    let file = LockFile::new();
    let client = connect(&file).await;
    file.look()
        .execute_batch(
            "CREATE TRIGGER evil AFTER INSERT ON names BEGIN
                UPDATE names SET record = '{}'; SELECT raise(FAIL, 'evil'); END",
        )
        .unwrap();
    let guard = client.lock("it").lock().await.unwrap();
    assert!(connect(&file).await.lock("it").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// Two users, if the tests run as root.
#[tokio::test]
async fn users_with_write_permission_share_the_locks_of_a_file() {
    let file = LockFile::new();
    fs::write(file.path(), "").unwrap();
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&file.path(), 0o666);
    mode(file.folder(), 0o777);
    let other = || {
        let command = as_nobody(command("paths::one_with_fewer_rights", &file.url(), ""));
        ChildProcess::from_command(command).expect_line("d: ")
    };
    let client = connect(&file).await;
    let guard = client.lock("it").lock().await.unwrap();
    assert!(other().contains("free false"));
    guard.release().await.unwrap();
    assert!(other().contains("free true"));
}

fn as_nobody(mut command: Command) -> Command {
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    command
}

#[tokio::test]
async fn a_file_without_write_permission_is_denied_with_its_path() {
    let file = LockFile::new();
    let nobody = |url: &str| {
        let command = as_nobody(command("paths::one_with_fewer_rights", url, ""));
        ChildProcess::from_command(command).expect_line("d: ")
    };
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let names_the_path = |said: String| {
        let path = file.path().display().to_string();
        assert!(said.contains(&path) && said.contains("writable"), "{said}");
    };
    // A directory in which nothing can be made.
    mode(file.folder(), 0o555);
    names_the_path(nobody(&file.url()));
    // A file that can only be read, in a directory in which nothing can be made.
    mode(file.folder(), 0o755);
    connect(&file).await.shutdown().await;
    mode(file.folder(), 0o555);
    mode(&file.path(), 0o444);
    names_the_path(nobody(&file.url()));
    // The same where files can be made beside it.
    mode(file.folder(), 0o777);
    names_the_path(nobody(&file.url()));
    // A directory that cannot even be looked into.
    mode(file.folder(), 0o700);
    if rustix::process::geteuid().is_root() {
        names_the_path(nobody(&file.url()));
    }
}
