//! The oldest Rust that the manifest promises.

use crate::run::{Outcome, Step};

/// `rust-version` of the workspace, which this package inherits.
const VERSION: &str = env!("CARGO_PKG_RUST_VERSION");

/// Checks the library with that toolchain, which is installed if it can be.
pub(crate) fn run() -> Outcome {
    let cargo = ["rustup", "run", VERSION, "cargo"];
    if !Step::new(&[&cargo[..], &["--version"]].concat()).succeeds() {
        println!("Rust {VERSION} is not installed");
        Step::new(&["rustup", "toolchain", "install", VERSION, "--profile", "minimal"])
            .run()
            .map_err(|error| format!("{error}\nnot checked: Rust {VERSION} cannot be had here"))?;
    }
    Step::new(&[&cargo[..], &["check", "-p", "lockkeeper", "--all-features"]].concat()).run()
}
