//! One burst of faults on a real server: the command that soaks for hours works.

use std::path::Path;
use std::time::Duration;

use proof::soak::{Store, run};

#[test]
fn processes_that_are_killed_on_a_server_that_fails_never_overlap() {
    let program = Path::new(env!("CARGO_BIN_EXE_proof"));
    let (row, violations) = run(program, Store::Redis, Duration::from_secs(1)).unwrap();
    assert_eq!(violations, Vec::<String>::new());
    assert!(row["holds"].as_u64() > Some(100), "{row}");
    assert!(row["faults"].as_object().is_some_and(|faults| !faults.is_empty()), "{row}");
}
