//! Handlers that crash their process: in child processes, and in workers that are restarted.
//!
//! This binary is also the worker under test (argument `worker`), and its child processes.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

mod crashing_handlers;
#[path = "../worker/fleet.rs"]
#[allow(dead_code, reason = "the worker's tests use more of it")]
mod fleet;
mod isolated;
mod local_workers;
mod poison;
mod rolling;
#[path = "../worker/tail.rs"]
#[allow(dead_code, reason = "the worker's tests use more of it")]
mod tail;
#[path = "../worker/types.rs"]
#[allow(dead_code, reason = "the worker's tests use more of it")]
mod types;

/// Name and function of a test.
type Case = (&'static str, fn());

fn main() -> ExitCode {
    // No backtraces of processes that crash on purpose.
    // SAFETY: this thread is the only one so far.
    unsafe { std::env::set_var("RUST_BACKTRACE", "0") };
    let mut arguments = std::env::args();
    if arguments.next().as_deref() == Some("kafleet-child") || arguments.next().as_deref() == Some("worker") {
        return crashing_handlers::app().main();
    }
    for name in isolated::SECRET_VARIABLES {
        // SAFETY: as above.
        unsafe { std::env::set_var(name, crashing_handlers::SECRET) };
    }
    let cases = isolated::CASES.iter().chain(poison::CASES).chain(rolling::CASES);
    let trial = |&(name, run): &Case| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), cases.map(trial).collect()).exit_code()
}

/// Runs an async test.
pub fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}
