//! Many concurrent runs of one name, on a file.

use std::fs::{self, OpenOptions};
use std::process::{Child, Stdio};

use super::support::*;

/// The number of concurrent runs.
const RUNS: usize = 150;

/// Fails unless it runs alone.
const ALONE: &str = "mkdir \"$D/held\" && rmdir \"$D/held\"";

/// Starts a run without a wait limit.
fn start(scene: &Scene, form: &[&str]) -> Child {
    let errors = OpenOptions::new().create(true).append(true).open(scene.path("errors"));
    let mut command = scene.lockkeeper();
    command.args(["run", "it"]).args(form).args(["--", "sh", "-c", ALONE]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.expect("it can be written"));
    command.spawn().expect("it can be started")
}

#[test]
fn many_runs_of_one_name_exclude_each_other_and_none_fails() {
    for form in [&["--fair"][..], &["-x"], &[]] {
        let scene = Scene::file();
        let runs: Vec<_> = (0..RUNS).map(|_| start(&scene, form)).collect();
        let ended = runs.into_iter().map(|mut run| run.wait().expect("it ends"));
        let failed = ended.filter(|status| !status.success()).count();
        assert_eq!(failed, 0, "{form:?}: {}", scene.evidence_now("errors"));
        let beside = fs::read_dir(scene.path(".")).expect("it can be read");
        let names = beside.map(|entry| entry.expect("it can be read").file_name());
        let bells = names.filter(|name| name.to_string_lossy().contains("-bell-")).count();
        assert_eq!(bells, 0, "{form:?}: each run removes its wake-up file");
    }
}
