//! `cargo xtask pictures`: what the README shows of the command line, taken from a real terminal.
//!
//! Real locks are held by real processes on a store of its own, the binary runs in tmux, and what is
//! on the screen becomes an SVG: text that scales and can be searched, and that changes only where the
//! program has changed. They lie in `docs/`, beside the README that shows them. rustdoc copies no files, so
//! for the same README there they are data URIs in a file of definitions.

mod ansi;
mod scene;
mod svg;
mod terminal;

use std::fs;

use crate::install;
use crate::run::{Outcome, Step, root};
use scene::Scene;
use terminal::Terminal;

/// Makes all of them.
pub(crate) fn run() -> Outcome {
    install::tmux()?;
    Step::new(&["cargo", "build", "-p", "lockkeeper-cli"]).run()?;
    let scene = Scene::new()?;
    let directory = root().join("docs");
    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let mut definitions = String::new();
    for (name, title, screen) in [
        ("ls", "lockkeeper ls", ls(&scene)?),
        ("watch", "lockkeeper watch", watch(&scene)?),
        ("demo", "lockkeeper demo", demo(&scene)?),
    ] {
        let path = directory.join(format!("{name}.svg"));
        let picture = svg::picture(title, &ansi::parse(&screen));
        definitions.push_str(&format!("[{name}.svg]: {}\n", data_uri(&picture)));
        fs::write(&path, picture).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("docs/{name}.svg");
    }
    let path = root().join("crates/lockkeeper/src/manual/rustdoc_pictures.md");
    fs::write(&path, definitions).map_err(|error| format!("{}: {error}", path.display()))
}

/// The picture as a link destination in Markdown: percent-encoded except for characters that are plain
/// in URIs, in Markdown and in HTML.
fn data_uri(svg: &str) -> String {
    let encoded = svg.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        b'-' | b'.' | b'/' | b':' | b';' | b',' | b'=' | b'+' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.fold(String::from("data:image/svg+xml,"), |uri, part| uri + &part)
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
    terminal.shows(&["waiting, the next one first", " 18s"])?;
    drop(leaving);
    let _coming = scene.hold("mailer", "newsletter", &[])?;
    terminal.shows(&["+ newsletter", "- release:v42"])?;
    terminal.colours()
}

fn demo(scene: &Scene) -> Result<String, String> {
    let terminal = Terminal::run(scene, (80, 66), "demo --fast")?;
    terminal.shows(&["lockkeeper watch"])?;
    terminal.colours()
}
