//! Servers other than that of the system.

use std::process::Command;
use std::{env, panic};

use testkit::{Flavour, RedisServer, Replicated};

#[test]
fn each_flavour_reports_its_version() {
    let start = |flavour| RedisServer::builder().flavour(flavour).start();
    let redis = start(Flavour::Redis62);
    assert_eq!(redis.info_field("server", "redis_version"), "6.2.14");
    let valkey = start(Flavour::Valkey9);
    assert_eq!(valkey.info_field("server", "server_name"), "valkey");
    assert_eq!(valkey.info_field("server", "valkey_version"), "9.1.2");
    let system = start(Flavour::System);
    let version = Command::new("redis-server").arg("--version").output().unwrap().stdout;
    let reported = format!("v={} ", system.info_field("server", "redis_version"));
    assert!(String::from_utf8_lossy(&version).contains(&reported), "{reported}");
}

#[test]
fn only_the_server_of_the_system_speaks_tls() {
    drop(RedisServer::builder().tls().start());
    for flavour in [Flavour::Redis62, Flavour::Valkey9] {
        let start = || drop(RedisServer::builder().flavour(flavour).tls().start());
        let refusal = panic::catch_unwind(start).expect_err("it has no TLS");
        let refusal = refusal.downcast_ref::<String>().unwrap().to_lowercase();
        assert!(refusal.contains("did not start") && refusal.contains("tls"), "{refusal}");
    }
}

/// By tests that run again, in an environment with the variable.
#[test]
fn the_environment_chooses_the_server_of_a_run() {
    let run = |server| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "a_server_is_of_the_chosen_flavour", "--nocapture"]);
        let output = command.env("LOCKKEEPER_TEST_SERVER", server).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    for (server, chosen) in [("redis62", "Redis62 6.2.14"), ("valkey9", "Valkey9 9.1.2")] {
        let (passed, said) = run(server);
        assert!(passed && said.contains(chosen), "{said}");
    }
    let (passed, said) = run("redis26");
    let choices = "redis26 is no server: choose system, redis62 or valkey9";
    assert!(!passed && said.contains(choices), "{said}");
}

#[test]
fn a_server_is_of_the_chosen_flavour() {
    let version = |server: &RedisServer| {
        let info = server.cli(&["INFO", "server"]);
        let field = |name| info.text().lines().find_map(|line| line.strip_prefix(name));
        let version = field("valkey_version:").or_else(|| field("redis_version:"));
        version.expect("a version").to_owned()
    };
    let flavour = Flavour::chosen();
    let explicit = version(&RedisServer::builder().flavour(flavour).start());
    assert_eq!(version(&RedisServer::start()), explicit);
    assert_eq!(version(Replicated::builder().replicas(1).start().primary().server()), explicit);
    println!("{flavour:?} {explicit}");
}
