//! Width and colours on a terminal and in a pipe.

use lockkeeper::blocking::Wait;
use unicode_width::UnicodeWidthStr;

use crate::support::{Completed, Stand};
use crate::terminal::Terminal;

const ESCAPE: char = '\u{1b}';

fn some() -> Stand {
    let stand = Stand::redis();
    stand.java_holds("short", 1);
    stand.java_holds("a-rather-long-name-that-does-not-fit-into-any-narrow-terminal:日本語", 2);
    stand
}

#[test]
fn a_table_fits_the_terminal_and_marks_cut_cells() {
    let stand = some();
    for columns in [80, 60, 40, 20] {
        let terminal = Terminal::running(&stand, columns, "lk ls");
        let (screen, code) = terminal.ended();
        assert_eq!(code, 0);
        let lines: Vec<_> = screen.lines().collect();
        assert_eq!(lines.len(), 3, "no line wraps at {columns} columns:\n{screen}");
        assert!(lines.iter().all(|line| line.width() <= usize::from(columns)), "{screen}");
        assert!(lines[0].starts_with("NAME"), "{screen}");
        assert!(lines[1].starts_with("a-rather-l") && lines[1].contains('…'), "{screen}");
        assert!(lines[2].starts_with("short"), "{screen}");
    }
    let terminal = Terminal::running(&stand, 200, "lk ls");
    let (screen, _) = terminal.ended();
    assert!(!screen.contains('…'), "nothing is cut on a wide screen:\n{screen}");
}

#[test]
fn a_terminal_gets_colours() {
    let stand = some();
    let coloured = |line: &str| {
        let terminal = Terminal::running(&stand, 80, line);
        terminal.ended();
        terminal.colours().contains(ESCAPE)
    };
    assert!(coloured("lk ls"));
    assert!(coloured("lk inspect short"));
    assert!(coloured("lk doctor"));
    assert!(!coloured("NO_COLOR=1 lk ls"));
    assert!(!coloured("TERM=dumb lk ls"));
    assert!(!coloured("lk ls --color never"));
    assert!(coloured("NO_COLOR=1 lk ls --color always"), "the option overrides the variable");
}

#[test]
fn a_pipe_gets_colours_on_demand_and_is_never_cut() {
    let stand = some();
    let plain = stand.run(["ls"]).ok();
    assert!(!plain.contains(ESCAPE) && !plain.contains('…'), "{plain}");
    assert!(plain.contains("any-narrow-terminal:日本語 "), "{plain}");
    let with =
        |name: &str| Completed::of(stand.command(["ls"]).env(name, "1").env("COLUMNS", "20")).ok();
    assert!(with("CLICOLOR_FORCE").contains(ESCAPE));
    assert!(!with("NO_COLOR").contains(ESCAPE));
    assert!(stand.run(["ls", "--color=always"]).ok().contains(ESCAPE));
    let both =
        Completed::of(stand.command(["ls"]).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1")).ok();
    assert!(!both.contains(ESCAPE), "NO_COLOR overrides CLICOLOR_FORCE");
}

#[test]
fn a_document_is_never_coloured() {
    let stand = some();
    for args in [&["ls", "--json"][..], &["inspect", "--json", "short"], &["doctor", "--json"]] {
        let ran = stand.run(args.iter().chain(&["--color=always"]));
        assert!(!ran.out.contains(ESCAPE), "{ran:?}");
    }
}

#[test]
fn an_empty_list_is_explained_on_a_terminal() {
    let stand = Stand::redis();
    let terminal = Terminal::running(&stand, 80, "lk ls 'x*'");
    let (screen, code) = terminal.ended();
    assert_eq!((screen.trim(), code), ("lockkeeper: no lock matches x*", 0));
    let _guard = stand.client().lock("a").lock().wait().unwrap();
    let (screen, _) = Terminal::running(&stand, 80, "lk ls --kind fair").ended();
    assert_eq!(screen.trim(), "lockkeeper: no lock of the given kind matches *");
}

#[test]
fn doctor_uses_symbols_on_a_terminal() {
    let stand = Stand::redis();
    let terminal = Terminal::running(&stand, 60, "lk doctor");
    let (screen, code) = terminal.ended();
    assert_eq!(code, 1, "{screen}");
    assert!(screen.starts_with("✗ persistence"), "the worst first:\n{screen}");
    assert!(screen.contains("✓ eviction"), "{screen}");
    assert!(screen.contains("→ set appendonly"), "{screen}");
    assert!(screen.lines().all(|line| line.width() <= 60), "{screen}");
    let (findings, summary) = screen.split_once("1 risk to locks").unwrap();
    let starts = |c: char| " ✗!✓".contains(c);
    assert!(findings.lines().all(|line| line.starts_with(starts)), "a torn word:\n{screen}");
    assert!(summary.split_whitespace().any(|word| word == "slowest"), "{screen}");
}
