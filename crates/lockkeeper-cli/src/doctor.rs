//! `doctor`: what endangers locks on this store.

use crate::args::{DoctorArgs, Global};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &DoctorArgs) -> Result<Code, Failure> {
    Err(Failure::internal("doctor: arrives soon"))
}
