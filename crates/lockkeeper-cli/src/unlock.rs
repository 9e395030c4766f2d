//! `unlock`: takes a lock away from its holder.

use crate::args::{Global, UnlockArgs};
use crate::exit::{Code, Failure};

pub(crate) async fn run(_global: &Global, _args: &UnlockArgs) -> Result<Code, Failure> {
    Err(Failure::internal("unlock: arrives soon"))
}
