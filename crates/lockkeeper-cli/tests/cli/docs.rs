//! Completions and manual pages.

use crate::support::Scene;

#[test]
fn every_shell_has_completions() {
    let scene = Scene::file();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let mut command = scene.lockkeeper();
        command.args(["completions", shell]);
        let outcome = scene.finish(command);
        outcome.assert_code(0);
        // Scripts call the binary if the shell can; the others contain the options.
        let asks = outcome.output.contains("__complete");
        assert!(asks || outcome.output.contains("max-hold"), "{shell}");
        assert!(!outcome.output.contains("__guardian"), "{shell}");
    }
    let mut command = scene.lockkeeper();
    command.args(["completions", "tcsh"]);
    scene.finish(command).assert_code(64);
}

#[test]
fn every_command_has_a_page() {
    let scene = Scene::file();
    let mut command = scene.lockkeeper();
    command.arg("man").arg(scene.path("pages"));
    scene.finish(command).assert_quiet("");
    let page = std::fs::read_to_string(scene.path("pages/lockkeeper-run.1")).unwrap();
    for word in [".TH lockkeeper-run", "at\\-least", "Examples:", "Exit codes", "124"] {
        assert!(page.contains(word), "{word}");
    }
    let mut command = scene.lockkeeper();
    command.arg("man");
    let outcome = scene.finish(command);
    outcome.assert_code(0);
    assert!(outcome.output.contains(".TH lockkeeper"), "{outcome:?}");
}
