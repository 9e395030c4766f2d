//! The choice of the store and its password.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use testkit::RedisServer;

use crate::support::Scene;

const CONFIG: &str = ".config/lockkeeper/config.toml";

pub(crate) fn configure(scene: &Scene, text: &str) {
    fs::create_dir_all(scene.path(".config/lockkeeper")).unwrap();
    fs::write(scene.path(CONFIG), text).unwrap();
}

/// The messages of `-v` about the store.
fn chosen(scene: &Scene, url: Option<&str>, args: &[&str]) -> String {
    let mut command = scene.lockkeeper();
    match url {
        Some(url) => command.env("LOCKKEEPER_URL", url),
        None => command.env_remove("LOCKKEEPER_URL"),
    };
    command.args(["-v", "run"]).args(args).args(["job", "--", "true"]);
    scene.finish(command).errors
}

#[test]
fn the_option_overrides_the_variable_overrides_the_file() {
    let scene = Scene::redis();
    let url = scene.url();
    configure(&scene, &format!("url = \"{url}/3\""));
    assert!(chosen(&scene, None, &[]).contains(&format!("store {url}/3 (the configuration file)")));
    let by_variable = chosen(&scene, Some(&format!("{url}/2")), &[]);
    assert!(by_variable.contains(&format!("store {url}/2 (LOCKKEEPER_URL)")), "{by_variable}");
    let by_option = chosen(&scene, Some(&format!("{url}/2")), &["--url", &format!("{url}/1")]);
    assert!(by_option.contains(&format!("store {url}/1 (--url)")), "{by_option}");
    fs::write(scene.path("other.toml"), format!("url = \"{url}/4\"")).unwrap();
    let by_file = chosen(&scene, None, &["--config", "other.toml"]);
    assert!(by_file.contains(&format!("store {url}/4")), "{by_file}");
}

#[test]
fn a_password_comes_from_its_file_and_is_never_shown() {
    let server = RedisServer::builder().password("s3cr et:@/%").start();
    let place = format!("redis://127.0.0.1:{}", server.port());
    let scene = Scene::with(server);
    secret(&scene, "password", "s3cr et:@/%\nsecond line\n");
    let mut command = scene.lockkeeper();
    command.args(["-v", "run", "--url", &place, "job", "-c"]);
    command.arg("echo ran ${LOCKKEEPER_PASSWORD_FILE-none} ${LOCKKEEPER_URL-none}");
    command.env("LOCKKEEPER_PASSWORD_FILE", scene.path("password"));
    let outcome = scene.finish(command);
    outcome.assert_code(0);
    assert_eq!(outcome.output, "ran none none\n");
    assert!(!outcome.errors.contains("s3cr"), "{outcome:?}");
    // With the path in the configuration file.
    configure(&scene, "password_file = \"../../password\"");
    let mut command = scene.lockkeeper();
    command.args(["run", "--url", &place, "job", "--", "true"]).current_dir("/");
    scene.finish(command).assert_quiet("");
    fs::remove_file(scene.path(CONFIG)).unwrap();
    scene.run(&["--url", &place, "job", "--", "true"]).assert_code(77);
}

/// A file that only its owner can read.
pub(crate) fn secret(scene: &Scene, name: &str, text: &str) {
    fs::write(scene.path(name), text).unwrap();
    fs::set_permissions(scene.path(name), fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_password_that_others_can_read_is_reported_once() {
    let server = RedisServer::builder().password("s3cret").start();
    let place = format!("redis://127.0.0.1:{}", server.port());
    let scene = Scene::with(server);
    let with = |url: &str, file: &str| {
        let mut command = scene.lockkeeper();
        command.args(["run", "job", "--url", url, "--", "true"]);
        command.env("LOCKKEEPER_PASSWORD_FILE", file);
        let outcome = scene.finish(command);
        outcome.assert_code(0);
        assert!(!outcome.errors.contains("s3cret"), "{outcome:?}");
        outcome.errors
    };
    let in_url = place.replace("//", "//:s3cret@");
    let said = with(&in_url, "");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("--url contains a password") && said.contains("LOCKKEEPER_PASSWORD_FILE")
    );
    secret(&scene, "password", "s3cret\n");
    assert_eq!(with(&place, "password"), "");
    fs::set_permissions(scene.path("password"), fs::Permissions::from_mode(0o644)).unwrap();
    let said = with(&place, "password");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("the password file password") && said.contains("chmod"), "{said}");
    // Not on a command line.
    let mut command = scene.lockkeeper();
    command.args(["run", "job", "--", "true"]).env("LOCKKEEPER_URL", &in_url);
    scene.finish(command).assert_quiet("");
}

#[test]
fn an_empty_file_behind_a_symbolic_link_of_others_is_refused() {
    let scene = Scene::file();
    fs::create_dir(scene.path("open")).unwrap();
    fs::create_dir(scene.path("own")).unwrap();
    fs::set_permissions(scene.path("open"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(scene.path("own/empty"), "").unwrap();
    std::os::unix::fs::symlink(scene.path("own/empty"), scene.path("open/link")).unwrap();
    std::os::unix::fs::symlink(scene.path("own"), scene.path("open/way")).unwrap();
    for path in ["open/link", "open/way/empty"] {
        let outcome = scene.run(&["--url", &format!("file:{path}"), "job", "--", "true"]);
        outcome.assert_code(64);
        outcome.assert_says("symbolic link");
        assert_eq!(fs::metadata(scene.path("own/empty")).unwrap().len(), 0);
    }
    // A link in the user's own directory is allowed; so is a file that is already a store.
    std::os::unix::fs::symlink("own/empty", scene.path("link")).unwrap();
    scene.run(&["--url", "file:link", "job", "--", "true"]).assert_quiet("");
    scene.run(&["--url", "file:open/link", "job", "--", "true"]).assert_quiet("");
}

#[test]
fn an_unreadable_configuration_is_ignored_if_the_store_is_named() {
    let scene = Scene::file();
    fs::create_dir_all(scene.path(CONFIG)).unwrap(); // a directory: not even root can read it as a file
    for args in [&["job", "--", "true"][..], &["--url", "file:own.db", "job", "--", "true"]] {
        let mut command = scene.lockkeeper();
        command.arg("run").args(args);
        if args[0] == "--url" {
            command.env_remove("LOCKKEEPER_URL");
        }
        let outcome = scene.finish(command);
        outcome.assert_code(0);
        outcome.assert_says("ignoring the configuration file");
    }
    // An error if no other source names the store, or with --config.
    let mut command = scene.lockkeeper();
    command.env_remove("LOCKKEEPER_URL").args(["run", "job", "--", "touch", "ran"]);
    let outcome = scene.finish(command);
    outcome.assert_code(64);
    outcome.assert_says("config.toml");
    scene.run(&["--config", CONFIG, "job", "--", "touch", "ran"]).assert_code(64);
    assert!(!scene.exists("ran"));
}

#[test]
fn an_unreadable_password_file_is_named() {
    let scene = Scene::redis();
    let with = |path: &str| {
        let mut command = scene.lockkeeper();
        command.args(["run", "job", "--", "touch", "ran"]);
        command.env("LOCKKEEPER_PASSWORD_FILE", path);
        scene.finish(command)
    };
    let missing = with("/nowhere/password");
    missing.assert_code(64);
    missing.assert_says("/nowhere/password");
    fs::write(scene.path("empty"), "").unwrap();
    let empty = with("empty");
    empty.assert_code(64);
    empty.assert_says("empty line");
    assert!(!scene.exists("ran"));
}

#[test]
fn errors_in_the_configuration_are_reported() {
    let scene = Scene::redis();
    for (text, because) in [
        ("ulr = \"x\"", "ulr"),
        ("lease = \"soon\"", "soon"),
        ("url = ", "config.toml"),
        ("tls_cert = \"x\"", "tls_key"),
        ("lease = 0.5", "500ms"),
    ] {
        configure(&scene, text);
        let outcome = scene.run(&["job", "--", "true"]);
        outcome.assert_code(64);
        outcome.assert_says(because);
    }
    let mut command = scene.lockkeeper();
    command.args(["--config", "nowhere.toml", "run", "job", "--", "true"]);
    let outcome = scene.finish(command);
    outcome.assert_code(64);
    outcome.assert_says("nowhere.toml");
}

#[test]
fn the_lease_option_overrides_the_configuration() {
    let scene = Scene::redis();
    configure(&scene, "lease = \"2m\"");
    let left = |scene: &Scene, args: &[&str]| {
        let line = format!("{}; exec sleep 60", crate::support::announce("pid"));
        let _run = scene.start(&[args, &["job", "-c", &line]].concat());
        scene.process("pid");
        let Some(lockkeeper::Ttl::For(left)) = scene.remaining("job") else { panic!("held") };
        fs::remove_file(scene.path("pid")).unwrap();
        scene.ask(async |client| client.lock("job").force_unlock("").await.unwrap());
        left.as_secs()
    };
    assert!((100..=120).contains(&left(&scene, &[])));
    assert!((30..=40).contains(&left(&scene, &["--lease", "40"])));
}

#[test]
fn the_default_store_is_a_file_of_the_user() {
    let scene = Scene::redis();
    let said = chosen(&scene, None, &[]);
    let path = scene.path(".local/state/lockkeeper/locks.db");
    assert!(said.contains(&format!("store file:{} (the default", path.display())), "{said}");
    let mode = fs::metadata(scene.path(".local/state/lockkeeper")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let mut command = scene.lockkeeper();
    command.env_remove("LOCKKEEPER_URL").env("XDG_STATE_HOME", scene.path("elsewhere"));
    command.args(["-v", "run", "job", "--", "true"]);
    let said = scene.finish(command).errors;
    assert!(said.contains("elsewhere/lockkeeper/locks.db"), "{said}");
}

#[test]
fn no_directory_for_the_default_store_is_64() {
    let scene = Scene::redis();
    let mut command = scene.lockkeeper();
    command.env_remove("LOCKKEEPER_URL").env_remove("HOME").args(["run", "job", "--", "true"]);
    let outcome = scene.finish(command);
    outcome.assert_code(64);
    outcome.assert_says("--url file:PATH");
    let mut command = scene.lockkeeper();
    command.env_remove("LOCKKEEPER_URL").env("HOME", "/proc/nowhere");
    command.args(["run", "job", "--", "true"]);
    let outcome = scene.finish(command);
    outcome.assert_code(64);
    outcome.assert_says("--url file:PATH");
}

#[test]
fn a_server_that_is_not_redis_is_69() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for caller in listener.incoming() {
            let _ = caller.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let scene = Scene::file();
    let outcome = scene.run(&["--url", &url, "job", "--", "true"]);
    outcome.assert_code(69);
    outcome.assert_says("not that of a Redis server");
    assert_eq!(outcome.errors.lines().count(), 1, "{outcome:?}");
}

#[test]
fn a_wrong_url_is_answered_with_a_right_one() {
    let scene = Scene::file();
    for (url, says) in [
        ("redis-sentinel://h/m", "did you mean redis+sentinel://"),
        ("rediss_sentinel://h/m", "did you mean rediss+sentinel://"),
        ("Redis-Cluster://h", "did you mean redis+cluster://"),
        ("valkeys+replicas://h,i", "did you mean rediss+replicated://"),
        ("redis-socket:///run/r.sock", "did you mean redis+unix://"),
        ("valkey://h", "did you mean redis://"),
        ("gopher://h", "known are memory:"),
        ("redis://h/x", "is not a number: use redis://[user:password@]host[:port][/db]"),
        ("redis+replicated://[", "redis://[user:password@]host[:port][/db]"),
        ("redis+unix:r.sock", "redis+unix:///path[?db=N"),
    ] {
        let outcome = scene.run(&["--url", url, "job", "--", "true"]);
        outcome.assert_code(64);
        outcome.assert_says(says);
    }
}

#[test]
fn a_store_that_other_processes_cannot_share_is_64() {
    let scene = Scene::file();
    for (url, says) in [("memory:", "only within one process"), ("", "set but empty")] {
        let mut command = scene.lockkeeper();
        command.env("LOCKKEEPER_URL", url).args(["run", "job", "--", "touch", "ran"]);
        let outcome = scene.finish(command);
        outcome.assert_code(64);
        outcome.assert_says(says);
        assert!(!scene.exists("ran"));
    }
}
