//! What a check finds out about a file.

use lockkeeper::{Report, Severity};

use super::*;

fn dangers(report: &Report) -> Vec<(&str, &str)> {
    let bad = report.findings.iter().filter(|finding| finding.severity == Severity::Danger);
    bad.map(|finding| (&finding.subject[..], &finding.detail[..])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_transaction_is_reported_once() {
    let file = LockFile::new();
    let options = ClientOptions::new().response_timeout(ms(1000)).watchdog_timeout(ms(3000));
    let client = connect_with(&file, options).await;
    assert!(dangers(&client.check().await.unwrap()).is_empty());
    let writer = file.look();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let report = client.check().await.unwrap();
    let found = dangers(&report);
    assert_eq!(found.iter().filter(|(subject, _)| *subject == "locks").count(), 1, "{found:?}");
    let (_, detail) = found.iter().find(|(subject, _)| *subject == "locks").unwrap();
    assert!(detail.contains("another process is writing"), "{detail}");
    assert!(report.slowest >= ms(500), "a request that writes took no time: {report:?}");
    assert!(!found.iter().any(|(subject, _)| *subject == "permissions"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_write_ahead_log_is_found() {
    let file = LockFile::new();
    let client = connect(&file).await;
    let log = |report: Report| report.findings.into_iter().find(|found| found.subject == "log");
    assert!(log(client.check().await.unwrap()).is_none());
    let path = format!("{}-wal", file.path().display());
    // What lies behind its end does not count for SQLite, but on the disk.
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(65 << 20).unwrap();
    let found = log(client.check().await.unwrap()).expect("it is found");
    assert_eq!(found.severity, Severity::Note);
    assert!(found.detail.contains("65 MiB"), "{found:?}");
}
