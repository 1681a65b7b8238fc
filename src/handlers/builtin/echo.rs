//! `echo`: answers its params. For trying out a fleet and for measuring it.

use crate::handlers::{AnswerFuture, Context, Handler, ParamsError};
use crate::model::json::RawJson;

/// Answers its params, whatever JSON they are, without reading them.
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
