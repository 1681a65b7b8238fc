//! Services: values that are made before an attempt and disposed of after it, such as a transaction or a folder for
//! temporary files.
//!
//! ```
//! use std::sync::Arc;
//!
//! use kafleet::handlers::service::{Disposal, Service};
//! use kafleet::handlers::testing::TestRun;
//! use kafleet::handlers::{Context, OrFail, TypeRegistration, TaskResult};
//! use kafleet::model::json::RawJson;
//!
//! /// A folder of the attempt.
//! struct Scratch(std::path::PathBuf);
//!
//! impl Service for Scratch {
//!     async fn make(cx: &Context) -> TaskResult<Self> {
//!         let path = std::env::temp_dir().join(format!("{}-{}-{}", cx.id, cx.run, cx.number));
//!         std::fs::create_dir_all(&path).retry()?;
//!         Ok(Self(path))
//!     }
//!
//!     async fn dispose(self: Arc<Self>, _disposal: Disposal) {
//!         let _ = std::fs::remove_dir_all(&self.0);
//!     }
//! }
//!
//! // In a binary: `kafleet::app().service::<Scratch>().handle_fn("count", count).main()`
//! async fn count(text: String, cx: Context) -> TaskResult<usize> {
//!     let file = cx.service::<Scratch>().0.join("text");
//!     std::fs::write(&file, &text).fail()?;
//!     Ok(std::fs::read(&file).fail()?.len())
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let registered = TypeRegistration::of_fn(count).with_service::<Scratch>();
//! let outcome = TestRun::new().handle("count", &registered, RawJson::of(&"four").unwrap()).await;
//! assert_eq!(outcome.output(), 4);
//! # });
//! ```

use std::any::{Any, TypeId};
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kafleet_model::json::RawJson;
use tokio::runtime::Handle;

use super::{AnswerFuture, Capabilities, Context, Handler, ParamsError, TaskResult};

/// Maximum time of a disposal.
const DISPOSAL_DEADLINE: Duration = Duration::from_secs(30);

/// End of the attempt that a service was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposal {
    /// The handler returned a result.
    Succeeded,
    /// The handler returned a failure.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The attempt was dropped: it did not end within the grace period after a cancellation or a timeout, or its worker
    /// lost the task.
    Dropped,
}

/// Value that is made before each attempt and disposed of after it, however the attempt ends.
pub trait Service: Send + Sync + Sized + 'static {
    /// Makes the value, within the time limits of the attempt. A failure fails the attempt, and its handler does not run.
    fn make(cx: &Context) -> impl Future<Output = TaskResult<Self>> + Send;

    /// Disposes of the value, within 30 s. The attempt ends after it, except for a dropped one. A handler that blocks may
    /// still run when its attempt has been dropped. Nothing is disposed of if the process dies.
    fn dispose(self: Arc<Self>, disposal: Disposal) -> impl Future<Output = ()> + Send {
        let _ = disposal;
        async {}
    }
}

impl Context {
    /// Returns the service of this attempt.
    ///
    /// # Panics
    /// If the type has no such service. The panic fails the attempt.
    pub fn service<S: Service>(&self) -> Arc<S> {
        let service =
            self.services().iter().find(|(id, _)| *id == TypeId::of::<S>()).map(|(_, service)| service.clone());
        match service.and_then(|service| service.downcast().ok()) {
            Some(service) => service,
            None => panic!("the type has no service `{}`: add `.service::<…>()`", std::any::type_name::<S>()),
        }
    }
}

/// Services of an attempt, by Rust type.
pub(super) type Services = Vec<(TypeId, Arc<dyn Any + Send + Sync>)>;

/// Handler whose attempts have a service.
pub(super) struct WithService<S> {
    inner: Arc<dyn Handler>,
    _service: PhantomData<fn() -> S>,
}

impl<S: Service> WithService<S> {
    pub(super) fn new(inner: Arc<dyn Handler>) -> Self {
        Self { inner, _service: PhantomData }
    }
}

impl<S: Service> Handler for WithService<S> {
    fn run(&self, params: &RawJson, cx: Context) -> Result<AnswerFuture, ParamsError> {
        let attempt = self.inner.run(params, cx.clone())?;
        Ok(Box::pin(async move {
            let service = Arc::new(S::make(&cx).await?);
            cx.services().push((TypeId::of::<S>(), service.clone()));
            let mut made = ServiceInstance(Some(service));
            let ended = AssertUnwindSafe(attempt).catch_unwind().await;
            let disposal = match &ended {
                Ok(Ok(_)) => Disposal::Succeeded,
                Ok(Err(_)) => Disposal::Failed,
                Err(_) => Disposal::Panicked,
            };
            cx.services().retain(|(id, _)| *id != TypeId::of::<S>());
            made.dispose(disposal).await;
            ended.unwrap_or_else(|panic| resume_unwind(panic))
        }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { takes_batches: false, ..self.inner.capabilities() }
    }

    fn prepare(&self) -> Result<(), String> {
        self.inner.prepare()
    }
}

/// Service that has not been disposed of yet.
struct ServiceInstance<S: Service>(Option<Arc<S>>);

impl<S: Service> ServiceInstance<S> {
    /// Disposes of the service in a task of its own, which outlives an attempt that is dropped meanwhile.
    async fn dispose(&mut self, disposal: Disposal) {
        if let Some(service) = self.0.take() {
            // Fails only if the runtime ends.
            let _ = Handle::current().spawn(disposed(service, disposal)).await;
        }
    }
}

impl<S: Service> Drop for ServiceInstance<S> {
    fn drop(&mut self) {
        if let Some(service) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(disposed(service, Disposal::Dropped));
        }
    }
}

async fn disposed<S: Service>(service: Arc<S>, disposal: Disposal) {
    let name = std::any::type_name::<S>();
    let done = AssertUnwindSafe(service.dispose(disposal)).catch_unwind();
    match tokio::time::timeout(DISPOSAL_DEADLINE, done).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => tracing::error!(service = name, ?disposal, "the disposal of a service panicked"),
        Err(_) => {
            let limit_s = DISPOSAL_DEADLINE.as_secs();
            tracing::error!(service = name, ?disposal, limit_s, "a service was not disposed of in time");
        }
    }
}
