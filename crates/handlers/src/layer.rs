//! Layers: tower middleware around the attempts of Rust task types. A layer can change the params, answer by itself, and see
//! or change the answer.
//!
//! ```
//! use std::time::Duration;
//!
//! use kafleet::handlers::layer::AttemptRequest;
//! use kafleet::handlers::testing::TestRun;
//! use kafleet::handlers::{Context, TypeRegistration};
//! use kafleet::model::json::RawJson;
//! use tower::timeout::TimeoutLayer;
//! use tower::util::MapRequestLayer;
//!
//! /// Writes the beginning of each attempt to the task's log.
//! fn log_start(request: AttemptRequest) -> AttemptRequest {
//!     request.cx.log(format!("attempt {} of {}", request.cx.number, request.cx.id));
//!     request
//! }
//!
//! async fn never(_: (), _: Context) -> Result<(), kafleet::handlers::Failure> {
//!     std::future::pending().await
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! // In a binary:
//! // kafleet::app().handle_fn("never", never)
//! //     .layer(MapRequestLayer::new(log_start))
//! //     .layer(TimeoutLayer::new(Duration::from_millis(20)))
//! //     .main()
//! let registered = TypeRegistration::of_fn(never)
//!     .with_layer(&TimeoutLayer::new(Duration::from_millis(20)))
//!     .with_layer(&MapRequestLayer::new(log_start));
//! let outcome = TestRun::new().handle("never", &registered, RawJson::null()).await;
//! assert_eq!(outcome.failure().kind, "timeout");
//! assert_eq!(outcome.log(), ["attempt 1 of test"]);
//! # });
//! ```
//!
//! A layer is composed once for each type, and every attempt calls a clone of the service. A layer with state that all
//! attempts share therefore keeps it behind an `Arc`, as tower's `ConcurrencyLimit` does; `RateLimit` is not `Clone`, and the
//! policy has `rate` instead. `poll_ready` and `call` run within the attempt: a layer that waits holds a slot, and its time
//! counts for `timeout`. A panic in it is a panic of the attempt. With `isolation = "process"` layers run in the child
//! process.

use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::task::{Context as PollContext, Poll};

use futures::FutureExt;
use kafleet_model::json::RawJson;
use kafleet_runtime::error_text::messages;
use parking_lot::Mutex;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;

pub use http::Extensions;
pub use tower::{BoxError, Layer, Service};

use super::failure::{OVERLOADED, TIMEOUT};
use super::{Answer, AnswerFuture, Capabilities, Context, Failure, Handler, ParamsError, Schema};

/// Attempt as layers see it.
pub struct AttemptRequest {
    /// Params of the task. The handler gets those that the innermost layer passes on, after a check against the schema of the
    /// type.
    pub params: RawJson,
    /// Context of the attempt.
    pub cx: Context,
    /// Values that layers pass to layers further inside.
    pub extensions: Extensions,
}

/// Innermost service, which layers enclose: checks the params against the schema and runs the handler.
#[derive(Clone)]
pub struct AttemptService {
    handler: Arc<dyn Handler>,
    /// `None` if the handler has layers of its own, which may change the params.
    schema: Option<Schema>,
}

impl Service<AttemptRequest> for AttemptService {
    type Response = RawJson;
    type Error = Failure;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, _: &mut PollContext<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: AttemptRequest) -> AnswerFuture {
        let error = self.schema.as_ref().and_then(|schema| schema.validate(&request.params));
        let started = error.map_or_else(|| self.handler.run(&request.params, request.cx), Err);
        started.unwrap_or_else(|error| Box::pin(ready(Err(Failure::of_params(&error)))))
    }
}

/// Creates the answer of one attempt.
type AttemptCall = dyn Fn(AttemptRequest) -> AnswerFuture + Send + Sync;

/// Handler whose attempts pass through a layer.
pub(super) struct LayeredHandler {
    inner: Arc<dyn Handler>,
    call: Box<AttemptCall>,
}

impl LayeredHandler {
    pub(super) fn new<L>(layer: &L, inner: Arc<dyn Handler>, schema: &Schema) -> Self
    where
        L: Layer<AttemptService>,
        L::Service: Service<AttemptRequest, Response = RawJson, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + 'static,
    {
        let schema = (!inner.capabilities().checks_schema).then(|| schema.clone());
        let service = layer.layer(AttemptService { handler: inner.clone(), schema });
        // A lock makes a service usable by all threads that is not `Sync`; it is held for a clone only.
        let service = Mutex::new(service);
        Self { inner, call: Box::new(move |request| answer_of(service.lock().clone(), request).boxed()) }
    }
}

async fn answer_of<S>(mut service: S, request: AttemptRequest) -> Answer
where
    S: Service<AttemptRequest, Response = RawJson, Error: Into<BoxError>>,
{
    poll_fn(|context| service.poll_ready(context)).await.map_err(failure_of)?;
    service.call(request).await.map_err(failure_of)
}

/// Converts the error of a layer. Errors of tower's own layers have the kinds of the same errors of handlers; an unknown
/// error is retried.
fn failure_of(error: impl Into<BoxError>) -> Failure {
    let error = match error.into().downcast::<Failure>() {
        Ok(failure) => return *failure,
        Err(error) => error,
    };
    let failure = Failure::retry(messages(&*error));
    match () {
        () if error.is::<Elapsed>() => failure.of_kind(TIMEOUT),
        () if error.is::<Overloaded>() => failure.of_kind(OVERLOADED),
        () => failure,
    }
}

impl Handler for LayeredHandler {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        Ok((self.call)(AttemptRequest { params: params.clone(), cx, extensions: Extensions::new() }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { checks_schema: true, takes_batches: false, ..self.inner.capabilities() }
    }

    fn prepare(&self) -> Result<(), String> {
        self.inner.prepare()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use serde_json::{Value, json};
    use tower::ServiceExt;
    use tower::layer::layer_fn;
    use tower::load_shed::LoadShedLayer;
    use tower::timeout::TimeoutLayer;
    use tower::util::{BoxCloneService, MapRequestLayer, MapResponseLayer};

    use super::*;
    use crate::testing::{Outcome, TestRun};
    use crate::{Fail, TypeRegistration};

    fn raw(value: &Value) -> RawJson {
        RawJson::of(value).unwrap()
    }

    /// Type that returns its param, a number.
    fn number() -> TypeRegistration {
        TypeRegistration::of_fn(|n: u32, _cx: Context| async move { Ok(n) })
    }

    async fn run(registered: &TypeRegistration, params: Value) -> Outcome {
        TestRun::new().handle("number", registered, raw(&params)).await
    }

    /// Layer that changes a number on its way in, and its answer on the way out, by appending a digit.
    fn append(digit: u32) -> impl Layer<AttemptService, Service = BoxCloneService<AttemptRequest, RawJson, Failure>> {
        let add = move |raw_number: RawJson| {
            let number = raw_number.value().unwrap().as_u64().unwrap();
            raw(&json!(number * 10 + u64::from(digit)))
        };
        layer_fn(move |inner: AttemptService| {
            let changed = inner.map_request(move |mut request: AttemptRequest| {
                request.params = add(request.params);
                request
            });
            changed.map_response(add).boxed_clone()
        })
    }

    #[tokio::test]
    async fn outermost_layer_is_first_on_the_way_in_and_last_on_the_way_out() {
        let registered = number().with_layer(&append(2)).with_layer(&append(1));
        assert_eq!(run(&registered, json!(0)).await.output(), 1221);
    }

    #[tokio::test]
    async fn params_are_checked_after_the_layers() {
        let to_number = MapRequestLayer::new(|mut request: AttemptRequest| {
            request.params = raw(&json!(request.params.text().trim_matches('"').parse::<i64>().unwrap_or(-1)));
            request
        });
        let registered = number().with_layer(&to_number);
        assert_eq!(run(&registered, json!("7")).await.output(), 7);
        // Also if the layer is not the only one.
        let outcome =
            run(&registered.with_layer(&MapRequestLayer::new(|request: AttemptRequest| request)), json!("seven")).await;
        assert_eq!((&*outcome.failure().kind, outcome.failure().then), ("schema", Fail::Dead), "{}", outcome.failure());
    }

    #[tokio::test]
    async fn errors_of_layers_have_kinds() {
        /// Service that is never ready.
        #[derive(Clone)]
        struct BusyService;

        impl Service<AttemptRequest> for BusyService {
            type Response = RawJson;
            type Error = Infallible;
            type Future = std::future::Pending<Result<RawJson, Infallible>>;

            fn poll_ready(&mut self, _: &mut PollContext<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Pending
            }

            fn call(&mut self, _: AttemptRequest) -> Self::Future {
                std::future::pending()
            }
        }

        let slow = TypeRegistration::of_fn(|(): (), _cx: Context| std::future::pending::<Result<(), Failure>>());
        let elapsed = slow.with_layer(&TimeoutLayer::new(Duration::from_millis(1)));
        let shed = number().with_layer(&layer_fn(|_: AttemptService| LoadShedLayer::new().layer(BusyService)));
        let refusing = number().with_layer(&layer_fn(|inner: AttemptService| {
            inner.and_then(|_| ready(Err::<RawJson, _>(Failure::dead("no").of_kind("refused"))))
        }));
        let other = number().with_layer(&layer_fn(|inner: AttemptService| {
            inner.map_err(BoxError::from).and_then(|_| ready(Err::<RawJson, BoxError>("line\nbreak".into())))
        }));
        let retry = Fail::Retry { after: None };
        for (registered, params, kind, then) in [
            (elapsed, json!(null), "timeout", retry),
            (shed, json!(1), "overloaded", retry),
            (refusing, json!(1), "refused", Fail::Dead),
            (other, json!(1), "error", retry),
        ] {
            let outcome = run(&registered, params).await;
            assert_eq!((&*outcome.failure().kind, outcome.failure().then), (kind, then), "{:?}", outcome.failure());
        }
    }

    #[tokio::test]
    async fn failure_of_the_handler_passes_through_boxed_errors_unchanged() {
        let failure = Failure::retry_after("later", Duration::from_secs(7)).of_kind("busy");
        let expected = failure.clone();
        let registered = TypeRegistration::of_fn(move |(): (), _cx: Context| ready(Err::<(), _>(failure.clone())));
        let layered = registered.with_layer(&TimeoutLayer::new(Duration::from_secs(60)));
        assert_eq!(*run(&layered, json!(null)).await.failure(), expected);
    }

    #[tokio::test]
    async fn layer_answers_without_the_handler() {
        let cached = layer_fn(|_: AttemptService| {
            tower::service_fn(|request: AttemptRequest| async move { Ok::<_, Infallible>(request.params) })
        });
        let registered = TypeRegistration::of_fn(|_: Value, _cx: Context| async { Err::<(), _>(Failure::fail("ran")) });
        let registered = registered.with_layer(&cached).with_layer(&MapResponseLayer::new(|answer: RawJson| answer));
        assert_eq!(run(&registered, json!("kept")).await.output(), "kept");
    }
}
