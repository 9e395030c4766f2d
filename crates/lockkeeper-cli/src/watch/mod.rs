//! `watch`: a live view.

use crate::args::{Global, WatchArgs};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &WatchArgs) -> Result<Code, Failure> {
    Err(Failure::internal("watch: arrives soon"))
}
