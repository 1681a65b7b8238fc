use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The fleet without Rust handlers of one's own: its types come from the configuration.
fn main() -> ExitCode {
    kafleet::cli::run(kafleet::handlers::Registry::default())
}
