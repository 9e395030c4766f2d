//! Kinds of locks.

use crate::support::{Scene, announce, eventually, on_every_store, sleeper};

on_every_store! {
    readers_share_and_a_writer_does_not,
    a_name_in_use_as_another_kind_is_explained,
    permits_are_counted_and_their_number_is_agreed_on,
    tokens_grow,
    only_a_fenced_lock_has_a_token,
    a_fair_lock_goes_by_the_order,
}

/// A line that says that it is there under a name of its own, and stays.
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
    // What was killed could not give back: its leases end by themselves, unless forced.
    scene.ask(async |client| client.rw_lock("job").force_unlock().await.unwrap());
    let _writer = scene.start(&["--exclusive", "job", "-c", &stay("writer")]);
    scene.process("writer");
    scene.run(&["-s", "-n", "job", "--", "true"]).assert_code(75);
    scene.run(&["-x", "-n", "job", "--", "true"]).assert_code(75);
}

fn a_name_in_use_as_another_kind_is_explained(scene: &Scene) {
    let kinds: [(&[&str], &str, &str); 3] = [
        (&[], "a lock", "leave that out"),
        (&["-s"], "a read/write lock (--shared, --exclusive)", "ask for --shared or --exclusive"),
        (&["--permits", "2"], "a permit semaphore (--permits)", "ask for --permits"),
    ];
    std::fs::write(scene.path("config.toml"), "prefix = \"pre:\"").unwrap();
    let with = |options: &[&str], name: &str, line: &str| {
        scene.start(&[options, &["--config", "config.toml", "-n", name, "-c", line]].concat())
    };
    for (number, (options, found, instead)) in kinds.iter().enumerate() {
        let (name, file) = (format!("job {number}"), format!("file{number}"));
        let _holder = with(options, &name, &stay(&file));
        scene.process(&file);
        for (others, asked, _) in kinds.iter().filter(|(others, ..)| others != options) {
            let outcome = with(others, &name, "true").outcome();
            outcome.assert_code(64);
            assert_eq!(
                outcome.errors,
                format!(
                    "lockkeeper: \"pre:{name}\" is in use as {found}, and was asked for as {asked}: \
                     use another name, or {instead}\n"
                )
            );
        }
    }
}

fn permits_are_counted_and_their_number_is_agreed_on(scene: &Scene) {
    let first = scene.start(&["--permits", "2", "job", "-c", &stay("one")]);
    let _second = scene.start(&["--permits", "2", "job", "-c", &stay("two")]);
    scene.process("one");
    scene.process("two");
    scene.run(&["--permits", "2", "-n", "job", "--", "true"]).assert_code(75);
    let other = scene.run(&["--permits", "3", "-n", "job", "--", "true"]);
    other.assert_code(64);
    other.assert_says("2 permits");
    other.assert_says("not 3");
    first.process.terminate();
    first.outcome().assert_code(143);
    scene.run(&["--permits", "2", "-n", "job", "--", "true"]).assert_quiet("");
    let free = scene.ask(async |client| client.permit_semaphore("job").available().await.unwrap());
    assert_eq!(free, 1, "the third one has given back what it had");
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
    // Of a run around this one.
    command.env("LOCKKEEPER_TOKEN", "5");
    scene.finish(command).assert_quiet("none\n");
}

fn a_fair_lock_goes_by_the_order(scene: &Scene) {
    let holder = scene.start(&["--fair", "job", "-c", &sleeper()]);
    scene.process("pid");
    let mut waiters = Vec::new();
    for number in 1..=3 {
        let line = format!("echo {number} >> $D/order");
        waiters.push(scene.start(&["--fair", "job", "-c", &line]));
        let queued = || scene.ask(async |client| client.fair_lock("job").waiting().await.unwrap());
        eventually("its place in the queue", || queued() == number);
    }
    holder.process.terminate();
    holder.outcome().assert_code(143);
    for waiter in waiters {
        waiter.outcome().assert_quiet("");
    }
    assert_eq!(scene.evidence("order"), "1\n2\n3\n");
}
