//! What ARCHITECTURE.md says about the sources is true of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Past this a file has become two things.
const LINES_MAX: usize = 600;

/// One source file, by its path below `src`.
struct Source {
    path: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
            found.push(Source { path, text });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 30, "these are not all sources");
    found
}

fn rust() -> impl Iterator<Item = Source> {
    sources().into_iter().filter(|source| source.path.ends_with(".rs"))
}

fn lua() -> impl Iterator<Item = Source> {
    sources().into_iter().filter(|source| source.path.ends_with(".lua"))
}

impl Source {
    /// Lines of code with their numbers: no comments, no documentation, no unit tests.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        let lines = lines.take_while(|(_, line)| line.trim() != "mod tests {");
        let lines = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
        lines.map(|(number, line)| (number + 1, line.split(" // ").next().unwrap_or(line)))
    }

    /// Where in the code `offends` says yes.
    fn offences(&self, offends: impl Fn(&str) -> bool) -> Vec<String> {
        let lines = self.code().filter(|(_, line)| offends(line));
        lines.map(|(number, line)| format!("{}:{number}: {}", self.path, line.trim())).collect()
    }
}

#[track_caller]
fn assert_none(rule: &str, offences: Vec<String>) {
    assert!(offences.is_empty(), "{rule}:\n{}", offences.join("\n"));
}

#[test]
fn the_engine_names_no_store() {
    let engine: Vec<_> = rust().filter(|source| source.path.starts_with("engine/")).collect();
    assert!(engine.len() > 5);
    let names = ["redis", "Redis", "memory::", "Memory"];
    let named = |line: &str| names.iter().any(|name| line.contains(name));
    let offences = engine.iter().flat_map(|source| source.offences(named)).collect();
    assert_none("the engine knows stores only as backends", offences);
}

#[test]
fn names_of_keys_and_channels_are_made_in_one_place() {
    let made = |line: &str| line.contains("redisson_") || line.contains("\"lockkeeper_");
    let keys = rust().find(|source| source.path == "redis/keys.rs").unwrap();
    assert!(!keys.offences(made).is_empty(), "they are made elsewhere now");
    let others = rust().filter(|source| source.path != keys.path).chain(lua());
    let offences = others.flat_map(|source| source.offences(made)).collect();
    assert_none("lock names reach Redis through keys.rs", offences);
}

#[test]
fn no_file_is_too_long() {
    let long = sources().into_iter().filter(|source| source.text.lines().count() >= LINES_MAX);
    let offences = long.map(|source| source.path).collect();
    assert_none("what second thing has it become?", offences);
}

#[test]
fn nothing_panics_for_convenience() {
    let panics = [".unwrap()", "todo!(", "unimplemented!(", "dbg!(", "println!("];
    let convenient = |line: &str| panics.iter().any(|word| line.contains(word));
    let offences = rust().flat_map(|source| source.offences(convenient)).collect();
    assert_none("say what is certain with expect, or return an error", offences);
}

/// The paths that a `use` names, with braces multiplied out.
fn paths(text: &str) -> Vec<String> {
    let Some(open) = text.find('{') else {
        return vec![text.split(" as ").next().unwrap_or(text).trim().to_owned()];
    };
    let (prefix, rest) = (&text[..open], &text[open + 1..text.rfind('}').unwrap_or(text.len())]);
    let (mut depth, mut items) = (0, vec![String::new()]);
    for letter in rest.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        items.last_mut().unwrap().push(letter);
    }
    let items = items.iter().filter(|item| !item.trim().is_empty());
    items.flat_map(|item| paths(&format!("{}{}", prefix.trim(), item.trim()))).collect()
}

/// What a module is called, by its file.
fn module(path: &str) -> String {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
    if path == "lib" { String::new() } else { path }
}

/// The modules that each module imports something from.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let uses = |source: &Source| -> Vec<String> {
        let (mut uses, mut within) = (Vec::<String>::new(), false);
        for (_, line) in source.code() {
            let begins = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "]
                .iter()
                .find_map(|word| line.strip_prefix(word));
            if let Some(rest) = begins {
                uses.push(rest.to_owned());
            } else if within {
                uses.last_mut().unwrap().push_str(line.trim());
            }
            within = (within || begins.is_some()) && !line.ends_with(';');
        }
        uses.iter().flat_map(|path| paths(path.trim_end_matches(';'))).collect()
    };
    let sources: Vec<_> = rust().collect();
    let modules: BTreeSet<_> = sources.iter().map(|source| module(&source.path)).collect();
    let root = sources.iter().find(|source| source.path == "lib.rs").unwrap();
    let reexported: BTreeMap<String, String> = uses(root)
        .into_iter()
        .filter_map(|path| path.rsplit_once("::").map(|(of, name)| (name.into(), of.into())))
        .collect();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in &sources {
        let own = module(&source.path);
        for path in uses(source) {
            let mut base: Vec<_> = own.split("::").collect();
            let mut words: Vec<_> = path.split("::").collect();
            match words[0] {
                "crate" => (base, words) = (Vec::new(), words.split_off(1)),
                "super" => {
                    while words.first() == Some(&"super") {
                        (_, words) = (base.pop(), words.split_off(1));
                    }
                }
                _ => continue,
            }
            let mut full = [base, words].concat();
            if let [name] = full[..]
                && let Some(of) = reexported.get(name)
            {
                full = of.split("::").collect();
            }
            while !full.is_empty() && !modules.contains(&full.join("::")) {
                full.pop();
            }
            found.entry(own.clone()).or_default().insert(full.join("::"));
        }
    }
    found
}

/// Whether `way` leads back to its first module, by modules that were not `seen`.
fn leads_back<'a>(
    imports: &'a BTreeMap<String, BTreeSet<String>>,
    way: &mut Vec<&'a str>,
    seen: &mut BTreeSet<&'a str>,
) -> bool {
    let related = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
    let (first, last) = (way[0], way[way.len() - 1]);
    for next in imports.get(last).into_iter().flatten().filter(|next| !related(last, next)) {
        if next == first {
            return true;
        }
        if seen.insert(next) {
            way.push(next);
            if leads_back(imports, way, seen) {
                return true;
            }
            way.pop();
        }
    }
    false
}

/// A module and the one it is part of may know each other; no others do, also not by way of a third.
#[test]
fn no_modules_import_each_other() {
    assert_eq!(
        paths("crate::a::{B, c::{D, E as F}}"),
        ["crate::a::B", "crate::a::c::D", "crate::a::c::E"]
    );
    let imports = imports();
    assert!(imports["engine::watchdog"].contains("engine::registry"), "{imports:?}");
    assert!(imports["fenced"].contains("lock"), "{imports:?}");
    let begins = |module| {
        let mut way = vec![module];
        leads_back(&imports, &mut way, &mut BTreeSet::new()).then(|| way.join(" → "))
    };
    let offences = imports.keys().map(String::as_str).filter_map(begins).collect();
    assert_none("modules import downwards only", offences);
}

/// The indices that follow `name[` in a text, without spaces and multiplication signs.
fn indices(text: &str, name: &str) -> Vec<String> {
    let opening = format!("{name}[");
    let uses = text.split(&opening).skip(1);
    let index = |rest: &str| rest.split(']').next().unwrap_or_default().replace([' ', '*'], "");
    uses.map(|rest| format!("{name}[{}]", index(rest))).collect()
}

/// The keys and arguments that the code of a script uses.
fn used(code: &str) -> BTreeSet<String> {
    let all_from = code.match_indices("ARGV, ").map(|(at, opening)| {
        let from = code[at + opening.len()..].split(')').next().unwrap();
        format!("ARGV[{from}..]")
    });
    let indices = [indices(code, "KEYS"), indices(code, "ARGV")].concat();
    indices.into_iter().chain(all_from).collect()
}

/// The keys and arguments that the header of a script explains.
fn explained(header: &str) -> Vec<String> {
    let lines = header.lines().filter_map(|line| line.strip_prefix("-- "));
    lines.flat_map(|line| [indices(line, "KEYS"), indices(line, "ARGV")].concat()).collect()
}

#[test]
fn a_scripts_header_explains_what_it_uses_and_nothing_else() {
    assert_eq!(
        Vec::from_iter(used("f(KEYS[1], ARGV[2 * i - 1], { unpack(ARGV, 3) })")),
        ["ARGV[2i-1]", "ARGV[3..]", "KEYS[1]"]
    );
    let scripts: Vec<_> = lua().collect();
    assert!(scripts.len() > 10);
    for Source { path, text } in scripts {
        let header_end = text.lines().take_while(|line| line.starts_with("--")).count();
        let lines: Vec<_> = text.lines().collect();
        let header = lines[..header_end].join("\n");
        let code = lines[header_end..].iter().filter(|line| !line.trim().starts_with("--"));
        let code: String = code.map(|line| format!("{line}\n")).collect();
        let explained = explained(&header);
        let once: BTreeSet<_> = explained.iter().cloned().collect();
        assert_eq!(once.len(), explained.len(), "{path}: explained twice: {explained:?}");
        assert_eq!(once, used(&code), "{path}: explained and used");
        let mut parts = vec!["-- Purpose:", "-- Returns:", "-- Publishes:"];
        parts.retain(|part| !header.lines().any(|line| line.starts_with(part)));
        assert!(parts.is_empty(), "{path}: no {parts:?}");
        let publishes = !header.contains("-- Publishes: nothing");
        let command = header.contains("publish command");
        assert_eq!(publishes, command, "{path}: publishes by the command it is given");
        assert_eq!(publishes, code.contains("notify(ARGV["), "{path}: never fails by it");
        assert!(!code.contains("call(ARGV["), "{path}: only notify.lua knows all commands");
    }
}

#[test]
fn every_script_is_loaded() {
    let loader = rust().find(|source| source.path == "redis/script.rs").unwrap();
    let name = |source: &Source| source.path.rsplit('/').next().unwrap().to_owned();
    let unused = lua().map(|source| name(&source));
    let unused = unused.filter(|name| !loader.text.contains(&format!("\"{name}\""))).collect();
    assert_none("scripts that nobody calls", unused);
}

#[test]
fn the_manual_states_the_defaults_as_they_are() {
    let read = |name: &str| {
        let page = sources().into_iter().find(|source| source.path == format!("manual/{name}"));
        let text = page.unwrap_or_else(|| panic!("no page {name}")).text;
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (guarantees, failures) = (read("guarantees.md"), read("failures.md"));
    let drift = (lockkeeper::DRIFT_RATIO * 100.0, lockkeeper::DRIFT_FIXED.as_millis());
    for (page, stated) in [
        (&guarantees, format!("bounded re-check ({} s)", lockkeeper::RECHECK.as_secs())),
        (&guarantees, format!("{} % of the lease + {} ms", drift.0, drift.1)),
        (&failures, format!("unreachable_after`] ({} s)", lockkeeper::UNREACHABLE_AFTER.as_secs())),
    ] {
        assert!(page.contains(&stated), "the manual does not say: {stated}");
    }
}
