//! The command line: one thin function per verb.
//!
//! Client verbs (`submit`, `status`, `tree`, …) talk REST to an API and use neither Kafka nor Redis. Roles (`dev`,
//! `worker`, `tracker`, `api`, `all`) and setup verbs (`topics`, `offsets`, `doctor`) are wired in `setup`, and only there.
//! Data goes to stdout, messages go to stderr; the exit codes are `exit::Code`.

use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use kafleet_handlers::Registry;
use kafleet_worker::child::child_main;

mod app_attach;
mod app_target;
mod apps;
mod attachments;
mod bench;
mod bulk;
mod cancel;
mod children;
mod client;
mod completions;
mod dead_letters;
mod dev;
mod doctor;
mod durations;
mod exit;
mod export;
mod field_args;
mod globals;
mod gone_types;
mod init;
mod kill_switch;
mod list;
mod listed_types;
mod listener;
mod log;
mod metrics;
mod offsets;
mod outbox;
mod output;
mod params;
mod rebuild;
mod reload;
mod reload_trigger;
mod report;
mod request_reload;
mod retry;
mod schedules;
mod serve;
mod setup;
mod start;
mod start_error;
mod stats;
mod status;
mod submit;
mod task_lines;
mod task_view;
mod topics;
mod traces;
mod tree;
mod types;
mod unique;
mod update;
mod views;
mod wait;
mod watch;
mod why;
mod workers;

use exit::{Code, Failure, Outcome};
use globals::{Format, Globals};

/// Maximum delay of the exit by work that ignores the shutdown.
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
    /// Run a whole fleet in this process, in memory, with a sample task or an app
    Dev(dev::DevArgs),
    /// Write a new project in Python, TypeScript or Rust: tasks, tests, settings and a README
    Init(init::InitArgs),
    /// Run a worker: consumes and runs tasks
    Worker(serve::WorkerArgs),
    /// Run a tracker: projects events into Redis
    Tracker(serve::TrackerArgs),
    /// Run the REST API
    Api(serve::ApiArgs),
    /// Run a worker, a tracker and the API in this process, and create the topics: for a small site
    All(serve::AllArgs),
    /// Publish tasks that were submitted in transactions of Postgres, or print the schema for it
    Outbox(outbox::OutboxArgs),
    /// Create and update the fleet's topics
    #[command(subcommand)]
    Topics(topics::TopicsVerb),
    /// Ask the roles in this container or on this machine to reload their configuration
    Reload,
    /// Build the state in another Redis from the log, to switch to without downtime
    Rebuild(rebuild::RebuildArgs),
    /// Manage the committed offsets of types: init, move
    #[command(subcommand)]
    Offsets(offsets::OffsetsVerb),
    /// Check apps: programs in any language that declare task types
    #[command(subcommand)]
    App(apps::AppVerb),
    /// Check configuration, Kafka, topics, Redis and API
    Doctor(doctor::DoctorArgs),
    /// Submit a task, or many from a file or stdin
    Submit(Box<submit::SubmitArgs>),
    /// Show a task
    Status(status::StatusArgs),
    /// List, sort or export tasks, newest first
    #[command(visible_alias = "tasks")]
    List(list::ListArgs),
    /// Manage named views of tasks: list, set, delete
    Views(views::ViewsArgs),
    /// List the direct children of a task
    Children(children::ChildrenArgs),
    /// Show the params of a task
    Params(params::ParamsArgs),
    /// Draw a task and its descendants
    Tree(tree::TreeArgs),
    /// Follow a task, a tree, a type or all tasks
    Watch(watch::WatchArgs),
    /// Explain why a task is in its state
    Why(why::WhyArgs),
    /// Show the events of a task
    History(status::HistoryArgs),
    /// Manage the attachments of a task: list, put, get, delete
    #[command(subcommand)]
    Attachments(attachments::AttachmentsVerb),
    /// Show or follow the log of a task, or append to it
    #[command(visible_alias = "logs")]
    Log(log::LogArgs),
    /// Report the state of an external task
    Report(report::ReportArgs),
    /// Show which tasks stand for a key of unique tasks, or forget the key: clear
    Unique(unique::UniqueArgs),
    /// Cancel a task and its descendants
    Cancel(cancel::CancelArgs),
    /// Change a task's name, tags, options, times and limits
    Update(update::UpdateArgs),
    /// Run an ended task again, or only its failed descendants
    Retry(retry::RetryArgs),
    /// Start tasks now that wait for their start or their next attempt
    Start(start::StartArgs),
    /// Cancel, retry or start all tasks that match a search: cancel, retry, retry-failed, start-now, list
    #[command(subcommand)]
    Bulk(bulk::BulkVerb),
    /// Manage dead letters: list, show, redrive, drop
    #[command(subcommand, visible_alias = "dlq")]
    DeadLetters(dead_letters::DeadLettersVerb),
    /// List the task types, pause, resume and limit them
    Types(types::TypesArgs),
    /// List the types with a backlog, worst first: what comes in and goes out, and when it is drained
    Backlog(types::BacklogArgs),
    /// Manage kill switches, which cancel tasks by tag or id prefix: on, off, list
    #[command(subcommand)]
    KillSwitch(kill_switch::KillSwitchVerb),
    /// Manage recurring tasks: create, list, show, change, delete, pause, resume, trigger, backfill, next, apply
    #[command(subcommand)]
    Schedules(schedules::SchedulesVerb),
    /// List the workers and their running tasks
    Workers(workers::WorkersArgs),
    /// Show counts and durations over time by type
    Stats(stats::StatsArgs),
    /// List the failed tasks by type and error
    Failures(stats::FailuresArgs),
    /// List the audit log: requests of users, newest first
    Audit(stats::AuditArgs),
    /// Measure this build on this machine
    #[command(subcommand)]
    Bench(bench::BenchVerb),
    /// Print the dashboard for Grafana or the alerts for Prometheus
    #[command(subcommand)]
    Metrics(metrics::MetricsVerb),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

/// Runs the verb on the command line with the Rust types of `registry` and the types of the configuration.
pub fn run(registry: Registry) -> ExitCode {
    if child_main::is_child_process() {
        return child_main::run(&registry);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are printed here too; a closed pipe is ignored.
            let error = with_plain_usage(suggest_renamed_verb(error));
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Code::Usage as u8 } else { Code::Ok as u8 });
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
                output::eprint_line(text.trim_end());
            }
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Returns a multi-threaded runtime for roles, a single-threaded one for client verbs.
fn runtime(verb: &Verb) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = match verb {
        Verb::Dev(_)
        | Verb::Worker(_)
        | Verb::Tracker(_)
        | Verb::Api(_)
        | Verb::All(_)
        | Verb::Outbox(_)
        | Verb::Rebuild(_)
        | Verb::Bench(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build().map_err(|error| Failure::failed(format_args!("no runtime: {error}")))
}

/// Renamed verbs: parent verb, former name, present name.
const RENAMED_VERBS: [(&str, &str, &str); 5] = [
    ("", "dead", "dead-letters"),
    ("", "kill", "kill-switch"),
    ("", "set", "update"),
    ("schedules", "run", "trigger"),
    ("bench", "foreign", "unannounced"),
];

/// Adds the present name of a renamed verb to the error.
fn suggest_renamed_verb(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let is_below = |parent: &str| parent.is_empty() || usage.split_whitespace().any(|word| word == parent);
    let renamed = RENAMED_VERBS.iter().find(|(parent, former, _)| former == typed && is_below(parent));
    if let Some((_, _, name)) = renamed {
        let suggestion = ContextValue::Strings(vec![(*name).to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, suggestion);
    }
    error
}

/// Replaces the usage in the error, which lists each option set by an environment variable as if it were required.
fn with_plain_usage(mut error: clap::Error) -> clap::Error {
    let Some(shown) = error.get(ContextKind::Usage).map(ToString::to_string) else { return error };
    let mut command = Cli::command();
    command.build();
    for word in shown.split_whitespace().skip_while(|word| *word != "kafleet").skip(1) {
        let Some(verb) = command.find_subcommand(word).cloned() else { break };
        command = verb;
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    error
}

async fn dispatch(cli: Cli, registry: Registry) -> Outcome {
    let globals = &cli.globals;
    if globals.format == Format::Mermaid && !matches!(cli.verb, Verb::Tree(_)) {
        return Err(Failure::usage("only `tree` draws diagrams").hint("use `-o json`"));
    }
    match cli.verb {
        Verb::Dev(args) => dev::dev(args, globals, registry).await,
        Verb::Init(args) => init::init(&args, &globals.output()),
        Verb::Worker(args) => serve::worker(args, globals, registry).await,
        Verb::Tracker(args) => serve::tracker(args, globals, registry).await,
        Verb::Api(args) => serve::api(args, globals, registry).await,
        Verb::All(args) => serve::all(args, globals, registry).await,
        Verb::Outbox(args) => outbox::outbox(args, globals, registry).await,
        Verb::Bench(verb) => bench::bench(verb, globals).await,
        Verb::Topics(verb) => topics::topics(verb, globals, registry).await,
        Verb::Reload => request_reload::reload(),
        Verb::Rebuild(args) => rebuild::rebuild(args, globals, registry).await,
        Verb::Offsets(verb) => offsets::offsets(verb, globals, registry).await,
        Verb::App(verb) => apps::app(verb, globals, registry).await,
        Verb::Doctor(args) => doctor::doctor(args, globals, registry).await,
        Verb::Submit(args) => submit::submit(*args, globals).await,
        Verb::Status(args) => status::status(args, globals).await,
        Verb::List(args) => list::list(args, globals).await,
        Verb::Views(args) => views::views(args, globals).await,
        Verb::Children(args) => children::children(args, globals).await,
        Verb::Params(args) => params::params(args, globals).await,
        Verb::Tree(args) => tree::tree(args, globals).await,
        Verb::Watch(args) => watch::watch(args, globals).await,
        Verb::Why(args) => why::why(args, globals).await,
        Verb::History(args) => status::history(args, globals).await,
        Verb::Attachments(verb) => attachments::attachments(verb, globals).await,
        Verb::Log(args) => log::log(args, globals).await,
        Verb::Report(args) => report::report(args, globals).await,
        Verb::Unique(args) => unique::unique(args, globals).await,
        Verb::Cancel(args) => cancel::cancel(args, globals).await,
        Verb::Update(args) => update::update(args, globals).await,
        Verb::Retry(args) => retry::retry(args, globals).await,
        Verb::Start(args) => start::start(args, globals).await,
        Verb::Bulk(verb) => bulk::bulk(verb, globals).await,
        Verb::DeadLetters(verb) => dead_letters::dead_letters(verb, globals).await,
        Verb::Types(args) => types::types(args, globals).await,
        Verb::Backlog(args) => types::backlog(args, globals).await,
        Verb::Schedules(verb) => schedules::schedules(verb, globals, registry).await,
        Verb::KillSwitch(verb) => kill_switch::kill_switch(verb, globals).await,
        Verb::Workers(args) => workers::workers(args, globals).await,
        Verb::Stats(args) => stats::stats(args, globals).await,
        Verb::Failures(args) => stats::failures(args, globals).await,
        Verb::Audit(args) => stats::audit(args, globals).await,
        Verb::Metrics(verb) => metrics::metrics(&verb, &globals.output()),
        Verb::Completions(args) => completions::completions(&args, &globals.output()),
    }
}

#[cfg(test)]
mod documented;

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_handlers::program_env::OWN_SECRETS;
    use kafleet_model::units::duration::Millis;

    #[test]
    fn parser_definition_is_valid() {
        Cli::command().debug_assert();
    }

    fn arguments<'a>(command: &'a clap::Command, all: &mut Vec<(String, &'a clap::Arg)>) {
        all.extend(command.get_arguments().map(|arg| (command.get_name().to_owned(), arg)));
        command.get_subcommands().for_each(|verb| arguments(verb, all));
    }

    /// [`Millis`] is parsed as a person types it: with its unit.
    #[test]
    fn every_duration_needs_its_unit() {
        let command = Cli::command();
        let mut all = Vec::new();
        arguments(&command, &mut all);
        let is_duration = |arg: &clap::Arg| {
            let names = arg.get_value_names().unwrap_or_default();
            arg.get_action().takes_values() && names.iter().any(|name| name.contains("DURATION"))
        };
        let durations: Vec<_> = all.into_iter().filter(|(_, arg)| is_duration(arg)).collect();
        assert!(durations.len() >= 15, "{}", durations.len());
        for (verb, arg) in durations {
            let is_millis = arg.get_value_parser().type_id() == std::any::TypeId::of::<Millis>();
            assert!(is_millis, "`{verb} --{}`", arg.get_id());
        }
        let error = Cli::try_parse_from(["kafleet", "submit", "echo", "--timeout", "30"]).unwrap_err().to_string();
        assert!(error.contains("`30` has no unit: write, for example, `30s`"), "{error}");
    }

    #[test]
    fn programs_do_not_inherit_variables_whose_values_are_hidden() {
        fn hidden(command: &clap::Command) -> Vec<String> {
            let variables = command.get_arguments().filter(|argument| argument.is_hide_env_values_set());
            let variables = variables.filter_map(|argument| Some(argument.get_env()?.to_str()?.to_owned()));
            variables.chain(command.get_subcommands().flat_map(hidden)).collect()
        }
        let hidden = hidden(&Cli::command());
        assert!(hidden.len() >= 3, "{hidden:?}");
        let inherited: Vec<_> = hidden.iter().filter(|name| !OWN_SECRETS.contains(&name.as_str())).collect();
        assert!(inherited.is_empty(), "{inherited:?}");
    }

    #[test]
    fn former_verb_is_refused_with_the_new_name() {
        for (line, name) in [
            ("dead list", "dead-letters"),
            ("kill on a", "kill-switch"),
            ("set a --name b", "update"),
            ("schedules run nightly", "trigger"),
            ("bench foreign", "unannounced"),
        ] {
            let words = std::iter::once("kafleet").chain(line.split_whitespace());
            let error = suggest_renamed_verb(Cli::try_parse_from(words).unwrap_err()).to_string();
            let suggested: Vec<&str> = error.lines().filter(|line| line.contains("tip:")).collect();
            assert!(suggested.len() == 1 && suggested[0].contains(&format!("'{name}'")), "{line}: {error}");
        }
        let other = suggest_renamed_verb(Cli::try_parse_from(["kafleet", "run"]).unwrap_err()).to_string();
        assert!(!other.contains("trigger"), "{other}");
    }

    #[test]
    fn every_verb_has_a_description() {
        for verb in Cli::command().get_subcommands() {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && !about.ends_with('.'), "`{}`: {about:?}", verb.get_name());
        }
    }
}
