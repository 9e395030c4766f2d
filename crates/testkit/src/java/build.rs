//! Building the peer, when what it is made of has changed.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::prepared::{self, prepared};

pub(super) const HOW_TO_GET_IT: &str = "The peer needs a JDK, 17 or newer, and Maven: run `cargo xtask interop`, which installs them \
     (or `apt-get install -y openjdk-17-jdk-headless maven`)";

/// A version of Redisson that the peer can be built with. `java/pom.xml` says which exactly.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Redisson {
    /// The newest release.
    Newest,
    /// 3.27, which many services still use.
    V3_27,
    /// 3.14, the one in the articles: no spin locks, no fenced locks.
    V3_14,
}

impl Redisson {
    /// All versions, the newest first.
    pub const ALL: [Self; 3] = [Self::Newest, Self::V3_27, Self::V3_14];

    /// The Maven profile and the directory below `java/target`.
    pub fn profile(self) -> &'static str {
        match self {
            Self::Newest => "redisson-newest",
            Self::V3_27 => "redisson-3.27",
            Self::V3_14 => "redisson-3.14",
        }
    }

    /// Builds the peer, unless it is built already, and returns its class path.
    ///
    /// # Panics
    ///
    /// If it cannot be built; the message says why and what to do.
    pub fn build(self) -> OsString {
        let directory = project().join("target").join(self.profile());
        let sources = [project().join("src"), project().join("pom.xml")];
        prepared(&directory, &sources, || self.compile());
        class_path(&directory)
    }

    /// Without the network if it can.
    fn compile(self) {
        let compiled = self.maven(&["--offline"]).or_else(|_| self.maven(&[]));
        compiled.unwrap_or_else(|error| panic!("{error}"));
    }

    fn maven(self, options: &[&str]) -> Result<(), String> {
        let mut command = Command::new("mvn");
        command.args(["--quiet", "--batch-mode", "--no-transfer-progress", "-P", self.profile()]);
        command.args(options).arg("compile").current_dir(project());
        prepared::run(&mut command, HOW_TO_GET_IT)
    }
}

/// The `java` that Maven uses, too.
pub(super) fn java() -> PathBuf {
    match env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin").join("java"),
        _ => PathBuf::from("java"),
    }
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("java")
}

fn class_path(directory: &Path) -> OsString {
    let entries = [directory.join("classes"), directory.join("lib").join("*")];
    env::join_paths(entries).expect("the path of the workspace contains no colon")
}
