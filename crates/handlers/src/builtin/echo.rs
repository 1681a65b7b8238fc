//! `echo`: returns its params. For trying out a fleet and for benchmarks.

use kafleet_model::json::RawJson;

use crate::{AnswerFuture, Capabilities, Context, Handler, InChild, ParamsError};

/// Returns its params, any JSON, without parsing them.
pub struct Echo;

impl Handler for Echo {
    fn run(&self, params: &RawJson, _cx: Context) -> Result<AnswerFuture, ParamsError> {
        Ok(Box::pin(std::future::ready(Ok(params.clone()))))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { is_silent: true, in_child: InChild::Type("echo"), ..Capabilities::default() }
    }
}
