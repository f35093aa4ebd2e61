//! x
use crate::servers::Home;
use crate::{Options, Outcome};
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {}
pub(crate) fn run(_options: &Options, _arguments: &Arguments, _home: &Home) -> Outcome<()> {
    Ok(())
}
