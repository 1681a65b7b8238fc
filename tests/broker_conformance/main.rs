//! Broker conformance suite. Runs on the in-memory broker, and on the Kafka whose bootstrap servers
//! `KAFLEET_TEST_KAFKA` names (with `auto.create.topics.enable=false`). Topics and groups have unique names, so the
//! suite can run on a shared cluster.

use std::process::ExitCode;
use std::sync::Arc;

use kafleet::broker::Broker;
use kafleet::broker::memory::{MemoryBroker, MemoryBrokerOptions};
use libtest_mimic::{Arguments, Trial};

mod atomic;
mod fleet;
mod groups;
mod kafka;
mod kit;
mod memory;
mod produce;
mod read;
mod topics;

use kit::Kit;

/// A case that every broker must pass.
type Case = (&'static str, fn(&Kit));

fn shared_cases() -> impl Iterator<Item = &'static Case> {
    [topics::CASES, produce::CASES, read::CASES, groups::CASES, atomic::CASES, fleet::CASES].into_iter().flatten()
}

fn trials_for(name: &str, broker: &Arc<dyn Broker>, cases: impl Iterator<Item = &'static Case>) -> Vec<Trial> {
    let trial = |(case, run): &'static Case| {
        let broker = broker.clone();
        Trial::test(format!("{name}::{case}"), move || {
            run(&Kit::new(broker, case));
            Ok(())
        })
    };
    cases.map(trial).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let in_memory: Arc<dyn Broker> = MemoryBroker::new(MemoryBrokerOptions::default());
    let mut trials = trials_for("memory", &in_memory, shared_cases());
    trials.extend(memory::cases().map(|(case, run)| {
        Trial::test(format!("memory::{case}"), move || {
            run();
            Ok(())
        })
    }));
    if let Some(broker) = kafka::from_environment(&[]) {
        trials.extend(trials_for("kafka", &broker, shared_cases()));
    }
    // Groups whose partitions the broker assigns.
    if let Some(broker) = kafka::from_environment(&[("group.protocol", "consumer")]) {
        trials.extend(trials_for("consumer_protocol", &broker, groups::CASES.iter()));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
