//! Opening the store of a command that looks at it.

use lockkeeper::Client;

use crate::args::Global;
use crate::exit::{self, Failure};
use crate::store::Store;

/// Finds out which store is meant, says so if asked, and opens it.
pub(crate) async fn open(global: &Global) -> Result<(Store, Client), Failure> {
    let store = Store::resolve(global)?;
    if global.verbose > 0 {
        exit::say(format_args!("{} ({})", store.shown(), store.source));
    }
    let client = store.connect().await?;
    Ok((store, client))
}
