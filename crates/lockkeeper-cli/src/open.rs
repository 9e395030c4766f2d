//! Opening the store of a command that looks at it.

use lockkeeper::Client;

use crate::args::Global;
use crate::exit::{self, Failure};
use crate::store::Store;

/// Finds out which store is meant, and says so if asked.
pub(crate) fn choose(global: &Global) -> Result<Store, Failure> {
    let store = Store::resolve(global)?;
    if global.verbose > 0 {
        exit::say(format_args!("store {} ({})", store.shown(), store.source));
    }
    Ok(store)
}

/// The same, and opens it to look.
pub(crate) async fn open(global: &Global) -> Result<Client, Failure> {
    choose(global)?.connect_to_look().await
}
