//! Unusual names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use lockkeeper::Ttl;

use crate::support::{Scene, on_every_store, sleeper};

on_every_store! {
    any_bytes_are_a_name,
    a_name_with_a_dash_needs_the_option,
    the_prefix_is_part_of_the_name_in_the_store,
}

fn any_bytes_are_a_name(scene: &Scene) {
    let long = "x".repeat(10 * 1024);
    for name in [
        &b"with spaces and 'quotes\""[..],
        "schl\u{fc}ssel \u{1f512}".as_bytes(),
        b"two\nlines\n",
        b"{braces}:and*stars?",
        b"\xff\xfe raw",
        b"-",
        long.as_bytes(),
    ] {
        let shown = String::from_utf8_lossy(&name[..name.len().min(40)]).into_owned();
        let mut holder = scene.lockkeeper();
        let line = format!("printf %s \"$LOCKKEEPER_NAME\" > $D/name; {}", sleeper());
        holder.arg("run").arg("--name").arg(OsStr::from_bytes(name)).args(["-c", &line]);
        let holder = scene.launch(holder);
        scene.process("pid");
        assert_eq!(std::fs::read(scene.path("name")).unwrap(), name, "{shown}");
        // The store has exactly this name, and another run uses it.
        let left = scene.ask(async |client| client.lock(name).inspect().await.unwrap().ttl);
        assert!(matches!(left, Some(Ttl::For(_))), "{shown}");
        let mut other = scene.lockkeeper();
        other.args(["run", "-n", "--name"]).arg(OsStr::from_bytes(name)).args(["--", "true"]);
        scene.finish(other).assert_code(75);
        holder.process.terminate();
        holder.outcome().assert_code(143);
        std::fs::remove_file(scene.path("pid")).unwrap();
    }
}

fn a_name_with_a_dash_needs_the_option(scene: &Scene) {
    for args in [&["--name", "--lease"][..], &["--name=--lease"]] {
        let echo = ["--", "sh", "-c", "echo \"$LOCKKEEPER_NAME\""];
        scene.run(&[args, &echo].concat()).assert_quiet("--lease\n");
    }
    // Options before and after the name, global options before and after the subcommand.
    let url = scene.url();
    let mut command = scene.lockkeeper();
    command.env_remove("LOCKKEEPER_URL");
    command.args(["--url", &url, "run", "-n", "job", "--lease", "5", "--", "echo", "before"]);
    scene.finish(command).assert_quiet("before\n");
    let mut command = scene.lockkeeper();
    command.env_remove("LOCKKEEPER_URL");
    command.args(["run", "job", "--url", &url, "--", "echo", "after"]);
    scene.finish(command).assert_quiet("after\n");
}

fn the_prefix_is_part_of_the_name_in_the_store(scene: &Scene) {
    std::fs::create_dir_all(scene.path(".config/lockkeeper")).unwrap();
    std::fs::write(scene.path(".config/lockkeeper/config.toml"), "prefix = \"shop:\"\n").unwrap();
    let line = format!("echo $LOCKKEEPER_NAME > $D/name; {}", sleeper());
    let _holder = scene.start(&["job", "-c", &line]);
    scene.process("pid");
    assert_eq!(scene.evidence("name"), "job\n");
    assert!(matches!(scene.remaining("shop:job"), Some(Ttl::For(_))));
    scene.assert_free("job");
}
