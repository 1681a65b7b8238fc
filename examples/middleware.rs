//! Application with hooks and layers: each task belongs to a tenant, slow attempts are logged, and failures are counted.
//!
//! ```sh
//! cargo run --example middleware -- dev
//! cargo run --example middleware -- submit greet '{"name": "Ada"}'
//! cargo run --example middleware -- submit greet '{"name": "Ada", "tenant": "closed"}'   # refused
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as PollContext, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use kafleet::handlers::hooks::{Observe, Submission};
use kafleet::handlers::layer::{AttemptRequest, Layer, Service};
use kafleet::handlers::{Context, Failure, Task, TaskResult};
use kafleet::model::json::RawJson;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Duration above which an attempt is logged.
const SLOW: Duration = Duration::from_millis(100);

/// Greets a person, in the name of the tenant.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Greet {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
}

impl Task for Greet {
    const TYPE: &'static str = "greet";
    const KEEP_HEADERS: &'static [&'static str] = &["x-tenant"];
    type Output = String;

    async fn run(self, cx: Context) -> TaskResult<String> {
        // A producer of its own may name the tenant in a header of the record.
        let tenant = self.tenant.as_deref().or(cx.header("x-tenant")).unwrap_or("nobody");
        Ok(format!("Hello {} from {tenant}", self.name))
    }
}

/// Hook: names the tenant of tasks that have none, and refuses those of a closed one.
fn add_tenant(task: &mut Submission) -> Result<(), String> {
    let tenant = task.params.slice().member("tenant").and_then(|tenant| Some(tenant.string()?.into_owned()));
    match tenant.as_deref() {
        Some("closed") => Err("the tenant `closed` has no account".into()),
        Some(_) => Ok(()),
        None if task.params.set("tenant", json!("acme")) => Ok(()),
        None => Err("the params are no object".into()),
    }
}

/// Observer: counts failed tasks.
#[derive(Default)]
struct FailureCount(AtomicU64);

impl Observe for FailureCount {
    fn on_failure(&self, cx: &Context, failure: &Failure, took: Duration) {
        let failed = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!("{} failed after {took:?}: {failure} ({failed} so far)", cx.id);
    }
}

/// Layer: writes to the log of a task how long a slow attempt took.
#[derive(Clone)]
struct LogSlow;

impl<S> Layer<S> for LogSlow {
    type Service = TimedService<S>;

    fn layer(&self, inner: S) -> TimedService<S> {
        TimedService { inner }
    }
}

#[derive(Clone)]
struct TimedService<S> {
    inner: S,
}

impl<S> Service<AttemptRequest> for TimedService<S>
where
    S: Service<AttemptRequest, Response = RawJson, Future: Send + 'static>,
{
    type Response = RawJson;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<RawJson, S::Error>>;

    fn poll_ready(&mut self, context: &mut PollContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: AttemptRequest) -> Self::Future {
        let (cx, start) = (request.cx.clone(), Instant::now());
        let attempt = self.inner.call(request);
        Box::pin(async move {
            let answer = attempt.await;
            if start.elapsed() > SLOW {
                cx.log(format!("slow: {:?}", start.elapsed()));
            }
            answer
        })
    }
}

fn main() -> ExitCode {
    let failures = Arc::new(FailureCount::default());
    kafleet::app().task::<Greet>().prepare(add_tenant).observe(failures).layer(LogSlow).main()
}

#[cfg(test)]
mod tests {
    use kafleet::handlers::testing::TestRun;
    use kafleet::handlers::{Child, TypeRegistration};

    use super::*;

    fn greet(tenant: Option<&str>) -> Greet {
        Greet { name: "Ada".into(), tenant: tenant.map(str::to_owned) }
    }

    #[tokio::test]
    async fn header_names_the_tenant_of_params_without_one() {
        let run = TestRun::new().header("X-Tenant", "initech");
        assert_eq!(run.run(greet(None)).await.output(), "Hello Ada from initech");
        assert_eq!(run.run(greet(Some("acme"))).await.output(), "Hello Ada from acme");
    }

    #[tokio::test]
    async fn hook_names_the_tenant_of_children() {
        let parent = TypeRegistration::of_fn(|tenant: Option<String>, cx: Context| async move {
            cx.spawn_child(Child::of(&greet(tenant.as_deref())));
            Ok(())
        });
        let run = async |tenant: &str| {
            let params = RawJson::parse(tenant.as_bytes()).unwrap();
            TestRun::new().prepare(add_tenant).handle("parent", &parent, params).await
        };
        assert_eq!(run("null").await.children[0].params, json!({"name": "Ada", "tenant": "acme"}));
        let refused = run(r#""closed""#).await;
        assert_eq!(refused.failure().kind, "bad_child");
        assert!(refused.failure().message.contains("the tenant `closed` has no account"), "{}", refused.failure());
    }

    #[tokio::test]
    async fn slow_attempt_is_logged() {
        let slow = TypeRegistration::of_fn(|wait_ms: u64, _cx: Context| async move {
            // The work of the attempt.
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            Ok(())
        });
        let slow = slow.with_layer(&LogSlow);
        let run = async |wait_ms: u64| TestRun::new().handle("slow", &slow, RawJson::of(&wait_ms).unwrap()).await;
        assert_eq!(run(0).await.log().len(), 0);
        assert_eq!(run(150).await.log().len(), 1);
    }
}
