//! Many processes want one lock, and are killed at random moments.
//!
//! Each writes down when it asked, when it was granted, and until when it believed to hold the lock, all by
//! the one clock that the processes of a machine share. What they wrote is checked afterwards.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkeeper::Client;
use rustix::time::{ClockId, clock_gettime};
use testkit::{ChildProcess, Stopwatch};

use super::*;

const WORKERS: usize = 5;

const LEASE: Duration = Duration::from_millis(400);

/// How long they are killed.
const MASSACRE: Duration = Duration::from_secs(6);

const PERMITS: u64 = 3;

/// Nanoseconds since the machine was started.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A diary that many processes write: one line at a time, whole lines only.
fn diary(path: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(path).expect("there is a diary")
}

/// A process of the test below.
pub(crate) fn worker() {
    let (url, path) = given();
    let mut diary = diary(Path::new(&path));
    let mut say = move |line: String| diary.write_all(line.as_bytes()).expect("it is written");
    block_on(async move {
        let client = Client::connect(&url).await.expect("the file can be opened");
        let (lock, semaphore) = (client.fenced_lock("lock"), client.permit_semaphore("permits"));
        println!("working");
        for turn in 0_u64.. {
            let (me, asked) = (std::process::id(), now());
            let guard = lock.lease(LEASE).lock().await.expect("the lock can be had");
            let (token, granted) = (guard.token(), now());
            // A process that stood still for a lease has lost it, and another may have been granted it since.
            if guard.is_lost() {
                continue;
            }
            say(format!("granted {me} {turn} {asked} {granted} {token}\n"));
            let permit = semaphore.lease(LEASE).try_acquire(1).await.expect("it can be asked");
            let until = now();
            if !guard.is_lost() {
                say(format!("held {me} {turn} {until}\n"));
            }
            let _ = guard.release().await;
            if let Some(permit) = permit {
                let _ = permit.release().await;
            }
        }
    });
}

/// One line of the diary that says `granted`, and what was said of it later.
#[derive(Clone, Copy, Debug)]
struct Grant {
    asked: u64,
    granted: u64,
    token: u64,
    /// Until when the holder believed in it; none if its process died or it was reported lost.
    until: Option<u64>,
}

fn read(diary: &str) -> Vec<Grant> {
    let mut grants: HashMap<(u64, u64), Grant> = HashMap::new();
    for line in diary.lines() {
        let (word, numbers) = line.split_once(' ').expect("a line has a word and numbers");
        let numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().expect("a number")).collect();
        let key = (numbers[0], numbers[1]);
        if word == "granted" {
            let [_, _, asked, granted, token] = numbers[..] else { panic!("{line}") };
            grants.insert(key, Grant { asked, granted, token, until: None });
        } else {
            grants.get_mut(&key).expect("it was granted before").until = Some(numbers[2]);
        }
    }
    let mut grants: Vec<_> = grants.into_values().collect();
    grants.sort_by_key(|grant| grant.granted);
    grants
}

/// What is wrong with it.
fn violations(grants: &[Grant]) -> Vec<String> {
    let mut wrong = Vec::new();
    for pair in grants.windows(2) {
        let [first, next] = pair else { continue };
        // Of one that died in between, the store keeps the lock for as long as was asked for.
        let free = first.until.unwrap_or(first.asked + LEASE.as_nanos() as u64);
        if next.granted < free {
            wrong.push(format!("{next:?} overlaps {first:?}"));
        }
        if next.token <= first.token {
            wrong.push(format!("the token of {next:?} after {first:?}"));
        }
    }
    wrong
}

fn start(file: &LockFile, diary: &Path) -> ChildProcess {
    let worker = child("crashes::worker", &file.url(), &diary.display().to_string());
    worker.expect_line("working");
    worker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_killed_at_any_moment_leave_a_consistent_store() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let file = LockFile::new();
    let diary: PathBuf = file.folder().join("diary");
    let client = connect(&file).await;
    let semaphore = client.permit_semaphore("permits");
    semaphore.try_set_permits(PERMITS, None).await.unwrap();

    let mut workers: Vec<_> = (0..WORKERS).map(|_| start(&file, &diary)).collect();
    let (begin, watch, mut killed) = (Instant::now(), Stopwatch::start(), 0);
    let granted = || fs::read_to_string(&diary).map_or(0, |text| text.matches("granted").count());
    // Longer on a machine that is so slow that too little has happened to prove anything.
    let enough = |killed: u32| killed >= 20 && granted() >= 100;
    while begin.elapsed() < MASSACRE || (begin.elapsed() < MASSACRE * 10 && !enough(killed)) {
        tokio::time::sleep(ms(random.u64(5..100))).await;
        let victim = workers.swap_remove(random.usize(..WORKERS));
        victim.kill();
        killed += 1;
        workers.push(start(&file, &diary));
    }
    drop(workers);

    let lock = client.fenced_lock("lock");
    let free = within(PATIENCE, "it is free when the last lease has ended", lock.lock());
    free.await.unwrap().release().await.unwrap();
    eventually("all permits are back", async || {
        semaphore.available().await.unwrap() == PERMITS as i64
    })
    .await;
    let sound: String =
        file.look().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");

    let grants = read(&fs::read_to_string(&diary).unwrap());
    let died = grants.iter().filter(|grant| grant.until.is_none()).count();
    println!("{killed} killed, {died} of them with the lock; {} grants", grants.len());
    assert!(killed >= 20 && grants.len() >= 100, "too little has happened to prove anything");
    let wrong = violations(&grants);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A wake-up that died with its process costs one re-check, never more.
    let gaps = grants.windows(2).map(|pair| pair[1].granted - pair[0].granted);
    let longest = Duration::from_nanos(gaps.max().unwrap_or(0));
    let limit = lockkeeper::RECHECK + LEASE + SOON + watch.stood_still();
    assert!(longest < limit, "it was free for {longest:?}");
}

#[test]
fn the_diary_shows_what_is_wrong() {
    let line =
        |n: u64, asked: u64, at: u64, token: u64| format!("granted 1 {n} {asked} {at} {token}\n");
    let check = |text: String| violations(&read(&text)).len();
    let right = line(0, 5, 10, 1) + "held 1 0 20\n" + &line(1, 5, 21, 2) + "held 1 1 30\n";
    assert_eq!(check(right), 0);
    let overlap = line(0, 5, 10, 1) + "held 1 0 20\n" + &line(1, 5, 19, 2);
    assert_eq!(check(overlap), 1);
    let token = line(0, 5, 10, 2) + "held 1 0 20\n" + &line(1, 5, 21, 2);
    assert_eq!(check(token), 1);
    let lease = LEASE.as_nanos() as u64;
    let dead = |at: u64| check(line(0, 5, 10, 1) + &line(1, 5, at, 2));
    assert_eq!((dead(4 + lease), dead(5 + lease)), (1, 0));
}
