//! Completions, manual pages, and tips for a wrong command line.

use lockkeeper::blocking::Wait;
use std::collections::BTreeSet;
use std::process::Command;

use crate::support::{BINARY, Stand};

/// The completions of bash for a line.
fn completed(stand: &Stand, line: &str) -> BTreeSet<String> {
    completed_words(stand, line, &line.split(' ').collect::<Vec<_>>())
}

/// The completions for a line that bash splits into these words.
fn completed_words(stand: &Stand, line: &str, words: &[&str]) -> BTreeSet<String> {
    let binary = std::path::Path::new(BINARY);
    // A limit for an endless loop.
    let script = "ulimit -t 10; eval \"$(lockkeeper completions bash)\"; \
                  COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; \
                  COMP_WORDS=(\"${@:2}\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
                  compopt() { echo \"compopt $*\"; }; \
                  _lockkeeper; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-c", script, "bash", line]);
    bash.args(words);
    bash.env_clear().env("LOCKKEEPER_URL", &stand.url);
    bash.env("PATH", format!("{}:/usr/bin:/bin", binary.parent().unwrap().display()));
    let output = bash.output().expect("bash can be started");
    assert!(output.status.success(), "{line}: {:?}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn has(offered: &BTreeSet<String>, words: &[&str]) {
    for word in words {
        assert!(offered.contains(*word), "{word:?} is not in {offered:?}");
    }
}

#[test]
fn bash_completes_commands_options_and_names() {
    let stand = Stand::file();
    let client = stand.client();
    let _guards = ["orders:42", "orders:43", "deploy", "ann@home", "two words", "$(reboot)"]
        .map(|name| client.lock(name).lock().wait().unwrap());
    has(&completed(&stand, "lockkeeper "), &["run", "ls", "inspect", "unlock"]);
    has(&completed(&stand, "lockkeeper run deploy --m"), &["--max-hold"]);
    has(&completed(&stand, "lockkeeper run deploy "), &["--wait", "--no-wait", "--"]);
    has(&completed(&stand, "lockkeeper inspect deploy --k"), &["--kind"]);
    has(&completed(&stand, "lockkeeper ls --sort "), &["age", "ttl"]);
    has(&completed(&stand, "lockkeeper ls --sort=a"), &["age"]);

    let names = completed(&stand, "lockkeeper run -n ");
    assert_eq!(names, ["orders:42", "orders:43", "deploy", "ann@home"].map(str::to_owned).into());
    // Readline replaces the text after a colon, and from an @ on.
    let names = completed(&stand, "lockkeeper unlock orders:4");
    assert_eq!(names, ["42", "43"].map(str::to_owned).into());
    assert_eq!(completed(&stand, "lockkeeper unlock ann@h"), ["@home".to_owned()].into());
    assert_eq!(completed(&stand, "lockkeeper inspect nothing"), BTreeSet::new());

    has(&completed(&stand, "lockkeeper run deploy -- prin"), &["printf", "printenv"]);
    let rest = completed(&stand, "lockkeeper run deploy -- printf a");
    assert_eq!(rest, ["compopt -o default".to_owned()].into(), "as without lockkeeper");
    assert_eq!(completed(&stand, "lockkeeper --config "), ["compopt -o default".to_owned()].into());

    let quoted = ["lockkeeper", "run", "'a -- b"];
    assert_eq!(completed_words(&stand, &quoted.join(" "), &quoted), BTreeSet::new());
}

#[test]
fn completion_neither_waits_for_a_store_nor_creates_it() {
    let stand = Stand::file();
    assert_eq!(completed(&stand, "lockkeeper run "), BTreeSet::new());
    assert!(!std::path::Path::new(stand.url.strip_prefix("file:").unwrap()).exists());
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let started = testkit::Stopwatch::start();
    assert_eq!(completed(&stand, &format!("lockkeeper --url {url} run ")), BTreeSet::new());
    // The connect timeout is three seconds.
    assert!(started.elapsed() < std::time::Duration::from_millis(2900), "{:?}", started.elapsed());
}

fn pages(stand: &Stand) -> Vec<(String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let mut command = stand.command(["man"]);
    assert!(command.arg(directory.path()).status().unwrap().success());
    let files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), text)
    };
    files.map(read).collect()
}

#[test]
fn pages_have_examples_and_valid_references() {
    let stand = Stand::file();
    let pages = pages(&stand);
    let names: BTreeSet<_> = pages.iter().map(|(name, _)| name.trim_end_matches(".1")).collect();
    assert!(names.contains("lockkeeper") && names.contains("lockkeeper-inspect"), "{names:?}");
    for (name, page) in &pages {
        let (_, examples) = page.split_once("Examples:").expect(name);
        assert!(examples.contains("lockkeeper "), "{name}: {examples}");
        let plain = page.replace("\\-", "-");
        for (at, _) in plain.match_indices("(1)") {
            let word = plain[..at].rsplit(|c: char| c.is_whitespace()).next().unwrap();
            assert!(names.contains(word), "{name} refers to {word}(1)");
        }
    }
}

#[test]
fn a_synopsis_is_the_usage() {
    let stand = Stand::file();
    for (name, page) in pages(&stand) {
        let synopsis = page.split(".SH SYNOPSIS").nth(1).expect(&name);
        let synopsis = synopsis.split(".SH").next().unwrap().replace("\\-", "-");
        let command = name.trim_end_matches(".1").replacen('-', " ", 1);
        assert!(synopsis.contains(&command), "{name}: {synopsis}");
        if name == "lockkeeper-run.1" {
            assert!(synopsis.contains("lockkeeper run [OPTIONS] NAME [-- CMD [ARG]...]"));
            assert!(synopsis.contains("lockkeeper run [OPTIONS] NAME -c LINE"), "{synopsis}");
        }
    }
}

#[test]
fn options_of_flock_work() {
    let stand = Stand::file();
    let client = stand.client();
    let quick =
        |args: &[&str]| stand.run([&["run", "a"], args, &["--", "/bin/true"]].concat()).code;
    for free in [
        &["--nonblock"][..],
        &["--nb"],
        &["--timeout", "5"],
        &["-e"],
        &["--close"],
        &["--conflict-exit-code", "3"],
        &["--shared"],
        &["--exclusive", "--verbose"],
    ] {
        assert_eq!(quick(free), Some(0), "{free:?}");
    }
    let _guard = client.lock("a").lock().wait().unwrap();
    assert_eq!(quick(&["--nb"]), Some(75));
    assert_eq!(quick(&["--timeout", "0.1", "--conflict-exit-code", "3"]), Some(3));
    assert_eq!(quick(&["--nonblock", "-E", "4", "-o"]), Some(4));
}

#[test]
fn a_wrong_command_line_gets_a_tip() {
    let stand = Stand::file();
    let tips = |args: &[&str], tip: &str| stand.run(args).fails(64, &[tip]);
    tips(&["run", "deploy", "echo", "hi"], "'lockkeeper run deploy -- echo hi'");
    tips(&["run", "deploy", "--no-fork", "--", "true"], "omit it");
    tips(&["run", "deploy", "--unlock"], "lockkeeper unlock");
    tips(&["run", "deploy", "--ttl", "5", "--", "true"], "--lease");
    tips(&["run", "deploy", "--waitt", "5", "--", "true"], "--wait");
    for command in ["run", "inspect", "unlock"] {
        tips(&[command, "-job"], "if '-job' is the name of the lock, write '--name=-job'");
    }
    // Similar to an option.
    tips(&["inspect", "--job"], "'--name=--job'");
    let said = stand.run(["run", "--wait-for-me", "--", "true"]);
    assert!(!said.err.contains("'-- --wait-for-me'"), "the command is after it: {}", said.err);
    said.fails(64, &["'--name=--wait-for-me'"]);
    tips(&["run", "--", "-job", "true"], "if '-job' is the name of the lock, write '--name=-job'");
    tips(&["ls", "-job*"], "if '-job*' is the pattern, write '-- -job*'");
    for command in ["run", "inspect", "unlock", "ls"] {
        let said = stand.run([command, "--longest-lease", "5s", "deploy", "--job"]);
        assert!(!said.err.contains("if '--job' is"), "it has a name: {}", said.err);
        let said = stand.run([command, "--longest-lease", "5s", "--job"]);
        said.fails(64, &["if '--job' is the "]);
    }
    for args in [&["--wait", "-1"][..], &["-w", "-1"], &["--lease", "-5"]] {
        let line = [&["run", "deploy"], args, &["--", "true"]].concat();
        tips(&line, &format!("\"{}\" is no duration: write seconds", args[1]));
    }
    for option in ["--permits", "-E", "--acknowledged-by", "--longest-lease"] {
        tips(&["run", option, "-1", "deploy", "--", "true"], "'-1' for '");
    }
    let said = stand.run(["run", "--parallel", "deploy", "--", "true"]);
    assert!(!said.err.contains("'-- --parallel'"), "the command is after it: {}", said.err);
    said.fails(64, &["'--name=--parallel'"]);
}
