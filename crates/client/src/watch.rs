//! Changes of a task as a stream.

use std::time::Duration;

use futures::Stream;
use futures::stream::try_unfold;

use super::follow::ReconnectingStream;
use super::submit::deadline;
use super::{Client, Error, Handle, Status};

impl Client {
    /// Streams the status of a task: now, and at every change until it has ended. Lost connections are restored. After
    /// `wait` the stream ends with [`Error::Deadline`].
    ///
    /// ```no_run
    /// # async fn example(client: kafleet_client::Client) -> Result<(), kafleet_client::Error> {
    /// use futures::TryStreamExt;
    /// let mut changes = std::pin::pin!(client.watch("order-42", std::time::Duration::from_secs(600)));
    /// while let Some(status) = changes.try_next().await? {
    ///     println!("{}", status.state);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self, id: &str, wait: Duration) -> impl Stream<Item = Result<Status, Error>> + Send + use<> {
        let (end, id) = (deadline(wait), id.to_owned());
        try_unfold(Some(ReconnectingStream::new(self, &id)), move |changes| {
            let late = Error::Deadline { id: id.clone(), status: None };
            async move {
                let Some(mut changes) = changes else { return Ok(None) };
                let status = tokio::time::timeout_at(end, changes.next()).await.map_err(|_| late)??;
                let next = (!status.state.is_terminal()).then_some(changes);
                Ok(Some((*status, next)))
            }
        })
    }
}

impl<O> Handle<O> {
    /// Streams the status of the task; see [`Client::watch`].
    pub fn watch(&self, wait: Duration) -> impl Stream<Item = Result<Status, Error>> + Send + use<O> {
        self.client().watch(self.id(), wait)
    }
}
