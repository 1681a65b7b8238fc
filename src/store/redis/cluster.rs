//! Reads in a cluster. Everything of a partition lies in one slot, so one node answers a query; it says itself where to when
//! the slot has moved.
//!
//! While a slot is being moved its keys lie on both sides, and each side knows only its own. Keys are then asked for one by
//! one, where their node says: reads go on, while writers, whose batches are all or nothing, wait for the end of it.

use std::sync::Arc;

use ::redis::{Cmd, Pipeline, RedisError, RedisResult, Value, cmd, pipe};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::connection::{MAX_MOVES, circles};
use super::reader::{Elsewhere, Line, Reader};

impl Reader {
    /// Asks the node that holds the partition, or finds it.
    pub(super) async fn ask_owner(&self, partition: u32, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let mut line = match self.lines.owner(partition) {
            Some(line) => line,
            None => self.lines.to(self.link.node()?),
        };
        for _ in 0..MAX_MOVES {
            let answers = self.send(&line, pipeline).await?;
            let moved = answers.iter().find_map(|answer| match Elsewhere::of(answer)? {
                Elsewhere::Moved(error) => Some(error),
                _ => None,
            });
            match moved {
                Some(error) => line = self.line_to(&error, &line)?,
                None => {
                    self.lines.owns(&line, partition);
                    return self.complete(partition, &line, pipeline, answers).await;
                }
            }
        }
        Err(circles(&format!("partition {partition}")))
    }

    fn line_to(&self, error: &RedisError, from: &Line) -> RedisResult<Arc<Line>> {
        let near = from.place().map_or_else(|| self.link.node(), |node| Ok(node.clone()))?;
        Ok(self.lines.to(self.link.redirected(error, &near)?))
    }

    /// Fills in what this node could not answer because the slot is being moved.
    async fn complete(
        &self,
        partition: u32,
        line: &Arc<Line>,
        pipeline: &Pipeline,
        mut answers: Vec<Value>,
    ) -> RedisResult<Vec<Value>> {
        self.ask_the_other_side(line, pipeline, &mut answers).await?;
        for (command, answer) in pipeline.cmd_iter().zip(&mut answers) {
            if let Some(Elsewhere::Split(error)) = Elsewhere::of(answer) {
                *answer = self.one_by_one(partition, command, error).await?;
            }
        }
        answers.into_iter().map(Value::extract_error).collect()
    }

    /// Sends the commands whose keys have gone to where they have gone: all to one node, because it is one slot.
    async fn ask_the_other_side(&self, line: &Arc<Line>, pipeline: &Pipeline, answers: &mut [Value]) -> RedisResult<()> {
        let (mut asking, mut asked, mut to) = (pipe(), Vec::new(), None);
        for (command, answer) in pipeline.cmd_iter().zip(answers) {
            if let Some(Elsewhere::Asked(error)) = Elsewhere::of(answer) {
                asking.cmd("ASKING").add_command(command.clone());
                asked.push(answer);
                to = Some(error);
            }
        }
        let Some(error) = to else { return Ok(()) };
        let found = self.send(&self.line_to(&error, line)?, &asking).await?;
        for (place, found) in asked.into_iter().zip(found.into_iter().skip(1).step_by(2)) {
            *place = found;
        }
        Ok(())
    }

    /// MGET, key by key. Of other commands the keys cannot be told apart: they are tried again later.
    fn one_by_one<'a>(&'a self, partition: u32, command: &Cmd, why: RedisError) -> BoxFuture<'a, RedisResult<Value>> {
        let keys = Keys::of(command);
        async move {
            let Some(Keys(keys)) = keys else { return Err(why) };
            let mut gets = pipe();
            for key in keys {
                gets.add_command(cmd("GET").arg(key).take());
            }
            self.ask_owner(partition, &gets).await.map(Value::Array)
        }
        .boxed()
    }
}

/// What an MGET asks for.
struct Keys(Vec<Vec<u8>>);

impl Keys {
    fn of(command: &Cmd) -> Option<Self> {
        let mut words = command.args_iter().map(|word| match word {
            ::redis::Arg::Simple(word) => word.to_vec(),
            _ => Vec::new(),
        });
        (words.next()? == b"MGET").then(|| Self(words.collect()))
    }
}
