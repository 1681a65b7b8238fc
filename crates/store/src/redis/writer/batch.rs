//! Commands of one batch: records, logs, attachments, indexes, counters and the checkpoint in one transaction.

use ::redis::{Pipeline, cmd, pipe};
use kafleet_model::encode_error::EncodeError;
use kafleet_model::task::id::TaskId;
use rustc_hash::FxHashMap;

use super::{ITEMS_PER_COMMAND, Writer, watch};
use crate::keys::{self, Keys};
use crate::log_tail::LogTail;
use crate::redis::values::{checkpoint_text, notice_text};
use crate::redis::{integrity, server_state, statistics, torn_writes};
use crate::{Changes, Checkpoint, Entry, Index, Notice};

/// Commands of one batch.
pub(super) struct WriteBatch {
    pub(super) commands: Pipeline,
    /// Counters in the order of their HINCRBY.
    pub(super) counters: Vec<String>,
    /// Index of the first HINCRBY of a counter among the transaction's commands.
    pub(super) first_counter: usize,
}

impl WriteBatch {
    pub(super) fn build(
        writer: &mut Writer,
        changes: &Changes,
        zeroed: &[String],
        to: Checkpoint,
    ) -> Result<Self, EncodeError> {
        let keys = &writer.keys;
        let mut commands = pipe();
        commands.cmd("MULTI");
        torn_writes::begin(&mut commands, keys);
        let records = changes.task_records.iter().map(|(id, record)| (keys.record(id), record.as_slice()));
        set_many(&mut commands, records);
        let deferred =
            changes.deferred.iter().filter_map(|(id, deferred)| Some((keys.deferred(id), deferred.as_deref()?)));
        set_many(&mut commands, deferred);
        let unique = changes.unique.iter().filter_map(|(tag, state)| Some((keys.unique(tag), state.as_deref()?)));
        set_many(&mut commands, unique);
        delete_values(&mut commands, keys, changes);
        add_logs(&mut commands, keys, &mut writer.tails, changes);
        change_attachments(&mut commands, keys, changes);
        delete_records(&mut commands, keys, &mut writer.tails, changes);
        if let Some(lifetimes) = &changes.lifetimes {
            commands.cmd("SET").arg(keys.lifetimes()).arg(serde_json::to_vec(lifetimes)?);
        }
        change_indexes(&mut commands, keys, changes);
        change_done(&mut commands, keys, changes);
        statistics::change(&mut commands, keys, changes);
        if !zeroed.is_empty() {
            commands.cmd("HDEL").arg(keys.counts()).arg(zeroed);
        }
        // MULTI itself has no answer in EXEC.
        let first_counter = commands.len() - 1;
        let counters = change_counts(&mut commands, keys, changes);
        integrity::add_sizes(&mut commands, keys, changes);
        if let Some(outdated_fields) = writer.outdated_fields.take() {
            server_state::record(&mut commands, keys, &writer.server, &outdated_fields);
        }
        torn_writes::end(&mut commands, keys, writer.batches + 1);
        commands.cmd("SET").arg(keys.checkpoint()).arg(checkpoint_text(to));
        if let Some(text) = notice_text(Notice::of(writer.partition, to, changes)) {
            commands.cmd("PUBLISH").arg(keys::notices(&writer.connector.options.prefix)).arg(text);
        }
        commands.cmd("EXEC");
        watch(&mut commands, keys);
        Ok(Self { commands, counters, first_counter })
    }
}

fn set_many<'a>(commands: &mut Pipeline, pairs: impl Iterator<Item = (String, &'a [u8])>) {
    let mut command = cmd("MSET");
    let mut held = 0;
    for (key, value) in pairs {
        command.arg(key).arg(value);
        held += 1;
        if held == ITEMS_PER_COMMAND {
            commands.add_command(std::mem::replace(&mut command, cmd("MSET")));
            held = 0;
        }
    }
    if held > 0 {
        commands.add_command(command);
    }
}

/// Deletes deferred records, and keys of unique tasks.
fn delete_values(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    let deferred = changes.deferred.iter().filter(|(_, deferred)| deferred.is_none()).map(|(id, _)| keys.deferred(id));
    let unique = changes.unique.iter().filter(|(_, state)| state.is_none()).map(|(tag, _)| keys.unique(tag));
    let keys_to_delete: Vec<String> = deferred.chain(unique).collect();
    for chunk in keys_to_delete.chunks(ITEMS_PER_COMMAND) {
        commands.cmd("DEL").arg(chunk);
    }
}

/// Deletes records, their logs and attachments. The index of a record's children is empty by then and so does not
/// exist.
fn delete_records(commands: &mut Pipeline, keys: &Keys, tails: &mut FxHashMap<TaskId, LogTail<()>>, changes: &Changes) {
    for chunk in changes.deleted.chunks(ITEMS_PER_COMMAND) {
        let of = |id: &TaskId| [keys.record(id), keys.log(id), keys.log_total(id), keys.attachments(id)];
        commands.cmd("DEL").arg(chunk.iter().flat_map(of).collect::<Vec<_>>());
        chunk.iter().for_each(|id| drop(tails.remove(id)));
    }
}

fn add_logs(commands: &mut Pipeline, keys: &Keys, tails: &mut FxHashMap<TaskId, LogTail<()>>, changes: &Changes) {
    for (id, lines) in changes.logs.iter().filter(|(_, lines)| !lines.is_empty()) {
        let tail = tails.entry(id.clone()).or_default();
        let would_hold = tail.len() + lines.len();
        lines.iter().for_each(|line| tail.push((), line.len()));
        let key = keys.log(id);
        commands.cmd("RPUSH").arg(&key).arg(lines);
        match tail.len() {
            0 => commands.cmd("DEL").arg(&key),
            held if held < would_hold => commands.cmd("LTRIM").arg(&key).arg(-(held as i64)).arg(-1),
            _ => commands,
        };
        commands.cmd("SET").arg(keys.log_total(id)).arg(tail.total());
    }
}

fn change_attachments(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    for (id, name, data) in &changes.attachments {
        let key = keys.attachments(id);
        match data {
            Some(data) => commands.cmd("HSET").arg(key).arg(name).arg(data.as_slice()),
            None => commands.cmd("HDEL").arg(key).arg(name),
        };
    }
}

fn change_indexes(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    for (index, entries) in by_index(&changes.removed) {
        let key = keys.index(index);
        for chunk in entries.chunks(ITEMS_PER_COMMAND) {
            let members: Vec<&str> = chunk.iter().map(|entry| entry.id.as_str()).collect();
            commands.cmd("ZREM").arg(&key).arg(members);
        }
    }
    for (index, entries) in by_index(&changes.added) {
        let key = keys.index(index);
        for chunk in entries.chunks(ITEMS_PER_COMMAND) {
            let members: Vec<(i64, &str)> = chunk.iter().map(|entry| (entry.seen_ms, entry.id.as_str())).collect();
            commands.cmd("ZADD").arg(&key).arg(members);
        }
    }
}

/// Drops ids from the front of a list, and removes its time once the list is empty.
const DONE_WITH: &str = "redis.call('LTRIM',KEYS[2],ARGV[1],-1)\n\
    if redis.call('EXISTS',KEYS[2]) == 0 then redis.call('ZREM',KEYS[1],ARGV[2]) end";

fn change_done(commands: &mut Pipeline, keys: &Keys, changes: &Changes) {
    let mut by_time: FxHashMap<i64, Vec<&str>> = FxHashMap::default();
    for entry in &changes.done {
        by_time.entry(entry.seen_ms).or_default().push(entry.id.as_str());
    }
    for (due_ms, ids) in by_time {
        commands.cmd("ZADD").arg(keys.done_times()).arg(due_ms).arg(due_ms);
        for chunk in ids.chunks(ITEMS_PER_COMMAND) {
            commands.cmd("RPUSH").arg(keys.done(due_ms)).arg(chunk);
        }
    }
    if let Some((due_ms, count)) = changes.done_with {
        let (times, list) = (keys.done_times(), keys.done(due_ms));
        commands.cmd("EVAL").arg(DONE_WITH).arg(2).arg(times).arg(list).arg(count).arg(due_ms);
    }
}

fn by_index(entries: &[(Index, Entry)]) -> FxHashMap<&Index, Vec<&Entry>> {
    let mut grouped: FxHashMap<&Index, Vec<&Entry>> = FxHashMap::default();
    for (index, entry) in entries {
        grouped.entry(index).or_default().push(entry);
    }
    grouped
}

fn change_counts(commands: &mut Pipeline, keys: &Keys, changes: &Changes) -> Vec<String> {
    let counters = changes.counts.iter().map(|(task_type, state, change)| {
        let counter = keys::counter(task_type, *state);
        commands.cmd("HINCRBY").arg(keys.counts()).arg(&counter).arg(*change);
        counter
    });
    counters.collect()
}
