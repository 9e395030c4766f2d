//! `run`: a command under a lock.

use crate::args::{Global, RunArgs};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &RunArgs) -> Result<Code, Failure> {
    Err(Failure::internal("run: arrives soon"))
}
