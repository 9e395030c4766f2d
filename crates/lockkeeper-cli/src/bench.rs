//! `bench`: quick figures on one's own store.

use crate::args::{BenchArgs, Global};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &BenchArgs) -> Result<Code, Failure> {
    Err(Failure::internal("bench: arrives soon"))
}
