use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs kafleet without Rust task types: all types come from the configuration.
fn main() -> ExitCode {
    kafleet::cli::run(kafleet::handlers::Registry::default())
}
