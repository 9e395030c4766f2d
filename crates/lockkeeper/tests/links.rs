//! Every link of the documents leads somewhere.
//!
//! On a hosting page a link is a relative path, which this test follows. A page that rustdoc includes defines
//! its labels at its end; `rustdoc_links.md`, which rustdoc reads before the page, defines them as items, and
//! rustdoc checks that these exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

struct Page {
    path: PathBuf,
    /// Without definitions and code, except where code is the label of a link.
    prose: String,
    /// Destinations by label. Markdown ignores the case of a label.
    definitions: BTreeMap<String, String>,
    /// Anchors of the headings.
    anchors: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn manual(file: &str) -> PathBuf {
    root().join("crates/lockkeeper/src/manual").join(file)
}

fn read(path: PathBuf) -> Page {
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    Page::new(path, &text)
}

/// The files of the chapters.
fn chapters() -> BTreeSet<String> {
    let files = fs::read_dir(manual("")).unwrap().map(|entry| entry.unwrap().file_name());
    let files = files.map(|file| file.into_string().unwrap());
    let is_chapter = |file: &String| file.ends_with(".md") && file != "README.md";
    files.filter(|file| is_chapter(file) && !file.starts_with("rustdoc_")).collect()
}

/// What stands between `open` and `close`.
fn between<'a>(text: &'a str, open: &str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0))
}

impl Page {
    fn new(path: PathBuf, text: &str) -> Self {
        let (mut prose, mut definitions, mut anchors) =
            (String::new(), BTreeMap::new(), BTreeSet::new());
        for line in text.split("```").step_by(2).flat_map(str::lines) {
            if let Some((label, destination)) =
                line.strip_prefix('[').and_then(|line| line.split_once("]: "))
            {
                definitions.insert(label.to_lowercase(), destination.to_owned());
                continue;
            }
            if let Some((_, heading)) = line.split_once("# ").filter(|_| line.starts_with('#')) {
                let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
                let anchor: String = heading.to_lowercase().chars().filter(kept).collect();
                anchors.insert(anchor.replace(' ', "-"));
            }
            let parts: Vec<_> = line.split('`').collect();
            for (at, part) in parts.iter().enumerate() {
                let is_label = at % 2 == 1
                    && parts[at - 1].ends_with('[')
                    && parts.get(at + 1).is_some_and(|next| next.starts_with(']'));
                match at % 2 {
                    0 => prose.push_str(part),
                    _ if is_label => prose.push_str(&format!("`{part}`")),
                    _ => {}
                }
            }
            prose.push('\n');
        }
        Self { path, prose, definitions, anchors }
    }

    /// The links that lead nowhere on a hosting page.
    fn broken(&self) -> Vec<String> {
        let destinations = between(&self.prose, "](", ')');
        let destinations = destinations.chain(self.definitions.values().map(String::as_str));
        // A label alone may be plain text, but code in brackets is always meant as a link.
        let labels = between(&self.prose, "][", ']').map(str::to_lowercase);
        let code = between(&self.prose, "[`", '`').map(|code| format!("`{code}`").to_lowercase());
        let code = code.filter(|code| !self.prose.to_lowercase().contains(&format!("[{code}][")));
        let labels = labels.chain(code).filter(|label| !self.definitions.contains_key(label));
        let broken = destinations.filter(|destination| !self.leads_somewhere(destination));
        broken.map(str::to_owned).chain(labels).map(|l| format!("{:?}: {l}", self.path)).collect()
    }

    fn leads_somewhere(&self, destination: &str) -> bool {
        let (path, anchor) = destination.split_once('#').unwrap_or((destination, ""));
        let target = self.path.with_file_name(path);
        destination.starts_with("https://")
            || (path.is_empty() || target.exists())
                && (anchor.is_empty()
                    || path.is_empty() && self.anchors.contains(anchor)
                    || !path.is_empty() && read(target).anchors.contains(anchor))
    }
}

#[test]
fn every_link_leads_somewhere() {
    let documents = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];
    let pages = documents.iter().map(|file| root().join(file));
    let pages = pages.chain(chapters().into_iter().map(|file| manual(&file))).map(read);
    let broken: Vec<_> =
        pages.chain([read(manual("README.md"))]).flat_map(|p| p.broken()).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// rustdoc reads the definitions before each page: Markdown uses the first one of a label.
#[test]
fn rustdoc_has_a_definition_of_every_label() {
    let [mut defined, pictures] =
        ["links", "pictures"].map(|file| read(manual(&format!("rustdoc_{file}.md"))).definitions);
    defined.extend(pictures);
    let modules = fs::read_to_string(manual("mod.rs")).unwrap();
    let chapters = chapters();
    assert!(modules.contains("$(#[doc = include_str!(\"rustdoc_links.md\")]"));
    for chapter in &chapters {
        let name = chapter.trim_end_matches(".md");
        assert!(modules.split_whitespace().any(|word| word == name), "mod.rs has no {name}");
    }
    let index = read(manual("README.md"));
    assert_eq!(BTreeSet::from_iter(index.definitions.values().cloned()), chapters, "the index");
    let pages = chapters.iter().map(|file| manual(file)).chain([root().join("README.md")]);
    for page in pages.map(read).chain([index]) {
        let missing: Vec<_> =
            page.definitions.keys().filter(|label| !defined.contains_key(*label)).collect();
        assert!(missing.is_empty(), "{:?}: rustdoc_links.md has no {missing:?}", page.path);
    }
}

#[test]
fn a_broken_link_is_found() {
    let broken = |text: &str| Page::new(root().join("README.md"), text).broken().len();
    assert_eq!(broken("[a](CHANGELOG.md#unreleased) [b][`X`] `[c](d)` [e]\n\n[`x`]: docs\n"), 0);
    assert_eq!(broken("# A `b`, c\n\n[a](#a-b-c) [site](https://example.org)"), 0);
    assert_eq!(broken("```\n[a](missing.md)\n```\n[`y`][z]\n\n[z]: docs"), 0);
    for text in [
        "[a](missing.md)",
        "[a](CHANGELOG.md#missing)",
        "[a](#missing)",
        "[a][missing]",
        "[`Missing`]",
        "| [a][b] |\n\n[b]: crate::Lock",
    ] {
        assert_eq!(broken(text), 1, "{text}");
    }
}
