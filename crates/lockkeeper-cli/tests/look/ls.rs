//! `ls`.

use lockkeeper::blocking::Wait;
use std::thread;

use lockkeeper::{AnyGuard, Client};
use serde_json::{Value, json};

use crate::support::{
    Completed, JAVA_CLIENT, Stand, WAIT_LIMIT, eventually, myself, on_every_store,
};

fn find<'a>(locks: &'a [Value], name: &str) -> Option<&'a Value> {
    locks.iter().find(|lock| lock["name"] == name)
}

#[test]
fn every_kind_is_listed_with_its_holder() {
    on_every_store(|stand| {
        let client = stand.client();
        let rw = client.rw_lock("written");
        let permits = client.permit_semaphore("permits");
        permits.set_permits(5).wait().unwrap();
        let _guards = [
            AnyGuard::from(client.lock("lock").lock().wait().unwrap()),
            client.fair_lock("fair").lock().wait().unwrap().into(),
            client.fenced_lock("fenced").lock().wait().unwrap().into(),
            client.rw_lock("read").read().wait().unwrap().into(),
            rw.write().wait().unwrap().into(),
            permits.acquire(3).wait().unwrap().into(),
            client.mutex("mutex").lock().wait().unwrap().into(),
        ];
        let kinds = [
            ("lock", "lock", 1),
            ("fair", "fair", 1),
            ("fenced", "lock", 1),
            ("read", "read", 1),
            ("written", "write", 1),
            ("permits", "permits", 3),
            ("mutex", "mutex", 1),
        ];
        // A client announces its holds after a second.
        let locks = eventually("all holds are announced", || {
            let locks = stand.listed();
            let known = |(name, kind, _): &(&str, &str, u64)| {
                let lock = find(&locks, name);
                lock.is_some_and(|lock| lock["kind"] == *kind && lock["since"].is_string())
            };
            kinds.iter().all(known).then_some(locks)
        });
        assert_eq!(locks.len(), kinds.len(), "{locks:#?}");
        for (name, _, holds) in kinds {
            let lock = find(&locks, name).unwrap();
            let holder = &lock["holders"][0];
            let (program, host) = (holder["program"].as_str().unwrap(), holder["host"].as_str());
            let shown = format!("{program} pid {} on {}", holder["pid"], host.unwrap());
            assert_eq!(shown, myself(), "{lock:#}");
            assert_eq!(lock["holds"], holds, "{lock:#}");
            // Permits have leases of their own; the semaphore has none.
            let ttl = lock["ttl_ms"].as_u64();
            assert_eq!(ttl.is_some_and(|ttl| ttl <= 30_000), name != "permits", "{lock:#}");
            assert!(lock["age_ms"].as_u64().unwrap() < 60_000, "{lock:#}");
        }
        assert_eq!(
            find(&locks, "permits").unwrap()["permits"],
            json!({"free": 2, "taken": 3, "total": 5})
        );

        let table = stand.run(["ls"]).ok();
        let lines: Vec<_> = table.lines().collect();
        // Cells, with the holder of this test as one word.
        let words = |line: &str| {
            let line = line.replace(&myself(), "myself");
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(lines[0]), ["NAME", "KIND", "HOLDER", "HOLDS", "TTL", "WAITERS", "AGE"]);
        let names: Vec<_> = lines[1..].iter().map(|line| words(line)[0].clone()).collect();
        assert_eq!(
            names,
            ["fair", "fenced", "lock", "mutex", "permits", "permits", "permits", "read", "written"],
            "sorted, with a row for each permit"
        );
        for permit in &lines[5..8] {
            let row = words(permit);
            assert_eq!((&row[3][..], &row[5][..]), ("1", "0"), "{permit}");
            assert!(row[4].ends_with('s'), "its own expiry: {permit}");
        }
        let row = words(lines[3]);
        assert_eq!(row[..4], ["lock", "lock", "myself", "1"]);
        assert!(row[4].ends_with('s') && row[6].ends_with('s'), "ttl and age: {row:?}");
    });
}

#[test]
fn locks_of_java_clients_are_listed_and_other_data_is_not() {
    let stand = Stand::redis();
    let owner = stand.java_holds("java", 7);
    let mut redis = stand.server().connection();
    redis.cmd(&["HSET", "endless", &format!("{JAVA_CLIENT}:8"), "2"]).ok();
    redis.cmd(&["HSET", "user:1", "name", "ann", "age", "7"]).ok();
    redis.cmd(&["SET", "session", "x"]).ok();
    redis.cmd(&["SET", "counter", "5"]).ok();
    redis.cmd(&["ZADD", "scores", "1", "ann"]).ok();

    let locks = stand.listed();
    let names: Vec<_> = locks.iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["endless", "java"]);
    assert_eq!(locks[0]["ttl_ms"], Value::Null);
    assert_eq!(locks[0]["holds"], 2);
    assert_eq!(locks[1]["holders"][0]["id"], owner);
    assert_eq!(locks[1]["holders"][0]["host"], Value::Null);

    let table = stand.run(["ls"]).ok();
    let row = |n: usize| table.lines().nth(n).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(row(1)[..5], ["endless", "lock", &format!("{JAVA_CLIENT}:8"), "2", "∞"]);
    assert_eq!(row(2)[..4], ["java", "lock", &owner, "1"]);
    assert_eq!(row(2)[6], "-", "the age is unknown");
}

#[test]
fn waiters_are_counted() {
    on_every_store(|stand| {
        let holder = stand.client();
        let _fair = holder.fair_lock("fair").lock().wait().unwrap();
        let _plain = holder.lock("plain").lock().wait().unwrap();
        let waiters: Vec<Client> = (0..2).map(|_| stand.client()).collect();
        thread::scope(|scope| {
            for client in &waiters {
                scope.spawn(|| client.fair_lock("fair").try_lock_for(WAIT_LIMIT).wait());
                scope.spawn(|| client.lock("plain").try_lock_for(WAIT_LIMIT).wait());
            }
            eventually("both waiters are counted", || {
                let locks = stand.listed();
                let waiting = |name| find(&locks, name).map(|lock| lock["waiters"].clone());
                let known = waiting("fair") == Some(json!(2)) && waiting("plain") == Some(json!(2));
                known.then_some(())
            });
            waiters.iter().for_each(|client| client.shutdown().wait());
        });
    });
}

#[test]
fn a_pattern_selects_names() {
    on_every_store(|stand| {
        let client = stand.client();
        let names = ["orders:1", "orders:22", "order", "bills:1"];
        let _guards = names.map(|name| client.lock(name).lock().wait().unwrap());
        let names = |pattern: &str| {
            let document = stand.run(["ls", "--json", pattern]).document("ls");
            let locks = document["locks"].as_array().unwrap().clone();
            locks.iter().map(|l| l["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("orders:*"), ["orders:1", "orders:22"]);
        assert_eq!(names("*s:?"), ["bills:1", "orders:1"]);
        assert_eq!(names("[bo]*[12]"), ["bills:1", "orders:1", "orders:22"]);
        assert_eq!(names("order"), ["order"]);
    });
}

#[test]
fn a_prefix_hides_other_names_and_itself() {
    on_every_store(|stand| {
        let client = stand.client();
        let _guards =
            ["shop:a", "shop:b", "other"].map(|name| client.lock(name).lock().wait().unwrap());
        let config = stand.write("config.toml", "prefix = \"shop:\"");
        let table = stand.run(["--config", &config, "ls"]).ok();
        let names: Vec<_> = table.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(names, ["NAME", "a", "b"]);
        let table = stand.run(["inspect", "a", "--config", &config]).ok();
        assert!(table.contains("held"), "{table}");
    });
}

#[test]
fn an_empty_list_is_no_line_and_a_whole_document() {
    on_every_store(|stand| {
        assert_eq!(stand.run(["ls"]).ok(), "");
        assert_eq!(stand.run(["ls", "--json"]).ok(), "{\"locks\":[],\"complete\":true}\n");
    });
}

#[test]
fn a_list_without_all_permissions_is_incomplete() {
    let stand = Stand::redis();
    stand.java_holds("a:1", 1);
    stand.java_holds("b:1", 1);
    let acl = ["ACL", "SETUSER", "half", "on", ">secret", "~a:*", "~lockkeeper*", "&*", "+@all"];
    stand.server().cli(&acl).ok();
    let url = stand.server().url_with("half", "secret");

    let ran = stand.run(["ls", "--url", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("a:1") && !ran.out.contains("b:1"), "{ran:?}");
    assert!(ran.err.contains("may be incomplete"), "{ran:?}");

    let ran = stand.run(["ls", "--json", "--url", &url]);
    let document = crate::schema::checked("ls", &ran.out);
    assert_eq!(document["complete"], false);
    assert_eq!(document["locks"].as_array().unwrap().len(), 1);
}

#[test]
fn failures_have_their_codes() {
    let stand = Stand::redis();
    stand.run(["ls", "--jsno"]).fails(64, &["--jsno"]);
    stand.run(["ls", "a", "b"]).fails(64, &["b"]);
    stand.run(["ls", "--url", "nonsense:"]).fails(64, &["nonsense"]);
    stand.run(["ls", "--config", "/nowhere"]).fails(64, &["/nowhere"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    stand.java_holds("a", 1);
    let ran = Completed::of(stand.command(["ls"]).stdout(full));
    assert_eq!(ran.code, Some(70), "{ran:?}");
    assert!(ran.err.contains("standard output"), "{ran:?}");

    stand.server().cli(&["ACL", "SETUSER", "default", "off"]).ok();
    stand.run(["ls"]).fails(77, &["permission"]);
    stand.server().kill();
    stand.run(["ls"]).fails(69, &["redis://127.0.0.1"]);
}

#[test]
fn kinds_can_be_selected() {
    on_every_store(|stand| {
        let client = stand.client();
        let _guards = [
            AnyGuard::from(client.lock("lock").lock().wait().unwrap()),
            client.rw_lock("read").read().wait().unwrap().into(),
            client.rw_lock("written").write().wait().unwrap().into(),
        ];
        let names = |args: &[&str]| -> Vec<String> {
            let table = stand.run([&["ls"], args].concat()).ok();
            let rows = table.lines().skip(1);
            rows.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&["--kind", "rw"]), ["read", "written"]);
        assert_eq!(names(&["--kind", "lock"]), ["lock"]);
        assert_eq!(names(&["--kind", "rw,lock", "*r*"]), ["read", "written"]);
        assert_eq!(names(&["--kind", "permits"]), [""; 0]);
        let document = stand.run(["ls", "--json", "--kind", "lock"]).document("ls");
        assert_eq!(document["locks"].as_array().unwrap().len(), 1);
    });
    Stand::redis().run(["ls", "--kind", "cat"]).fails(64, &["cat", "permits"]);
}

/// Also a list that is not sorted by default.
#[test]
fn a_list_can_be_sorted_by_each_column() {
    let stand = Stand::redis();
    let many = "for i = 1, 3000 do \
                    redis.call('HSET', 'job:' .. i, ARGV[1] .. ':' .. i, i % 7 + 1) \
                    redis.call('PEXPIRE', 'job:' .. i, 600000 + i * 1000) \
                end";
    stand.server().cli(&["EVAL", many, "0", JAVA_CLIENT]).ok();
    let sorted = |args: &[&str]| -> Vec<Value> {
        let document = stand.run([&["ls", "--json"], args].concat()).document("ls");
        document["locks"].as_array().unwrap().clone()
    };
    let numbers = |locks: &[Value], field: &str| -> Vec<u64> {
        locks.iter().map(|lock| lock[field].as_u64().unwrap()).collect()
    };
    let texts = |locks: &[Value], field: &str| -> Vec<String> {
        locks.iter().map(|lock| lock[field].as_str().unwrap().to_owned()).collect()
    };
    assert!(texts(&sorted(&["--sort", "name"]), "name").is_sorted());
    assert!(numbers(&sorted(&["--sort", "ttl"]), "ttl_ms").is_sorted());
    let holds = sorted(&["--sort", "holds"]);
    assert_eq!(holds.len(), 3000);
    assert!(numbers(&holds, "holds").is_sorted_by(|a, b| a >= b), "the highest first");
    assert!(numbers(&sorted(&["--sort", "holds", "-r"]), "holds").is_sorted());
    let same = holds.iter().filter(|lock| lock["holds"] == 1).cloned().collect::<Vec<_>>();
    assert!(texts(&same, "name").is_sorted(), "by name within equal values");
    let last = sorted(&["--sort", "name", "--reverse"]);
    assert_eq!(last[0]["name"], "job:999");
    for column in ["kind", "holder", "waiters", "age"] {
        assert_eq!(sorted(&["--sort", column]).len(), 3000, "{column}");
    }
    stand.run(["ls", "--sort", "colour"]).fails(64, &["colour", "waiters"]);
    stand.run(["ls", "--reverse"]).fails(64, &["--sort"]);
}

#[test]
fn age_sorts_the_oldest_first() {
    on_every_store(|stand| {
        let client = stand.client();
        let _first = client.lock("b").lock().wait().unwrap();
        let known = |name: &str| {
            eventually("its start is known", || {
                let locks = stand.listed();
                find(&locks, name)?["since"].as_str().map(str::to_owned)
            })
        };
        known("b");
        let _second = client.lock("a").lock().wait().unwrap();
        known("a");
        let table = stand.run(["ls", "--sort", "age"]).ok();
        let names: Vec<_> = table.lines().map(|line| &line[..1]).collect();
        assert_eq!(names, ["N", "b", "a"], "{table}");
    });
}
