//! Opening the store for subcommands that inspect it.

use lockkeeper::Client;

use crate::args::Global;
use crate::exit::{self, Failure};
use crate::store::Store;

/// Chooses the store; `-v` prints which.
pub(crate) fn choose(global: &Global) -> Result<Store, Failure> {
    let store = Store::resolve(global)?;
    if global.verbose > 0 {
        exit::say(format_args!("store {} ({})", store.shown(), store.source));
    }
    Ok(store)
}

/// Chooses the store and opens it for reading.
pub(crate) async fn open(global: &Global) -> Result<Client, Failure> {
    choose(global)?.connect_to_look().await
}
