//! `cargo xtask pictures`: what the README shows of the command line, taken from a real terminal.
//!
//! Real locks are held by real processes on a store of its own, the binary runs in tmux, and `anstyle-svg`
//! renders the screen: text that scales and can be searched, and that changes only where the program has
//! changed. They lie in `docs/`, beside the README that shows them. rustdoc copies no files, so for the same
//! README there they are data URIs in a file of definitions.

mod scene;
mod terminal;

use std::fs;

use anstyle_svg::{Term, WIN10_CONSOLE};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::install;
use crate::run::{Outcome, Step, root};
use scene::Scene;
use terminal::Terminal;

const TERM: Term = Term::new().palette(WIN10_CONSOLE).min_width_px(0);

/// As a link destination in Markdown: all but characters that are plain in URIs, in Markdown and in HTML.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b',')
    .remove(b'=')
    .remove(b'+');

/// Makes all of them.
pub(crate) fn run() -> Outcome {
    install::tools(&[install::TMUX])?;
    Step::new(&["cargo", "build", "-p", "lockkeeper-cli"]).run()?;
    let scene = Scene::new()?;
    let directory = root().join("docs");
    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let mut definitions = String::new();
    for (name, screen) in [("ls", ls(&scene)?), ("watch", watch(&scene)?)] {
        let path = directory.join(format!("{name}.svg"));
        let picture = TERM.render_svg(screen.trim_end());
        let encoded = utf8_percent_encode(&picture, ENCODED);
        definitions.push_str(&format!("[{name}.svg]: data:image/svg+xml,{encoded}\n"));
        fs::write(&path, picture).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("docs/{name}.svg");
    }
    let path = root().join("crates/lockkeeper/src/manual/rustdoc_pictures.md");
    fs::write(&path, definitions).map_err(|error| format!("{}: {error}", path.display()))
}

fn ls(scene: &Scene) -> Result<String, String> {
    let terminal = Terminal::run(scene, (92, 14), "ls")?;
    terminal.shows(&["report", "warehouse"])?;
    terminal.colours()
}

/// With a lock that has just come, one that is just gone, and everything about a third.
fn watch(scene: &Scene) -> Result<String, String> {
    let leaving = scene.hold("deploy", "release:v42", &[])?;
    let terminal = Terminal::run(scene, (100, 26), "watch --interval 100ms")?;
    terminal.shows(&["release:v42", "warehouse"])?;
    terminal.press("Enter")?;
    // By then the gauges have moved.
    terminal.shows(&["queue", " 18s"])?;
    drop(leaving);
    let _coming = scene.hold("mailer", "newsletter", &[])?;
    terminal.shows(&["+ newsletter", "- release:v42"])?;
    terminal.colours()
}
