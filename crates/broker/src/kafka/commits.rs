//! Commits of a consumer: divided into requests of limited size, with an outcome per partition.
//!
//! librdkafka 2.12 hides which partitions of a request were committed: if some fail, it gives the last error to the
//! others too (`rd_kafka_cgrp_update_committed_offsets`). A request that fails because of one of its topics is therefore
//! repeated topic by topic, and that topic gets requests of its own until one succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::{error, list_of_commits, native};
use crate::{BrokerError, Commit, CommitOutcomes, Partition};

/// Maximum size of a request. The group's coordinator writes it as one batch, which Kafka's default settings limit to
/// 1 MiB.
const MAX_REQUEST_BYTES: usize = 256 << 10;
/// Size of an offset without its topic and metadata, in the coordinator's log.
const OFFSET_BYTES: usize = 100;

/// Outcome of a request: its error code, and an entry per partition.
pub(super) type RequestOutcome = (Code, Vec<native::PartitionEntry>);

/// Commit in flight.
#[derive(Default)]
pub(super) struct Commits {
    /// Offsets without an outcome.
    pending: BTreeMap<Partition, Commit>,
    outcomes: CommitOutcomes,
    /// Topics that have failed for a reason of their own.
    separate: BTreeSet<Arc<str>>,
}

impl Commits {
    /// Sends a commit.
    pub(super) fn begin<C: ClientContext>(&mut self, client: &Client<C>, commits: &[Commit]) {
        for request in requests(commits, &self.separate) {
            self.send(client, request);
        }
    }

    fn send<C: ClientContext>(&mut self, client: &Client<C>, request: Vec<Commit>) {
        let sent = list_of_commits(&request).and_then(|list| match native::begin_commit(client, &list) {
            Code::NoError => Ok(()),
            code => Err(error::of_code(code, "committing")),
        });
        for commit in request {
            match &sent {
                Ok(()) => drop(self.pending.insert(commit.partition.clone(), commit)),
                Err(error) => self.outcomes.push((commit.partition, Err(error.clone()))),
            }
        }
    }

    /// Registers the outcome of a request.
    pub(super) fn finish<C: ClientContext>(&mut self, client: &Client<C>, (code, entries): RequestOutcome) {
        for request in self.record(code, &entries) {
            self.send(client, request);
        }
    }

    /// Records outcomes, and returns the requests to repeat.
    fn record(&mut self, code: Code, entries: &[native::PartitionEntry]) -> Vec<Vec<Commit>> {
        if entries.is_empty() {
            self.fail_all(code);
        }
        let topics: BTreeSet<&Arc<str>> = entries.iter().map(|entry| &entry.partition.topic).collect();
        let is_mixed = topics.len() > 1;
        let mut again = Vec::new();
        for entry in entries {
            let Some(commit) = self.pending.remove(&entry.partition) else { continue };
            let code = code_of(code, entry);
            if is_mixed && concerns_topic(code) {
                again.push(commit);
                continue;
            }
            self.set_separate(&commit.partition.topic, code);
            self.outcomes.push((commit.partition, outcome(code, &entry.partition, "committing")));
        }
        let topics = again.iter().map(|commit| commit.partition.topic.clone()).collect();
        requests(&again, &topics)
    }

    /// Ends a commit after an outcome that names no partitions.
    fn fail_all(&mut self, code: Code) {
        let error = error::of_code(code, "committing");
        let failed = std::mem::take(&mut self.pending).into_keys();
        self.outcomes.extend(failed.map(|partition| (partition, Err(error.clone()))));
    }

    fn set_separate(&mut self, topic: &Arc<str>, code: Code) {
        if concerns_topic(code) {
            self.separate.insert(topic.clone());
        } else if code == Code::NoError {
            self.separate.remove(topic);
        }
    }

    /// Returns the outcomes once all have arrived.
    pub(super) fn take_outcomes(&mut self) -> Option<CommitOutcomes> {
        (self.pending.is_empty() && !self.outcomes.is_empty()).then(|| std::mem::take(&mut self.outcomes))
    }
}

/// Commits and waits for the outcome. If several partitions fail, an error worth a retry is returned first.
pub(super) fn commit_and_wait<C: ClientContext>(
    client: &Client<C>,
    commits: &[Commit],
    deadline: Duration,
    operation: &str,
) -> Result<(), BrokerError> {
    let end = Instant::now() + deadline;
    let mut failure: Option<BrokerError> = None;
    for request in requests(commits, &BTreeSet::new()) {
        let left = end.saturating_duration_since(Instant::now());
        let outcomes = match native::commit(client, &list_of_commits(&request)?, left) {
            None => vec![Err(BrokerError::InDoubt(format!("{operation}: no answer after {deadline:?}")))],
            Some((code, entries)) if entries.is_empty() => vec![outcome(code, &request[0].partition, operation)],
            Some((code, entries)) => {
                entries.iter().map(|entry| outcome(code_of(code, entry), &entry.partition, operation)).collect()
            }
        };
        for error in outcomes.into_iter().filter_map(Result::err) {
            if failure.as_ref().is_none_or(|first| !first.is_transient() && error.is_transient()) {
                failure = Some(error);
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Returns the partition's own error, or else that of the request.
fn code_of(request: Code, entry: &native::PartitionEntry) -> Code {
    if entry.error == Code::NoError { request } else { entry.error }
}

fn outcome(code: Code, partition: &Partition, operation: &str) -> Result<(), BrokerError> {
    match code {
        Code::NoError => Ok(()),
        code => Err(error::of_code(code, &format!("{operation}, {partition}"))),
    }
}

/// Returns whether an error concerns single topics or partitions of a commit, or its size, and not the group.
fn concerns_topic(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopicId
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::OffsetMetadataTooLarge
            | Code::InvalidCommitOffsetSize
    )
}

/// Divides a commit into requests of limited size; each of the separate topics gets requests of its own.
fn requests(commits: &[Commit], separate: &BTreeSet<Arc<str>>) -> Vec<Vec<Commit>> {
    let mut by_topic: BTreeMap<Option<&Arc<str>>, Vec<&Commit>> = BTreeMap::new();
    for commit in commits {
        by_topic.entry(separate.get(&commit.partition.topic)).or_default().push(commit);
    }
    by_topic.into_values().flat_map(|commits| chunks(&commits)).collect()
}

fn chunks(commits: &[&Commit]) -> Vec<Vec<Commit>> {
    let mut chunks: Vec<Vec<Commit>> = Vec::new();
    let mut size = usize::MAX;
    for commit in commits {
        let more = OFFSET_BYTES + commit.partition.topic.len() + commit.metadata.len();
        if size.saturating_add(more) > MAX_REQUEST_BYTES {
            chunks.push(Vec::new());
            size = 0;
        }
        size += more;
        if let Some(chunk) = chunks.last_mut() {
            chunk.push((*commit).clone());
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(topic: &str, index: i32, metadata: usize) -> Commit {
        Commit { partition: Partition::new(topic, index), offset: 1, metadata: "x".repeat(metadata) }
    }

    fn entry(topic: &str, index: i32, error: Code) -> native::PartitionEntry {
        native::PartitionEntry { partition: Partition::new(topic, index), offset: 1, metadata: String::new(), error }
    }

    /// A commit in flight whose requests have been sent.
    fn in_flight(commits: &[Commit]) -> Commits {
        let pending = commits.iter().map(|commit| (commit.partition.clone(), commit.clone())).collect();
        Commits { pending, ..Commits::default() }
    }

    fn outcomes(commits: &mut Commits) -> Vec<(String, bool)> {
        let reported = commits.take_outcomes().unwrap();
        reported.into_iter().map(|(partition, outcome)| (partition.to_string(), outcome.is_ok())).collect()
    }

    fn topics(requests: &[Vec<Commit>]) -> Vec<&str> {
        requests.iter().map(|request| &*request[0].partition.topic).collect()
    }

    #[test]
    fn large_commit_is_divided_into_requests() {
        let commits: Vec<Commit> = (0..300).map(|index| commit("t", index, 4096)).collect();
        let requests = requests(&commits, &BTreeSet::new());
        let size = |request: &Vec<Commit>| request.iter().map(|commit| commit.metadata.len() + 101).sum::<usize>();
        assert!(requests.iter().all(|request| size(request) <= MAX_REQUEST_BYTES));
        assert_eq!((requests.len(), requests.concat()), (5, commits));
        assert_eq!(super::requests(&[], &BTreeSet::new()), Vec::<Vec<Commit>>::new());
    }

    #[test]
    fn error_of_one_topic_leaves_the_others_committed() {
        let commits = [commit("a", 0, 0), commit("b", 0, 0), commit("b", 1, 0), commit("c", 0, 0)];
        let mut reported = in_flight(&commits);
        // librdkafka gives the error of `b` to the others too.
        let denied = Code::TopicAuthorizationFailed;
        let entries = commits.each_ref().map(|commit| entry(&commit.partition.topic, commit.partition.index, denied));
        let again = reported.record(denied, &entries);
        assert_eq!((topics(&again), reported.take_outcomes()), (vec!["a", "b", "c"], None));
        reported.pending = in_flight(&commits).pending;
        assert!(reported.record(Code::NoError, &[entry("a", 0, Code::NoError)]).is_empty());
        assert!(reported.record(denied, &[entry("b", 0, denied), entry("b", 1, denied)]).is_empty());
        assert!(reported.record(Code::NoError, &[entry("c", 0, Code::NoError)]).is_empty());
        let expected = [("a/0", true), ("b/0", false), ("b/1", false), ("c/0", true)];
        assert_eq!(outcomes(&mut reported), expected.map(|(partition, is_ok)| (partition.to_owned(), is_ok)));
        // From then on it does not hide the outcome of the others, until it succeeds.
        assert_eq!(topics(&requests(&commits, &reported.separate)), ["a", "b"]);
        reported.pending = in_flight(&commits[1..3]).pending;
        reported.record(Code::NoError, &[entry("b", 0, Code::NoError), entry("b", 1, Code::NoError)]);
        assert_eq!(requests(&commits, &reported.separate).len(), 1);
    }

    #[test]
    fn error_of_the_group_is_not_repeated() {
        let commits = [commit("a", 0, 0), commit("b", 0, 0)];
        let mut reported = in_flight(&commits);
        let code = Code::IllegalGeneration;
        assert!(reported.record(code, &[entry("a", 0, code), entry("b", 0, Code::NoError)]).is_empty());
        assert_eq!(outcomes(&mut reported), [("a/0".to_owned(), false), ("b/0".to_owned(), false)]);
        assert!(reported.separate.is_empty());
    }
}
