//! `inspect`: everything about one lock.

use crate::args::{Global, InspectArgs};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &InspectArgs) -> Result<Code, Failure> {
    Err(Failure::internal("inspect: arrives soon"))
}
