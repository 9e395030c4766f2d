//! Every link of the documents leads somewhere, on a Git hosting page and in rustdoc.
//!
//! A page that rustdoc includes uses reference links only. Its own definitions are relative paths, for a
//! hosting page; `rustdoc_links.md`, which rustdoc reads before the page, defines the same labels as
//! items. rustdoc checks that these items exist; this test checks that both definitions are there and mean
//! the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The chapters of the manual, by their module.
const CHAPTERS: [&str; 11] = [
    "choosing",
    "guarantees",
    "failures",
    "failover",
    "cluster",
    "quorum",
    "fencing",
    "command_line",
    "redis",
    "file",
    "redisson",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn manual() -> PathBuf {
    root().join("crates/lockkeeper/src/manual")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages that rustdoc includes.
fn included() -> Vec<Page> {
    let chapters = CHAPTERS.map(|chapter| manual().join(format!("{chapter}.md")));
    let paths = [root().join("README.md"), manual().join("README.md")].into_iter().chain(chapters);
    paths.map(|path| Page::read(&path)).collect()
}

/// The pages that only a hosting page shows.
fn others() -> Vec<Page> {
    let names = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];
    names.map(|name| Page::read(&root().join(name))).into()
}

/// What the text says of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Link {
    /// `[text](destination)`
    Inline(String),
    /// `[text][label]`
    Reference(String),
    /// `[label]`, which is plain text if no definition has this label.
    Shortcut(String),
}

/// One Markdown file.
struct Page {
    path: PathBuf,
    links: Vec<Link>,
    /// Destinations by label. Markdown ignores the case of a label.
    definitions: BTreeMap<String, String>,
    /// Anchors of the headings.
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(path: &Path) -> Self {
        Self::parse(path, &read(path))
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            links: Vec::new(),
            definitions: BTreeMap::new(),
            anchors: BTreeSet::new(),
        };
        let (mut prose, mut code) = (String::new(), false);
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                code = !code;
            } else if code {
                continue;
            } else if let Some((label, destination)) = definition(line) {
                let before = page.definitions.insert(label.to_lowercase(), destination.to_owned());
                assert_eq!(before, None, "{}: [{label}] is defined twice", path.display());
            } else {
                prose.push_str(line);
                prose.push('\n');
                let heading = line.trim_start_matches('#');
                if heading.len() < line.len() && heading.starts_with(' ') {
                    let new = page.anchors.insert(anchor(heading.trim()));
                    assert!(new, "{}: two headings are called{heading}", path.display());
                }
            }
        }
        page.links = links(&prose);
        page
    }

    /// The file's path below the root of the repository.
    fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }

    /// The destination of a link on a hosting page; nothing if it is plain text.
    fn destination(&self, link: &Link) -> Result<Option<String>, String> {
        let defined = |label: &String| self.definitions.get(&label.to_lowercase()).cloned();
        match link {
            Link::Inline(destination) => Ok(Some(destination.clone())),
            Link::Reference(label) => match defined(label) {
                Some(destination) => Ok(Some(destination)),
                None => Err(format!("{}: [{label}] is not defined", self.name())),
            },
            Link::Shortcut(label) => match defined(label) {
                // As `[Unreleased]` of a changelog; but code in brackets is always meant as a link.
                None if label.starts_with('`') => {
                    Err(format!("{}: [{label}] is not defined", self.name()))
                }
                destination => Ok(destination),
            },
        }
    }

    /// The links that lead nowhere on a hosting page.
    fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for link in &self.links {
            match self.destination(link) {
                Ok(Some(destination)) => broken.extend(self.unresolved(&destination)),
                Ok(None) => {}
                Err(undefined) => broken.push(undefined),
            }
        }
        broken
    }

    /// Why a destination does not exist.
    fn unresolved(&self, destination: &str) -> Option<String> {
        if destination.starts_with("https://") {
            return None;
        }
        let (path, fragment) = match destination.split_once('#') {
            Some((path, fragment)) => (path, Some(fragment)),
            None => (destination, None),
        };
        let refused = |why: &str| Some(format!("{}: {destination}: {why}", self.name()));
        let target = self.path.parent().unwrap().join(path);
        if !path.is_empty() && !target.exists() {
            return refused("no such file");
        }
        let has_anchor = |fragment: &str| match path {
            "" => self.anchors.contains(fragment),
            _ => Page::read(&target).anchors.contains(fragment),
        };
        match fragment {
            Some(fragment) if !has_anchor(fragment) => refused("no such heading"),
            _ => None,
        }
    }

    /// The labels of links that are defined.
    fn used(&self) -> BTreeSet<String> {
        let label = |link: &Link| match link {
            Link::Inline(_) => None,
            Link::Reference(label) | Link::Shortcut(label) => Some(label.to_lowercase()),
        };
        let labels = self.links.iter().filter_map(label);
        labels.filter(|label| self.definitions.contains_key(label)).collect()
    }
}

/// `[label]: destination`
fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ").filter(|(label, _)| !label.contains(']'))
}

/// The anchor of a heading; rustdoc and hosting pages agree on it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// The links of a text without its blocks of code. Brackets in code are no links.
fn links(prose: &str) -> Vec<Link> {
    let (mut found, mut open, mut rest) = (Vec::new(), Vec::new(), prose);
    while let Some(next) = rest.find(['`', '[', ']', '\\']) {
        let (at, after) = (&rest[next..], &rest[next + 1..]);
        rest = match &at[..1] {
            "\\" => after.strip_prefix(|_| true).unwrap_or_default(),
            "`" => {
                let fence = &at[..at.len() - at.trim_start_matches('`').len()];
                let inside = &at[fence.len()..];
                inside.split_once(fence).map_or(inside, |(_, after)| after)
            }
            "[" => {
                open.push(after);
                after
            }
            _ => {
                let Some(begin) = open.pop() else {
                    rest = after;
                    continue;
                };
                let label = &begin[..begin.len() - at.len()];
                let (link, after) = match (after.strip_prefix('('), after.strip_prefix('[')) {
                    (Some(rest), _) => {
                        let (destination, after) = rest.split_once(')').expect("it is closed");
                        (Link::Inline(destination.to_owned()), after)
                    }
                    (_, Some(rest)) => {
                        let (label, after) = rest.split_once(']').expect("it is closed");
                        (Link::Reference(label.to_owned()), after)
                    }
                    _ => (Link::Shortcut(label.to_owned()), after),
                };
                found.push(link);
                after
            }
        };
    }
    found
}

/// Whether a destination for rustdoc means the same as one on a hosting page.
fn agree(page: &Page, hosted: &str, rustdoc: &str) -> Result<(), String> {
    // The data URI of a picture is long.
    let refused = |why: String| Err(format!("{}: {hosted} and {rustdoc:.60}: {why}", page.name()));
    if hosted.starts_with("https://") {
        return if hosted == rustdoc { Ok(()) } else { refused("not the same".to_owned()) };
    }
    let (path, fragment) = hosted.split_once('#').unwrap_or((hosted, ""));
    let target = page.path.parent().unwrap().join(path);
    let stem = target.file_stem().unwrap().to_str().unwrap();
    if path.ends_with(".svg") {
        let picture = rustdoc.strip_prefix("data:image/svg+xml,").map(decoded);
        let same = picture.is_some_and(|picture| picture == fs::read(&target).unwrap());
        return if same { Ok(()) } else { refused("run `cargo xtask pictures`".to_owned()) };
    }
    if path.ends_with(".md") {
        let module = match stem {
            "README" => "crate::manual".to_owned(),
            chapter => format!("crate::manual::{chapter}"),
        };
        let expected = if fragment.is_empty() { module } else { format!("{module}#{fragment}") };
        return if expected == rustdoc { Ok(()) } else { refused(format!("not {expected}")) };
    }
    // A source file: the item is made there, or its module is the file.
    let item = rustdoc.strip_prefix("crate::").unwrap_or_default();
    let source = read(&target);
    let words = || source.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_module = path.ends_with(&format!("/{item}.rs"));
    let name = item.split("::").find(|part| *part != "blocking").unwrap_or_default();
    match is_module || words().any(|word| word == name) {
        true => Ok(()),
        false => refused(format!("{name} is not there")),
    }
}

/// A text in percent-encoding.
fn decoded(text: &str) -> Vec<u8> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(&part.as_bytes()[2..]);
    }
    bytes
}

/// The definitions that rustdoc reads before a page.
fn rustdoc_definitions() -> BTreeMap<String, String> {
    let mut definitions = Page::read(&manual().join("rustdoc_links.md")).definitions;
    definitions.extend(Page::read(&manual().join("rustdoc_pictures.md")).definitions);
    definitions
}

#[track_caller]
fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn every_link_resolves_on_a_hosting_page() {
    let pages = included().into_iter().chain(others());
    assert_none(pages.flat_map(|page| page.broken()).collect());
}

#[test]
fn every_link_has_a_form_for_rustdoc_that_means_the_same() {
    let rustdoc = rustdoc_definitions();
    let mut problems = Vec::new();
    for page in included() {
        for link in &page.links {
            match link {
                // An anchor is the same in both; a relative path is not.
                Link::Inline(destination) if destination.starts_with(['#', 'h']) => {}
                Link::Inline(_) => problems.push(format!("{}: {link:?}", page.name())),
                Link::Reference(label) | Link::Shortcut(label) => {
                    let label = label.to_lowercase();
                    match (page.definitions.get(&label), rustdoc.get(&label)) {
                        (Some(hosted), Some(rustdoc)) => {
                            problems.extend(agree(&page, hosted, rustdoc).err());
                        }
                        (hosted, rustdoc) => problems.push(format!(
                            "{}: [{label}] is {hosted:?} on a hosting page, {rustdoc:?} in rustdoc",
                            page.name()
                        )),
                    }
                }
            }
        }
    }
    assert_none(problems);
}

#[test]
fn every_definition_is_used() {
    let (mut problems, mut used) = (Vec::new(), BTreeSet::new());
    for page in included().into_iter().chain(others()) {
        used.append(&mut page.used());
        let unused = page.definitions.keys().filter(|label| !page.used().contains(*label));
        problems.extend(unused.map(|label| format!("{}: [{label}]", page.name())));
    }
    let unused = rustdoc_definitions().into_keys().filter(|label| !used.contains(label));
    problems.extend(unused.map(|label| format!("for rustdoc: [{label}]")));
    assert_none(problems);
}

#[test]
fn rustdoc_reads_its_definitions_before_each_page() {
    let modules = read(&manual().join("mod.rs"));
    for chapter in CHAPTERS {
        let expected = format!(
            "#[doc = include_str!(\"rustdoc_links.md\")]\n#[doc = include_str!(\"{chapter}.md\")]\n\
             pub mod {chapter} {{}}\n"
        );
        assert!(modules.contains(&expected), "mod.rs does not contain:\n{expected}");
    }
    let index =
        "#![doc = include_str!(\"rustdoc_links.md\")]\n#![doc = include_str!(\"README.md\")]\n";
    assert!(modules.starts_with(index), "mod.rs does not start with:\n{index}");
    let library = read(&root().join("crates/lockkeeper/src/lib.rs"));
    let readme = "#![doc = include_str!(\"manual/rustdoc_links.md\")]\n\
                  #![doc = include_str!(\"manual/rustdoc_pictures.md\")]\n\
                  #![doc = include_str!(\"../README.md\")]\n";
    assert!(library.starts_with(readme), "lib.rs does not start with:\n{readme}");
}

#[test]
fn the_index_lists_every_chapter() {
    let names = fs::read_dir(manual()).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.filter_map(|name| name.to_str()?.strip_suffix(".md").map(str::to_owned));
    let pages: BTreeSet<_> =
        names.filter(|name| name != "README" && !name.starts_with("rustdoc_")).collect();
    assert_eq!(pages, CHAPTERS.map(str::to_owned).into(), "the chapters known to this test");
    assert_eq!(Page::read(&manual().join("README.md")).used(), pages, "the index");
}

#[test]
fn a_broken_link_is_found() {
    let broken = |text: &str| Page::parse(&root().join("README.md"), text).broken().len();
    assert_eq!(broken("[a](CHANGELOG.md#unreleased) [b][`X`] `[c](d)` [e]\n\n[`x`]: docs\n"), 0);
    assert_eq!(broken("# A `b`, c\n\n[a](#a-b-c) [site](https://example.org)"), 0);
    assert_eq!(broken("```\n[a](missing.md)\n```\n"), 0);
    for text in [
        "[a](missing.md)",
        "[a](CHANGELOG.md#missing)",
        "[a](#missing)",
        "[a][missing]",
        "[`Missing`]",
        "![a][b]\n\n[b]: docs/missing.svg",
        "| [a][b] |\n\n[b]: crate::Lock",
    ] {
        assert_eq!(broken(text), 1, "{text}");
    }
    let page = Page::parse(&manual().join("redis.md"), "");
    assert_eq!(agree(&page, "../lock.rs", "crate::Lock::run"), Ok(()));
    assert_eq!(agree(&page, "file.md#costs", "crate::manual::file#costs"), Ok(()));
    assert!(agree(&page, "file.md", "crate::manual::fencing").is_err());
    assert!(agree(&page, "../lock.rs", "crate::RwLock").is_err());
}
