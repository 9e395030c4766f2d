//! `demo`: a minute's tour.

use crate::args::{DemoArgs, Global};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &DemoArgs) -> Result<Code, Failure> {
    Err(Failure::internal("demo: arrives soon"))
}
