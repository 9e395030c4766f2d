//! Directories that are made from sources, once, and again when those have changed.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use rustix::fs::{FlockOperation, flock};

use crate::lock;

/// Written last, so that what was cut short is done again.
const STAMP: &str = "built";

/// Makes sure that `directory` is what `make` makes of `sources`, files or folders of files. One at a
/// time in the folder above it, here and in other processes: package managers do not bear two writers.
pub(crate) fn prepared(directory: &Path, sources: &[PathBuf], make: impl FnOnce()) {
    static HERE: Mutex<()> = Mutex::new(());
    let _here = lock(&HERE);
    let above = directory.parent().expect("it lies in a directory of ours");
    fs::create_dir_all(above).unwrap_or_else(|error| panic!("{}: {error}", above.display()));
    let elsewhere = File::create(above.join("lock")).expect("a lock file can be made");
    flock(&elsewhere, FlockOperation::LockExclusive).expect("a lock file can be locked");

    let fingerprint = fingerprint(sources);
    if fs::read_to_string(directory.join(STAMP)).ok().as_deref() != Some(&fingerprint) {
        // What another version has brought would stay.
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                panic!("{}: {error}", directory.display())
            }
            _ => make(),
        }
        fs::write(directory.join(STAMP), fingerprint).expect("the directory is ours");
    }
}

/// Runs a step of `make`. The error has all of its output, and `hint`.
pub(crate) fn run(command: &mut Command, hint: &str) -> Result<(), String> {
    let program = command.get_program().to_owned();
    let output = command.output().map_err(|error| format!("{program:?}: {error}. {hint}"))?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?} failed:\n{out}{err}\n{hint}")),
    }
}

/// Differs when a source does.
fn fingerprint(sources: &[PathBuf]) -> String {
    let mut files: Vec<_> = sources.iter().flat_map(|source| files_of(source)).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        let content = fs::read(&file);
        content.unwrap_or_else(|error| panic!("{}: {error}", file.display())).hash(&mut hasher);
    }
    format!("{:016x}\n", hasher.finish())
}

fn files_of(source: &Path) -> Vec<PathBuf> {
    if !source.is_dir() {
        return vec![source.to_owned()];
    }
    let entries =
        fs::read_dir(source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let paths = entries.map(|entry| entry.expect("a directory can be read").path());
    paths.flat_map(|path| files_of(&path)).collect()
}
