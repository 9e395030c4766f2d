//! Many runs of one name at once, on a file.

use std::fs::{self, OpenOptions};
use std::process::{Child, Stdio};

use super::support::*;

/// How many runs there are at once.
const RUNS: usize = 150;

/// Only one at a time can make the directory.
const ALONE: &str = "mkdir \"$D/held\" && rmdir \"$D/held\"";

/// Starts a run that waits for as long as it takes.
fn start(scene: &Scene, form: &[&str]) -> Child {
    let errors = OpenOptions::new().create(true).append(true).open(scene.path("errors"));
    let mut command = scene.lockkeeper();
    command.args(["run", "it"]).args(form).args(["--", "sh", "-c", ALONE]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.expect("it can be written"));
    command.spawn().expect("it can be started")
}

#[test]
fn many_runs_of_one_name_in_a_file_wait_for_each_other_and_none_fails() {
    for form in [&["--fair"][..], &["-x"], &[]] {
        let scene = Scene::file();
        let runs: Vec<_> = (0..RUNS).map(|_| start(&scene, form)).collect();
        let ended = runs.into_iter().map(|mut run| run.wait().expect("it ends"));
        let failed = ended.filter(|status| !status.success()).count();
        assert_eq!(failed, 0, "{form:?}: {}", scene.evidence_now("errors"));
        let beside = fs::read_dir(scene.path(".")).expect("it can be read");
        let names = beside.map(|entry| entry.expect("it can be read").file_name());
        let bells = names.filter(|name| name.to_string_lossy().contains("-bell-")).count();
        assert_eq!(bells, 0, "{form:?}: each has removed what it was woken by");
    }
}
