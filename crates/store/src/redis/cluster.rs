//! Reads in a cluster. All keys of a partition share one slot, so one node answers a query, or redirects it after the
//! slot has moved.
//!
//! While a slot is being migrated its keys are spread over two nodes, and each node serves only its own. Keys are
//! then read one by one, following redirects: reads continue, while writers, whose batches are atomic, wait for the
//! end of the migration.

use std::sync::Arc;

use ::redis::{Cmd, Pipeline, RedisError, RedisResult, Value, cmd, pipe};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::connection::{MAX_REDIRECTS, redirect_loop};
use super::reader::{Reader, Redirect, SharedConnection};

impl Reader {
    /// Queries the node that owns the partition, following redirects to find it.
    pub(super) async fn query_owner(&self, partition: u32, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let mut line = match self.pool.owner(partition) {
            Some(line) => line,
            None => self.pool.to(self.connector.node()?),
        };
        for _ in 0..MAX_REDIRECTS {
            let answers = self.send(&line, pipeline).await?;
            match moved(&answers) {
                Some(error) => line = self.redirect_target(&error, &line)?,
                None => {
                    self.pool.owns(&line, partition);
                    return self.complete(partition, &line, pipeline, answers).await;
                }
            }
        }
        Err(redirect_loop(&format!("partition {partition}")))
    }

    fn redirect_target(&self, error: &RedisError, from: &SharedConnection) -> RedisResult<Arc<SharedConnection>> {
        let near = from.node().map_or_else(|| self.connector.node(), |node| Ok(node.clone()))?;
        Ok(self.pool.to(self.connector.redirected(error, &near)?))
    }

    /// Completes the answers that this node cannot give because the slot is being migrated.
    async fn complete(
        &self,
        partition: u32,
        line: &Arc<SharedConnection>,
        pipeline: &Pipeline,
        mut answers: Vec<Value>,
    ) -> RedisResult<Vec<Value>> {
        self.follow_ask(line, pipeline, &mut answers).await?;
        for (command, answer) in pipeline.cmd_iter().zip(&mut answers) {
            if let Some(Redirect::TryAgain(error)) = Redirect::of(answer) {
                *answer = self.get_each(partition, command, error).await?;
            }
        }
        answers.into_iter().map(Value::extract_error).collect()
    }

    /// Repeats commands answered with ASK at the target node: one node for all of them, because they share a slot.
    async fn follow_ask(
        &self,
        line: &Arc<SharedConnection>,
        pipeline: &Pipeline,
        answers: &mut [Value],
    ) -> RedisResult<()> {
        let (mut asking, mut followed, mut to) = (pipe(), Vec::new(), None);
        for (command, answer) in pipeline.cmd_iter().zip(answers) {
            if let Some(Redirect::Ask(error)) = Redirect::of(answer) {
                asking.cmd("ASKING").add_command(command.clone());
                followed.push(answer);
                to = Some(error);
            }
        }
        let Some(error) = to else { return Ok(()) };
        let redirected = self.send(&self.redirect_target(&error, line)?, &asking).await?;
        for (slot, redirected) in followed.into_iter().zip(redirected.into_iter().skip(1).step_by(2)) {
            *slot = redirected;
        }
        Ok(())
    }

    /// Splits an MGET into GETs. Other multi-key commands fail with `error` and are retried later.
    fn get_each<'a>(&'a self, partition: u32, command: &Cmd, error: RedisError) -> BoxFuture<'a, RedisResult<Value>> {
        let keys = CommandKeys::of(command);
        async move {
            let Some(CommandKeys(keys)) = keys else { return Err(error) };
            let mut gets = pipe();
            for key in keys {
                gets.add_command(cmd("GET").arg(key).take());
            }
            self.query_owner(partition, &gets).await.map(Value::Array)
        }
        .boxed()
    }
}

/// Returns the first MOVED among answers.
fn moved(answers: &[Value]) -> Option<RedisError> {
    answers.iter().find_map(|answer| match Redirect::of(answer)? {
        Redirect::Moved(error) => Some(error),
        _ => None,
    })
}

/// Keys of an MGET.
struct CommandKeys(Vec<Vec<u8>>);

impl CommandKeys {
    fn of(command: &Cmd) -> Option<Self> {
        let mut words = command.args_iter().map(|word| match word {
            ::redis::Arg::Simple(word) => word.to_vec(),
            _ => Vec::new(),
        });
        (words.next()? == b"MGET").then(|| Self(words.collect()))
    }
}
