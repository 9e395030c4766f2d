//! The database example of the manual. Here and not beside the other examples of the manual, so that
//! whoever runs an example of the library need not build a database first.

use lockkeeper::Client;

const FENCING: &str = include_str!("../../lockkeeper/src/manual/fencing.md");

/// The statements of the page.
fn statements() -> (&'static str, &'static str) {
    let block = FENCING.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next());
    block.and_then(|block| block.split_once(";\n")).expect("the page shows two statements")
}

#[tokio::test]
async fn the_statement_of_the_manual_refuses_an_older_token() {
    let lock = Client::memory().fenced_lock("account");
    let token = async || {
        let guard = lock.lock().await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        i64::try_from(token).expect("it fits into a signed column")
    };
    let (old, new) = (token().await, token().await);
    let (create, update) = statements();
    let database = rusqlite::Connection::open_in_memory().unwrap();
    database.execute(create, ()).unwrap();
    database.execute("INSERT INTO account (id, balance) VALUES (1, 100)", ()).unwrap();
    let update = |token: i64, balance: i64| {
        let given = rusqlite::named_params! {"$1": token, "$2": balance, "$3": 1};
        database.execute(update.trim().trim_end_matches(';'), given).unwrap()
    };
    assert_eq!(update(old, 90), 1);
    assert_eq!(update(new, 80), 1);
    assert_eq!(update(new, 70), 1, "the same holder may come again");
    assert_eq!(update(old, 60), 0);
    let balance = database.query_row("SELECT balance FROM account", (), |row| row.get::<_, i64>(0));
    assert_eq!(balance.unwrap(), 70);
}
