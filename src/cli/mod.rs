//! The command line: one thin function per verb, in two stages: what was typed, then what it means.
//!
//! Client verbs (`submit`, `status`, `tree`, …) talk REST to an api and know neither Kafka nor Redis. Roles (`dev`,
//! `worker`, `tracker`, `api`) and set-up (`topics`, `offsets`, `doctor`) are wired in [`roles`], and only there. Data goes
//! to stdout, talk to stderr; the exit codes are [`outcome::Code`].

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::handlers::Registry;
use crate::worker::child::child_main as cell;

mod attachments;
mod bench;
mod cancel;
mod children;
mod client;
mod completions;
mod dead_letters;
mod dev;
mod doctor;
mod exit;
mod globals;
mod kill_switch;
mod list;
mod log;
mod offsets;
mod output;
mod params;
mod rebuild;
mod report;
mod retry;
mod schedules;
mod serve;
mod setup;
mod status;
mod submit;
mod task_view;
mod topics;
mod tree;
mod types;
mod update;
mod wait;
mod watch;
mod why;
mod workers;

use exit::{Code, Failure, Outcome};
use globals::{Format, Globals};

/// How long work that ignores the shutdown may hold up the exit.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// A Kafka-native task fleet: typed tasks, trees of tasks, live status.
#[derive(Debug, Parser)]
#[command(name = "kafleet", version, max_term_width = 110, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    verb: Verb,
}

const AFTER_HELP: &str = "\
Try it, with nothing else installed:  kafleet dev

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 unavailable, 5 timed out, 6 not allowed";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a whole fleet in this process, in memory, and show a first task's result
    Dev(dev::DevArgs),
    /// Run tasks
    Worker(serve::WorkerArgs),
    /// Fold events into Redis
    Tracker(serve::TrackerArgs),
    /// Serve the REST api
    Api(serve::ApiArgs),
    /// Create and correct the fleet's topics
    #[command(subcommand)]
    Topics(topics::TopicsVerb),
    /// Fold the log into another Redis while the first one serves, then switch to it
    Rebuild(rebuild::RebuildArgs),
    /// Say where workers begin
    #[command(subcommand)]
    Offsets(offsets::OffsetsVerb),
    /// Check configuration, Kafka, topics, Redis and api
    Doctor(doctor::DoctorArgs),
    /// Submit a task, or many from a file or stdin
    Submit(Box<submit::SubmitArgs>),
    /// Show a task
    Status(status::StatusArgs),
    /// List tasks, newest first
    List(list::ListArgs),
    /// List the direct children of a task
    Children(children::ChildrenArgs),
    /// Show the params of a task
    Params(params::ParamsArgs),
    /// Draw a task and what is below it
    Tree(tree::TreeArgs),
    /// Follow a task until it ends, a tree, a type, or all tasks
    Watch(watch::WatchArgs),
    /// Tell why a task is where it is
    Why(why::WhyArgs),
    /// Show what happened to a task
    History(status::HistoryArgs),
    /// Small values kept with a task: list, put, get, delete
    #[command(subcommand)]
    Attachments(attachments::AttachmentsVerb),
    /// Show what a task has logged, follow it, add to it
    #[command(visible_alias = "logs")]
    Log(log::LogArgs),
    /// Report the state of an external task
    Report(report::ReportArgs),
    /// Cancel a task and what is below it
    Cancel(cancel::CancelArgs),
    /// Change a task's name, tags, options, times and limits
    Set(update::SetArgs),
    /// Start a task anew that has ended, or what failed below it
    Retry(retry::RetryArgs),
    /// List, show, redrive and drop what is not tried again by itself
    #[command(subcommand)]
    Dead(dead_letters::DeadVerb),
    /// Show the task types, pause and limit them
    Types(types::TypesArgs),
    /// Cancel tasks by tag or by how their ids begin, instead of starting them
    #[command(subcommand)]
    Kill(kill_switch::KillVerb),
    /// Recurring tasks: create, list, show, change, delete, pause, resume, run, backfill, next, apply
    #[command(subcommand)]
    Schedules(schedules::SchedulesVerb),
    /// Show the workers and what they do
    Workers(workers::WorkersArgs),
    /// Measure this build on this machine
    #[command(subcommand)]
    Bench(bench::BenchVerb),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

/// Runs the verb on the command line with these Rust types; those of the configuration come on top.
pub fn run(registry: Registry) -> ExitCode {
    if cell::is_cell() {
        return cell::run(&registry);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(why) => {
            // Help and version come this way too; a closed pipe is nobody's loss.
            let _ = why.print();
            return ExitCode::from(if why.use_stderr() { Code::Usage as u8 } else { Code::Ok as u8 });
        }
    };
    let outcome = runtime(&cli.verb).and_then(|runtime| {
        let outcome = runtime.block_on(dispatch(cli, registry));
        runtime.shutdown_timeout(EXIT_GRACE);
        outcome
    });
    finish(outcome)
}

fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code as u8),
        Err(failure) => {
            let text = failure.text();
            if !text.is_empty() {
                output::tell(text.trim_end());
            }
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Roles use all cores; whoever only asks needs none of its own.
fn runtime(verb: &Verb) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = match verb {
        Verb::Dev(_) | Verb::Worker(_) | Verb::Tracker(_) | Verb::Api(_) | Verb::Rebuild(_) | Verb::Bench(_) => {
            tokio::runtime::Builder::new_multi_thread()
        }
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build().map_err(|why| Failure::failed(format_args!("no runtime: {why}")))
}

async fn dispatch(cli: Cli, registry: Registry) -> Outcome {
    let globals = &cli.globals;
    if matches!(globals.output, Format::Mermaid | Format::Dot) && !matches!(cli.verb, Verb::Tree(_)) {
        return Err(Failure::usage("only `tree` draws pictures").hint("use `-o json`"));
    }
    match cli.verb {
        Verb::Dev(args) => dev::dev(args, globals, registry).await,
        Verb::Worker(args) => serve::worker(args, globals, registry).await,
        Verb::Tracker(args) => serve::tracker(args, globals, registry).await,
        Verb::Api(args) => serve::api(args, globals, registry).await,
        Verb::Bench(verb) => bench::bench(verb, globals).await,
        Verb::Topics(verb) => topics::topics(verb, globals, registry).await,
        Verb::Rebuild(args) => rebuild::rebuild(args, globals, registry).await,
        Verb::Offsets(verb) => offsets::offsets(verb, globals, registry).await,
        Verb::Doctor(args) => doctor::doctor(args, globals, registry).await,
        Verb::Submit(args) => submit::submit(*args, globals).await,
        Verb::Status(args) => status::status(args, globals).await,
        Verb::List(args) => list::list(args, globals).await,
        Verb::Children(args) => children::children(args, globals).await,
        Verb::Params(args) => params::params(args, globals).await,
        Verb::Tree(args) => tree::tree(args, globals).await,
        Verb::Watch(args) => watch::watch(args, globals).await,
        Verb::Why(args) => why::why(args, globals).await,
        Verb::History(args) => status::history(args, globals).await,
        Verb::Attachments(verb) => attachments::attachments(verb, globals).await,
        Verb::Log(args) => log::log(args, globals).await,
        Verb::Report(args) => report::report(args, globals).await,
        Verb::Cancel(args) => cancel::cancel(args, globals).await,
        Verb::Set(args) => update::set(args, globals).await,
        Verb::Retry(args) => retry::retry(args, globals).await,
        Verb::Dead(verb) => dead_letters::dead(verb, globals).await,
        Verb::Types(args) => types::types(args, globals).await,
        Verb::Schedules(verb) => schedules::schedules(verb, globals).await,
        Verb::Kill(verb) => kill_switch::kill(verb, globals).await,
        Verb::Workers(args) => workers::workers(args, globals).await,
        Verb::Completions(args) => completions::completions(&args, &globals.screen()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_parser_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_says_what_it_does() {
        for verb in Cli::command().get_subcommands() {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && !about.ends_with('.'), "`{}`: {about:?}", verb.get_name());
        }
    }
}
