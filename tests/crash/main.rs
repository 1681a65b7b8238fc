//! Handlers that take their process down: in child processes, and in workers that are started again.
//!
//! This binary is also the fleet under test: as `worker` it is one, and so are its child processes.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

mod convicted;
mod isolated;
mod risky;
mod rolling;
mod site;

#[path = "../worker/fleet.rs"]
#[allow(dead_code, reason = "the worker's tests use more of it")]
mod fleet;
#[path = "../worker/tail.rs"]
#[allow(dead_code, reason = "the worker's tests use more of it")]
mod tail;
#[path = "../topics/mod.rs"]
mod topics;
#[path = "../worker/types.rs"]
#[allow(dead_code, reason = "the worker's tests use more of it")]
mod types;

/// A test and what it is called.
type Case = (&'static str, fn());

fn main() -> ExitCode {
    // Processes that die on purpose say so in a line, not in a page.
    // SAFETY: this thread is the only one so far.
    unsafe { std::env::set_var("RUST_BACKTRACE", "0") };
    let mut arguments = std::env::args();
    if arguments.next().as_deref() == Some("kafleet-child") || arguments.next().as_deref() == Some("worker") {
        return risky::app().main();
    }
    let cases = isolated::CASES.iter().chain(convicted::CASES).chain(rolling::CASES);
    let trial = |&(name, run): &Case| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), cases.map(trial).collect()).exit_code()
}

/// Runs a test of async code.
pub fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}
