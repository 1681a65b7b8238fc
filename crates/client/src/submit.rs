//! Submission of single tasks, their handles, and their results.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kafleet_model::json::RawJson;
use kafleet_model::unique::AskVerdict;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::follow::ReconnectingStream;
use super::request::ANSWER_TIMEOUT;
use super::task::options;
use super::{
    CancelOutcome, CancelTask, Client, Error, IntoTask, Method, NewTask, RetryOutcome, RetryTask, StartOutcome,
    StartTask, State, Status,
};

/// Maximum wait requested from the API in one request.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Additional time for the response after the end of a wait.
const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// Default of [`Run::wait`].
const DEFAULT_WAIT: Duration = Duration::from_secs(300);
/// Maximum wait, so that the sum with the present time does not overflow.
const MAX_WAIT: Duration = Duration::from_secs(50 * 365 * 86_400);

type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Client {
    /// Submits a task. Nothing is sent before the returned value is awaited; options of the task can be set on it.
    pub fn submit<T: IntoTask>(&self, task: T) -> Submit<T::Output> {
        Submit { client: self.clone(), task: task.into_task() }
    }

    /// Submits a task and waits for its result, by default for 5 minutes.
    ///
    /// ```no_run
    /// # async fn example(client: kafleet_client::Client) -> Result<(), kafleet_client::Error> {
    /// use kafleet_client::NewTask;
    /// let sum: i64 = client.run(NewTask::of("add", &[1, 2])).wait(std::time::Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<T: IntoTask>(&self, task: T) -> Run<T::Output> {
        Run { submit: self.submit(task), wait: DEFAULT_WAIT }
    }

    /// Creates a task and waits for its end up to `wait`, at most [`LONGEST_WAIT`]. Repeated until `deadline` if the task
    /// has an id.
    #[doc(hidden)]
    pub async fn create(
        &self,
        task: &super::CreateTask,
        wait: Duration,
        deadline: Option<Instant>,
    ) -> Result<Status, Error> {
        let wait = wait.min(LONGEST_WAIT);
        let mut request = self.request(Method::POST, &["v1", "tasks"]).json(task).timeout(ANSWER_TIMEOUT + wait);
        if !wait.is_zero() {
            request = request.query(&[("wait", format!("{}ms", wait.as_millis()))]);
        }
        if task.id.is_some() {
            request = request.repeatable();
        }
        deadline.into_iter().fold(request, super::Request::repeat_until).receive().await
    }
}

/// Submission of a task, sent when awaited.
#[must_use = "a task is submitted when this is awaited"]
pub struct Submit<O> {
    client: Client,
    task: NewTask<O>,
}

impl<O> Submit<O> {
    options!();

    fn document_mut(&mut self) -> &mut super::CreateTask {
        self.task.document_mut()
    }

    async fn send(&self) -> Result<Handle<O>, Error> {
        let status = self.client.create(self.task.valid()?, Duration::ZERO, None).await?;
        let verdict = status.verdict;
        Ok(Handle::new(self.client.clone(), status.id, Some(status.position)).with_verdict(verdict))
    }
}

impl<O: 'static> IntoFuture for Submit<O> {
    type Output = Result<Handle<O>, Error>;
    type IntoFuture = BoxedFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.send().await })
    }
}

/// Submission of a task with the wait for its result; both happen when it is awaited.
#[must_use = "a task is submitted when this is awaited"]
pub struct Run<O> {
    submit: Submit<O>,
    wait: Duration,
}

impl<O> Run<O> {
    options!();

    /// Sets the time after which the wait ends with [`Error::Deadline`]; the task continues. Default: 5 minutes.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    fn document_mut(&mut self) -> &mut super::CreateTask {
        self.submit.document_mut()
    }

    async fn ended(&self) -> Result<Status, Error> {
        let deadline = deadline(self.wait);
        let Submit { client, task } = &self.submit;
        let created = client.create(task.valid()?, self.wait, Some(deadline));
        let late = Error::Deadline { id: task.task_id(), status: None };
        let status = tokio::time::timeout_at(deadline + ANSWER_GRACE, created).await.map_err(|_| late)??;
        client.ended(Box::new(status), deadline).await
    }
}

impl<O: DeserializeOwned + 'static> IntoFuture for Run<O> {
    type Output = Result<O, Error>;
    type IntoFuture = BoxedFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { output(self.ended().await?) })
    }
}

/// Submitted task. `O` is the type of its result.
pub struct Handle<O = RawJson> {
    client: Client,
    id: String,
    position: Option<String>,
    verdict: Option<AskVerdict>,
    output: PhantomData<fn() -> O>,
}

impl<O> Handle<O> {
    pub(super) fn new(client: Client, id: String, position: Option<String>) -> Self {
        Self { client, id, position, verdict: None, output: PhantomData }
    }

    pub(super) fn with_verdict(self, verdict: Option<AskVerdict>) -> Self {
        Self { verdict, ..self }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the id of the task.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the position of the task's `submitted` event (`partition:offset`), if this client has submitted it: a read
    /// with `after` this position includes the task.
    pub fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// Returns the verdict about the submission of a unique task: with [`AskVerdict::Joined`] another task stands for it, whose
    /// id this handle has. `None` for any other task.
    pub fn verdict(&self) -> Option<AskVerdict> {
        self.verdict
    }

    /// Reads the status. It is at least as new as the submission.
    ///
    /// # Errors
    /// The API is unavailable, or the task is unknown.
    pub async fn status(&self) -> Result<Status, Error> {
        let request = self.client.request(Method::GET, &["v1", "tasks", &self.id]);
        let after = self.position.iter().map(|position| ("after", position.clone()));
        request.query(&after.collect::<Vec<_>>()).receive().await
    }

    /// Waits for the end of the task and returns its status; unlike [`Handle::result`] also of a failed task.
    ///
    /// # Errors
    /// The API is unavailable, or the task has not ended within `wait` ([`Error::Deadline`]).
    pub async fn ended(&self, wait: Duration) -> Result<Status, Error> {
        let deadline = deadline(wait);
        let late = Error::Deadline { id: self.id.clone(), status: None };
        let status = tokio::time::timeout_at(deadline, self.status()).await.map_err(|_| late)??;
        self.client.ended(Box::new(status), deadline).await
    }

    /// Cancels the task and its descendants.
    ///
    /// # Errors
    /// The API is unavailable, or the task is unknown.
    pub async fn cancel(&self) -> Result<CancelOutcome, Error> {
        self.client.cancel(&self.id, &CancelTask::default()).await
    }

    /// Starts a new run of the ended task.
    ///
    /// # Errors
    /// The API is unavailable, the task is unknown, or it has not ended.
    pub async fn retry(&self) -> Result<RetryOutcome, Error> {
        self.client.retry(&self.id, &RetryTask::default()).await
    }

    /// Starts the task now, if it waits for its start or its next attempt.
    ///
    /// # Errors
    /// The API is unavailable, the task is unknown, or it waits for no time.
    pub async fn start_now(&self) -> Result<StartOutcome, Error> {
        let path = ["v1", "tasks", &self.id, "start"];
        self.client.request(Method::POST, &path).json(&StartTask::default()).receive().await
    }
}

impl<O: DeserializeOwned> Handle<O> {
    /// Waits for the end of the task and returns its result.
    ///
    /// # Errors
    /// The API is unavailable, the task has not ended within `wait` ([`Error::Deadline`]), or it has ended without success
    /// ([`Error::Task`]).
    pub async fn result(&self, wait: Duration) -> Result<O, Error> {
        output(self.ended(wait).await?)
    }
}

impl<O> Clone for Handle<O> {
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), self.id.clone(), self.position.clone()).with_verdict(self.verdict)
    }
}

impl<O> std::fmt::Debug for Handle<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).field("position", &self.position).finish_non_exhaustive()
    }
}

impl Client {
    async fn ended(&self, status: Box<Status>, deadline: Instant) -> Result<Status, Error> {
        let changes = ReconnectingStream::new(self, &status.id);
        let status = self.wait_until_ended(status, deadline, changes).await?;
        if status.state.is_terminal() {
            Ok(*status)
        } else {
            Err(Error::Deadline { id: status.id.clone(), status: Some(status) })
        }
    }
}

pub(super) fn deadline(wait: Duration) -> Instant {
    Instant::now() + wait.min(MAX_WAIT)
}

/// Decodes the result of an ended task.
fn output<O: DeserializeOwned>(status: Status) -> Result<O, Error> {
    if status.state != State::Succeeded {
        return Err(Error::Task(Box::new(status)));
    }
    let text = status.result.as_ref().map_or("null", |result| result.text());
    serde_json::from_str(text).map_err(|error| Error::Output { id: status.id.clone(), source: Arc::new(error) })
}
