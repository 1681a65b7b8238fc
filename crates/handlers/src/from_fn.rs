//! Handlers from functions and closures.

use std::future::Future;
use std::marker::PhantomData;

use kafleet_model::json::RawJson;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{AnswerFuture, Capabilities, Context, Handler, ParamsError, TaskResult, answer, schema};

/// Adapts a function of params and context to a [`Handler`].
pub(super) struct FromFn<P, F> {
    run: F,
    _params: PhantomData<fn() -> P>,
}

impl<P, F> FromFn<P, F> {
    pub(super) fn new(run: F) -> Self {
        Self { run, _params: PhantomData }
    }
}

impl<P, O, F, A> Handler for FromFn<P, F>
where
    P: DeserializeOwned + JsonSchema + Send + 'static,
    O: Serialize + Send,
    F: Fn(P, Context) -> A + Send + Sync + 'static,
    A: Future<Output = TaskResult<O>> + Send + 'static,
{
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let attempt = (self.run)(schema::read(params.text())?, cx);
        Ok(Box::pin(async move { answer(&attempt.await?) }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { check_params: schema::check_as::<P>(), ..Capabilities::default() }
    }
}
