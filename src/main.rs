use clap::Parser;
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;
#[derive(Parser)]
enum Cli {
    #[command(subcommand)]
    Bench(B),
}
#[derive(clap::Subcommand)]
enum B {
    Worker(kafleet::bench::WorkerBench),
    E2e(kafleet::bench::E2e),
    Role,
}
fn main() -> anyhow::Result<()> {
    let Cli::Bench(b) = Cli::parse();
    match b {
        B::Worker(w) => println!("{}", kafleet::bench::worker(&w)?.table()),
        B::E2e(e) => println!("{}", tokio::runtime::Runtime::new()?.block_on(kafleet::bench::e2e(&e))?.table()),
        B::Role => kafleet::bench::role::run()?,
    }
    Ok(())
}
