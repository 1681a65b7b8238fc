//! `echo`: returns its params. For trying out a fleet and for benchmarks.

use crate::handlers::{AnswerFuture, Context, Handler, ParamsError};
use crate::model::json::RawJson;

/// Returns its params, any JSON, without parsing them.
pub struct Echo;

impl Handler for Echo {
    fn start(&self, params: &RawJson, _cx: Context) -> Result<AnswerFuture, ParamsError> {
        Ok(Box::pin(std::future::ready(Ok(params.clone()))))
    }

    fn name_in_child<'a>(&'a self, _: &'a str) -> Option<&'a str> {
        Some("echo")
    }

    fn logs(&self) -> bool {
        false
    }
}
