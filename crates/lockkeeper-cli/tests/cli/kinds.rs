//! Kinds of locks.

use crate::support::{Scene, announce, eventually, on_every_store};

on_every_store! {
    readers_share_and_a_writer_does_not,
    a_lock_and_a_read_write_lock_are_busy_for_each_other,
    a_lock_waits_for_a_read_write_lock_of_its_name,
    a_name_in_use_as_another_kind_is_explained,
    permits_are_counted,
    a_semaphore_is_removed_with_its_last_permit,
    a_semaphore_is_removed_when_its_last_permit_expires,
    a_run_with_another_number_of_permits_changes_the_number,
    a_permanent_semaphore_is_neither_changed_nor_removed,
    tokens_grow,
    only_a_fenced_lock_has_a_token,
}

/// A line that announces itself under a name, and sleeps.
fn stay(name: &str) -> String {
    format!("{}; exec sleep 60", announce(name))
}

fn readers_share_and_a_writer_does_not(scene: &Scene) {
    let one = scene.start(&["-s", "job", "-c", &stay("one")]);
    let two = scene.start(&["--shared", "job", "-c", &stay("two")]);
    scene.process("one");
    scene.process("two");
    scene.run(&["-x", "-n", "job", "--", "true"]).assert_code(75);
    drop((one, two));
    // The killed runs did not release: force it instead of waiting for the leases.
    scene.ask(async |client| client.rw_lock("job").force_unlock("").await.unwrap());
    let _writer = scene.start(&["--exclusive", "job", "-c", &stay("writer")]);
    scene.process("writer");
    scene.run(&["-s", "-n", "job", "--", "true"]).assert_code(75);
    scene.run(&["-x", "-n", "job", "--", "true"]).assert_code(75);
}

fn a_name_in_use_as_another_kind_is_explained(scene: &Scene) {
    let kinds: [(&[&str], &str, &str); 3] = [
        (&[], "a lock", "omit --permits"),
        (&["-s"], "a read/write lock (--shared, --exclusive)", "omit --permits"),
        (&["--permits", "2"], "a permit semaphore (--permits)", "add --permits"),
    ];
    let counts = |options: &[&str]| options.first() == Some(&"--permits");
    std::fs::write(scene.path("config.toml"), "prefix = \"pre:\"").unwrap();
    let with = |options: &[&str], name: &str, line: &str| {
        scene.start(&[options, &["--config", "config.toml", "-n", name, "-c", line]].concat())
    };
    for (number, (options, found, instead)) in kinds.iter().enumerate() {
        let (name, file) = (format!("job {number}"), format!("file{number}"));
        let _holder = with(options, &name, &stay(&file));
        scene.process(&file);
        for (others, requested, _) in kinds.iter().filter(|kind| counts(kind.0) != counts(options))
        {
            let outcome = with(others, &name, "true").outcome();
            outcome.assert_code(64);
            assert_eq!(
                outcome.errors,
                format!(
                    "lockkeeper: lock \"pre:{name}\" is in use as {found}, not as {requested}: \
                     use another name, or {instead}\n"
                )
            );
        }
    }
}

/// As with flock(1), which has one kind.
fn a_lock_and_a_read_write_lock_are_busy_for_each_other(scene: &Scene) {
    let kinds: [&[&str]; 5] = [&[], &["--fair"], &["--fenced"], &["-s"], &["-x"]];
    for (number, kind) in kinds.iter().enumerate() {
        let (name, file) = (format!("job {number}"), format!("file{number}"));
        let _holder = scene.start(&[kind, &[name.as_str(), "-c", &stay(&file)][..]].concat());
        scene.process(&file);
        for other in kinds.iter().filter(|other| **other != ["-s"] || **kind != ["-s"]) {
            let outcome = scene.run(&[other, &["-n", &name, "--", "touch", "ran"][..]].concat());
            outcome.assert_code(75);
            assert_eq!(outcome.errors, "", "{kind:?} {other:?}");
        }
    }
    scene.run(&["-w2", "job 3", "--", "touch", "ran"]).assert_code(75);
    assert!(!scene.exists("ran"));
}

fn a_lock_waits_for_a_read_write_lock_of_its_name(scene: &Scene) {
    for (holds, waits) in [("-s", None), ("-x", Some("--fair")), ("--fenced", Some("-s"))] {
        let holder = scene.start(&[holds, "job", "-c", &stay("held")]);
        scene.process("held");
        let kind: Vec<_> = waits.into_iter().collect();
        let waiter = scene.start(&[&kind[..], &["-v", "job", "--", "true"]].concat());
        waiter.says("waiting");
        holder.process.terminate();
        holder.outcome().assert_code(143);
        let outcome = waiter.outcome();
        outcome.assert_code(0);
        outcome.assert_says("acquired");
        std::fs::remove_file(scene.path("held")).unwrap();
    }
}

/// The numbers of free, held and all permits.
fn permits(scene: &Scene, name: &str) -> (i64, u64, i64) {
    scene.ask(async |client| {
        let semaphore = client.permit_semaphore(name);
        let (free, taken) = (semaphore.available().await, semaphore.acquired().await);
        (free.unwrap(), taken.unwrap(), semaphore.permits().await.unwrap())
    })
}

fn permits_are_counted(scene: &Scene) {
    let first = scene.start(&["--permits", "2", "job", "-c", &stay("one")]);
    let _second = scene.start(&["--permits", "2", "job", "-c", &stay("two")]);
    scene.process("one");
    scene.process("two");
    scene.run(&["--permits", "2", "-n", "job", "--", "true"]).assert_code(75);
    first.process.terminate();
    first.outcome().assert_code(143);
    scene.run(&["--permits", "2", "-n", "job", "--", "true"]).assert_quiet("");
    assert_eq!(permits(scene, "job"), (1, 1, 2), "the third run has released its permit");
}

fn a_semaphore_is_removed_with_its_last_permit(scene: &Scene) {
    for number in ["2", "5", "1"] {
        scene.run(&["--permits", number, "job", "--", "true"]).assert_quiet("");
        assert_eq!(permits(scene, "job"), (0, 0, 0));
    }
    // The name can be used as another kind.
    scene.run(&["-n", "job", "--", "true"]).assert_quiet("");
    // A waiter creates it again.
    let holder = scene.start(&["--permits", "1", "job", "-c", &stay("held")]);
    scene.process("held");
    let waiter = scene.start(&["-v", "--permits", "1", "job", "--", "true"]);
    waiter.says("waiting");
    holder.process.terminate();
    holder.outcome().assert_code(143);
    waiter.outcome().assert_code(0);
    assert_eq!(permits(scene, "job"), (0, 0, 0));
}

fn a_semaphore_is_removed_when_its_last_permit_expires(scene: &Scene) {
    let run = scene.start(&["--permits", "2", "--lease", "6", "job", "-c", &stay("held")]);
    let command = scene.process("held");
    run.pid().signal(rustix::process::Signal::KILL);
    command.dies();
    eventually("the expiry of its permit", || permits(scene, "job") == (0, 0, 0));
    scene.run(&["-n", "job", "--", "true"]).assert_quiet("");
}

fn a_run_with_another_number_of_permits_changes_the_number(scene: &Scene) {
    let first = scene.start(&["--permits", "1", "job", "-c", &stay("one")]);
    scene.process("one");
    let busy = scene.run(&["--permits", "1", "-n", "job", "--", "true"]);
    busy.assert_code(75);
    let second = scene.start(&["--permits", "3", "job", "-c", &stay("two")]);
    scene.process("two");
    assert_eq!(second.errors(), "lockkeeper: lock \"job\" has 3 permits now instead of 1\n");
    assert_eq!(permits(scene, "job"), (1, 2, 3));
    // Fewer than are held: it waits until enough are released, and changes nothing before.
    let third = scene.start(&["-v", "--permits", "2", "job", "--", "true"]);
    third.says("waiting");
    assert_eq!(permits(scene, "job"), (1, 2, 3));
    first.process.terminate();
    first.outcome().assert_code(143);
    let third = third.outcome();
    third.assert_code(0);
    third.assert_says("has 2 permits now instead of 3");
    assert_eq!(permits(scene, "job"), (1, 1, 2));
}

fn a_permanent_semaphore_is_neither_changed_nor_removed(scene: &Scene) {
    scene.ask(async |client| client.permit_semaphore("job").set_permits(2).await.unwrap());
    let other = scene.run(&["--permits", "3", "-n", "job", "--", "touch", "ran"]);
    other.assert_code(64);
    other.assert_says("2 permits");
    other.assert_says("--permits 2");
    scene.run(&["--permits", "2", "-n", "job", "--", "true"]).assert_quiet("");
    assert_eq!(permits(scene, "job"), (2, 0, 2));
    assert!(!scene.exists("ran"));
}

fn tokens_grow(scene: &Scene) {
    let mut last = 0;
    for kind in [&["--fenced"][..], &["--fenced", "--fair"]] {
        for _ in 0..3 {
            let line = "echo $LOCKKEEPER_TOKEN";
            let outcome = scene.run(&[kind, &["job", "-c", line]].concat());
            let token: u64 = outcome.output.trim().parse().expect("a token");
            assert!(token > last, "{token} after {last}");
            last = token;
        }
    }
    let outcome = scene.run(&["--fenced", "-x", "rw", "-c", "echo $LOCKKEEPER_TOKEN"]);
    assert!(outcome.output.trim().parse::<u64>().is_ok(), "{outcome:?}");
}

fn only_a_fenced_lock_has_a_token(scene: &Scene) {
    let mut command = scene.lockkeeper();
    command.args(["run", "job", "-c", "echo ${LOCKKEEPER_TOKEN-none}"]);
    // The token of a run around this one.
    command.env("LOCKKEEPER_TOKEN", "5");
    scene.finish(command).assert_quiet("none\n");
}
