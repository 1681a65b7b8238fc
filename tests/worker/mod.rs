//! Behaviour of workers: the events, results and dead letters that they publish, and the commits of their groups. On
//! the in-memory broker; core cases also on a real Kafka if `KAFLEET_TEST_KAFKA` is set, as `tests/services run`
//! does.

mod attempt_services;
mod blocking;
mod blocking_calls;
mod children;
mod circuits;
mod commits;
mod control;
mod denied;
mod failed_producer;
mod faults;
mod fleet;
mod heartbeats;
mod hooks;
mod kafka;
mod limits;
mod live_limits;
mod malformed;
mod order;
mod order_property;
mod out_of_range;
mod outcomes;
mod output;
mod policy;
mod rebalance;
mod release;
mod reload;
mod removed;
mod results;
mod shared_group_faults;
mod shared_groups;
mod stopping;
mod tail;
mod types;
mod waits;
