//! Atomic publishing of tasks of one tree: task records and events are written in one transaction.

use std::time::Duration;

use kafleet_broker::{BrokerError, DependentRecord, TransactionalProducer};
use kafleet_model::event::{Event, Payload, submitted};
use kafleet_model::record::state::State;
use kafleet_model::task::{Position, TaskSpec};

use super::headers::{bytes_of, task_headers, task_record};
use super::{PreparedTask, PublishError, PublishStep, PublishedTask, Publisher};
use crate::control::{ControlCommand, command_record};

impl Publisher {
    /// Publishes all of the tasks or none; they must have the same root. Blocks up to the deadline. After
    /// [`BrokerError::InDoubt`] either all or none are published.
    pub fn publish_atomically(
        &self,
        producer: &mut dyn TransactionalProducer,
        tasks: Vec<TaskSpec>,
        now_ms: i64,
        deadline: Duration,
    ) -> Result<Vec<PublishedTask>, PublishError> {
        self.publish_all_or_none(producer, tasks, None, now_ms, deadline)
    }

    /// Publishes all of the tasks with a further record, or nothing. Blocks up to the deadline. The tasks may have different
    /// roots, and errors are those of [`Self::publish_atomically`].
    pub fn publish_with_record(
        &self,
        producer: &mut dyn TransactionalProducer,
        tasks: Vec<TaskSpec>,
        record: DependentRecord,
        now_ms: i64,
        deadline: Duration,
    ) -> Result<Vec<PublishedTask>, PublishError> {
        self.publish_all_or_none(producer, tasks, Some(record), now_ms, deadline)
    }

    fn publish_all_or_none(
        &self,
        producer: &mut dyn TransactionalProducer,
        tasks: Vec<TaskSpec>,
        record: Option<DependentRecord>,
        now_ms: i64,
        deadline: Duration,
    ) -> Result<Vec<PublishedTask>, PublishError> {
        let mut tasks =
            tasks.into_iter().map(|task| self.prepare(task, now_ms)).collect::<Result<Vec<_>, PublishError>>()?;
        let sent = self.send_together(producer, &tasks, record, now_ms, deadline).map_err(PublishError::NotPublished);
        let positions = sent.inspect_err(|error| {
            // Records that may have been published name these spans.
            tasks.iter_mut().for_each(|ready| super::finish(self.tracer.as_ref(), ready.span.take(), Some(error)));
        })?;
        tasks.iter().for_each(|ready| self.count(&ready.task.task_type, 1));
        // The positions of the records come first, then those of the events, one per task, then those of the groups' reports
        // and of the further record.
        let records = tasks.iter().filter(|ready| ready.step == PublishStep::Record).count();
        let events = &positions[records.min(positions.len())..];
        let published = |(ready, at): (PreparedTask, &(i32, i64))| {
            super::finish(self.tracer.as_ref(), ready.span, None);
            PublishedTask { id: ready.task.id, position: position(*at) }
        };
        Ok(tasks.into_iter().zip(events).map(published).collect())
    }

    /// Writes commands for the workers and events in one transaction, and returns the position of the last event. Blocks up
    /// to the deadline.
    pub fn publish_events_atomically(
        &self,
        producer: &mut dyn TransactionalProducer,
        commands: &[ControlCommand],
        events: &[Event],
        deadline: Duration,
    ) -> Result<Position, BrokerError> {
        let topic = self.topology.names.control();
        let commands = encoded(commands)?;
        let mut values = Vec::with_capacity(events.len());
        for event in events {
            let mut value = Vec::with_capacity(256);
            event.encode(&mut value)?;
            values.push(value);
        }
        let commands = commands.iter().map(|(key, value)| command_record(&topic, key, value));
        let events = events.iter().zip(&values).map(|(event, value)| self.event_record(event.key(), value));
        let records: Vec<_> = commands.chain(events).collect();
        let positions = producer.send_all(&records, deadline)?;
        let none = || BrokerError::Invalid("a transaction without events".to_owned());
        positions.last().copied().map(position).ok_or_else(none)
    }

    /// Sends all records, then one event per task, then the reports of groups, whose children are known by then, then the
    /// further record. Returns the positions in this order.
    fn send_together(
        &self,
        producer: &mut dyn TransactionalProducer,
        tasks: &[PreparedTask],
        record: Option<DependentRecord>,
        now_ms: i64,
        deadline: Duration,
    ) -> Result<Vec<(i32, i64)>, BrokerError> {
        let with_record = || tasks.iter().filter(|ready| ready.step == PublishStep::Record);
        let texts: Vec<_> = with_record()
            .map(|ready| (self.topology.names.tasks(&ready.task.task_type), task_headers(&ready.task, &self.source)))
            .collect();
        let headers: Vec<_> = texts.iter().map(|(_, headers)| bytes_of(headers)).collect();
        let records: Vec<_> = with_record()
            .zip(&texts)
            .zip(&headers)
            .map(|((ready, (topic, _)), headers)| task_record(&ready.task, topic, headers))
            .collect();
        let mut events = |positions: &[(i32, i64)]| -> Result<Vec<DependentRecord>, BrokerError> {
            let mut positions = positions.iter().copied();
            let announced = tasks.iter().map(|ready| self.event_of(ready, &mut positions, now_ms));
            let groups = tasks.iter().filter(|ready| ready.task.is_group);
            let reports = groups.map(|ready| group_report(self, &ready.task, now_ms));
            announced.chain(reports).chain(record.clone().map(Ok)).collect()
        };
        producer.send_with_dependents(&records, &mut events, deadline)
    }

    /// Builds the event of a task. `positions` yields the positions of the records; a task with a record takes the next
    /// one.
    fn event_of(
        &self,
        ready: &PreparedTask,
        positions: &mut dyn Iterator<Item = (i32, i64)>,
        now_ms: i64,
    ) -> Result<DependentRecord, BrokerError> {
        let mut value = Vec::with_capacity(256);
        let task = &ready.task;
        match ready.step {
            PublishStep::Record => submitted(task, positions.next().map(position), now_ms, &mut value)?,
            PublishStep::Announce(position) => submitted(task, position, now_ms, &mut value)?,
            PublishStep::Later { due_ms } => {
                super::scheduled(task, &self.source, due_ms, now_ms).encode(&mut value)?;
            }
            PublishStep::Ask => super::asked(task, &self.source, now_ms).encode(&mut value)?,
        }
        Ok(dependent_record(self, task, value))
    }
}

/// Keys and values of the records of commands.
fn encoded(commands: &[ControlCommand]) -> Result<Vec<(String, Vec<u8>)>, BrokerError> {
    let invalid = |error: serde_json::Error| BrokerError::Invalid(error.to_string());
    let encode = |(key, record): &ControlCommand| {
        serde_json::to_vec(record).map(|value| (key.to_string(), value)).map_err(invalid)
    };
    commands.iter().map(encode).collect()
}

fn position((partition, offset): (i32, i64)) -> Position {
    Position { partition, offset }
}

/// Builds the event that ends the own work of a group.
fn group_report(publisher: &Publisher, task: &TaskSpec, now_ms: i64) -> Result<DependentRecord, BrokerError> {
    let payload = Payload::Reported { state: Some(State::WaitingForChildren), output: None, error: None };
    let mut value = Vec::with_capacity(128);
    Event::new(payload, task.id.clone(), task.run, now_ms).encode(&mut value)?;
    Ok(dependent_record(publisher, task, value))
}

fn dependent_record(publisher: &Publisher, task: &TaskSpec, value: Vec<u8>) -> DependentRecord {
    DependentRecord {
        topic: publisher.events_topic.clone(),
        partition: publisher.topology.partition_of(&task.id) as i32,
        key: task.id.root().as_bytes().to_vec(),
        value,
    }
}
