//! `ls`: the locks of a store.

use crate::args::{Global, LsArgs};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &LsArgs) -> Result<Code, Failure> {
    Err(Failure::internal("ls: arrives soon"))
}
