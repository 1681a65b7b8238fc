//! `rebuild`: builds the state in another Redis from the log while the first one serves, and reports when to switch.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kafleet_handlers::Registry;
use kafleet_runtime::Shutdown;
use kafleet_store::Store;
use kafleet_store::inspect::Inspect;
use kafleet_telemetry::init_logs;
use kafleet_tracker::rebuild::{
    self, Difference, Ending, Next, Rebuild, RebuildError, RebuildEvent, RebuildPlan, RebuildProgress,
    VerifiedPartition,
};
use serde_json::{Value, json};

use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows, eprint_line, one_line};
use super::serve::{OpsArgs, StartArgs};
use super::setup::{Setup, SetupOptions};

/// Interval of progress updates on a terminal.
const BAR_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of progress lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct RebuildArgs {
    /// Redis to build the state in: empty, or filled by an earlier rebuild
    #[arg(long, value_name = "URL", env = "KAFLEET_REBUILD_INTO", hide_env_values = true)]
    into: String,
    /// Exit once the copy is complete and verified, instead of following the log until trackers take over
    #[arg(long)]
    no_follow: bool,
    /// Proceed although retention has removed the first events of trees that are still listed
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    start: StartArgs,
    #[command(flatten)]
    ops: OpsArgs,
}

pub(super) async fn rebuild(args: RebuildArgs, globals: &Globals, registry: Registry) -> Outcome {
    // Reasons for waiting are logged; transient errors of the projection are not.
    init_logs("error,kafleet::cli=warn");
    // It may run beside a tracker on the same host, so the ops endpoint is off unless asked for.
    let ops_listen = Some(args.ops.ops_listen.clone().unwrap_or_default());
    let options = SetupOptions {
        ops_listen,
        unused: &["api", "outbox", "apps", "types", "schedules", "callbacks", "email"],
        ..SetupOptions::default()
    };
    let setup = Setup::load(globals, registry, options)?;
    let broker = setup.kafka()?;
    let source = setup.configured_redis()?;
    let copy = setup.redis_at(&args.into)?;
    let target = copy.display_url().to_owned();
    let mut roles = setup.start_ops().await?;
    let topology = setup.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    let source = Arc::new(source);
    let copy = Arc::new(copy);
    let serving: Arc<dyn Store> = source.clone();
    let filled: Arc<dyn Store> = copy.clone();
    for store in [&serving, &filled] {
        setup.wait_for_store(store, args.start.start_timeout.into()).await?;
    }
    let compare: (Arc<dyn Inspect>, Arc<dyn Inspect>) = (source, copy);
    let rebuild = Rebuild {
        tracker: Arc::new(setup.tracker(broker, filled, topology)),
        source: serving,
        compare: Some(compare),
        partial: args.partial,
        follow: !args.no_follow,
    };
    let outcome = run(rebuild, target, globals.output(), &setup.shutdown).await;
    setup.shutdown.begin();
    while roles.join_next().await.is_some() {}
    outcome
}

async fn run(setup: Rebuild, target: String, output: Output, shutdown: &Shutdown) -> Outcome {
    let plan = rebuild::preflight(&setup).await.map_err(to_failure)?;
    let mut view = RebuildView::new(output, target, setup.follow);
    view.print_plan(&plan)?;
    let mut running = rebuild::start(setup, plan).await.map_err(to_failure)?;
    let progress = running.progress.clone();
    let mut frames = tokio::time::interval(BAR_INTERVAL);
    loop {
        let step = {
            let mut next = std::pin::pin!(running.next(shutdown));
            loop {
                tokio::select! {
                    step = &mut next => break step,
                    _ = frames.tick() => view.progress(&progress)?,
                }
            }
        };
        match step {
            Ok(Next::RebuildEvent(event)) => view.show_event(event)?,
            Ok(Next::Ended(ending)) => return view.finish(ending),
            Err(refusal) => {
                view.bar.finish_and_clear();
                return Err(to_failure(refusal));
            }
        }
    }
}

/// Reports partitions and trees that are not built from the log.
fn eprint_exceptions(plan: &RebuildPlan) {
    if !plan.taken.is_empty() {
        eprint_line(format_args!("trackers have already taken over {} of them", plan.taken.len()));
    }
    if plan.partial_trees > 0 {
        eprint_line(format_args!(
            "{} trees started before the log begins: they will be missing or incomplete",
            plan.partial_trees
        ));
    }
}

fn to_failure(refusal: RebuildError) -> Failure {
    match refusal {
        RebuildError::Unsuitable(error) => Failure::of_text(Code::Failed, &error),
        RebuildError::Unavailable(error) => Failure::of_text(Code::Unavailable, &error),
    }
}

const fn ending_name(ending: Ending) -> &'static str {
    match ending {
        Ending::TakenOver => "taken_over",
        Ending::Complete => "complete",
        Ending::Stopped => "stopped",
        Ending::Different => "different",
    }
}

/// Progress and results, printed as they arrive.
struct RebuildView {
    output: Output,
    /// Address of the copy, for messages.
    target: String,
    follow: bool,
    bar: ProgressBar,
    lines: ProgressLines,
    verified: Vec<VerifiedPartition>,
    unverified: Vec<(u32, String)>,
    differing: Vec<u32>,
    ready: bool,
}

/// State of the progress lines that replace the bar without a terminal.
struct ProgressLines {
    begun: Instant,
    last: Instant,
    /// Events projected and keys compared in the last line: unchanged figures are not repeated.
    reported: (u64, u64),
}

impl RebuildView {
    fn new(output: Output, target: String, follow: bool) -> Self {
        let draw_target = if output.is_json() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), draw_target);
        let template = "{bar:24} {human_pos} of {human_len} events  {per_sec}  {msg}";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let now = Instant::now();
        let lines = ProgressLines { begun: now, last: now, reported: (0, 0) };
        let verified = Vec::new();
        let unverified = Vec::new();
        let differing = Vec::new();
        Self { output, target, follow, bar, lines, verified, unverified, differing, ready: false }
    }

    fn print_plan(&self, plan: &RebuildPlan) -> Result<(), Failure> {
        let events: i64 = plan.partitions.iter().map(|task| task.end - task.from).sum();
        let numbers: Vec<u32> = plan.partitions.iter().map(|task| task.number).collect();
        if self.output.is_json() {
            return self.output.json_line(&json!({
                "event": "begins", "into": self.target, "partitions": numbers, "events": events, "resumed": plan.resumed,
                "taken": plan.taken, "partial_trees": plan.partial_trees,
            }));
        }
        let verb = if plan.resumed { "resuming the projection of" } else { "projecting" };
        eprint_line(format_args!(
            "{verb} {} events partitions into `{}`: {events} events to go",
            numbers.len(),
            self.target
        ));
        eprint_exceptions(plan);
        Ok(())
    }

    fn progress(&mut self, progress: &RebuildProgress) -> Result<(), Failure> {
        let (passed, all) = progress.offsets();
        let compared = progress.compared.load(Relaxed);
        if !self.output.is_json() && !self.bar.is_hidden() {
            self.update_bar(passed, all, compared);
            return Ok(());
        }
        if self.lines.last.elapsed() < LINE_INTERVAL || self.lines.reported == (passed, compared) {
            return Ok(());
        }
        self.lines.last = Instant::now();
        self.lines.reported = (passed, compared);
        let rate = (passed as f64 / self.lines.begun.elapsed().as_secs_f64().max(0.001)) as u64;
        if self.output.is_json() {
            let line =
                json!({"event": "progress", "folded": passed, "of": all, "per_second": rate, "compared": compared});
            return self.output.json_line(&line);
        }
        eprint_line(format_args!("{passed} of {all} events projected, {rate} a second; {compared} keys compared"));
        Ok(())
    }

    fn update_bar(&self, passed: u64, all: u64, compared: u64) {
        self.bar.set_length(all);
        self.bar.set_position(passed);
        let message = if self.ready { "following".to_owned() } else { format!("{compared} keys compared") };
        self.bar.set_message(message);
    }

    fn show_event(&mut self, event: RebuildEvent) -> Result<(), Failure> {
        if self.output.is_json() {
            self.output.json_line(&document(&event, &self.target))?;
        }
        match event {
            RebuildEvent::Verified(verified) => self.verified.push(verified),
            RebuildEvent::Unverified { partition, error } => {
                self.print_line(&format!("partition {partition} was not compared: {}", one_line(&error)))?;
                self.unverified.push((partition, error));
            }
            RebuildEvent::Differs { partition, differences } => {
                self.differing.push(partition);
                for key_difference in &differences {
                    self.print_line(&difference(partition, key_difference))?;
                }
            }
            RebuildEvent::TakenOver { partition } => {
                self.print_line(&format!("partition {partition}: a tracker has taken over"))?;
            }
            RebuildEvent::Ready => {
                self.ready = true;
                self.compared()?;
                if self.follow {
                    self.print_line(&switch(&self.target))?;
                }
            }
        }
        Ok(())
    }

    /// Prints a line for people, above the progress bar.
    fn print_line(&self, text: &str) -> Result<(), Failure> {
        if self.output.is_json() { Ok(()) } else { self.bar.suspend(|| self.output.line(text)) }
    }

    fn compared(&mut self) -> Result<(), Failure> {
        if self.output.is_json() || self.verified.is_empty() {
            return Ok(());
        }
        self.verified.sort_by_key(|verified| verified.partition);
        let mut rows = Rows::new(["PARTITION", "SAME AT", "KEYS", "DIGEST"]);
        for verified in &self.verified {
            let at = if verified.checkpoints.0 == verified.checkpoints.1 {
                verified.checkpoints.0.to_string()
            } else {
                format!("{} to {}", verified.checkpoints.0, verified.checkpoints.1)
            };
            let digest = Field::Text(format!("{:032x}", verified.digest));
            rows.add([Field::Number(verified.partition.into()), Field::Text(at), Field::Number(verified.keys), digest]);
        }
        self.bar.suspend(|| self.output.table(rows))
    }

    fn finish(&self, ending: Ending) -> Outcome {
        self.bar.finish_and_clear();
        if self.output.is_json() {
            self.output.json_line(&json!({"event": "ended", "how": ending_name(ending)}))?;
        }
        match ending {
            Ending::TakenOver => {
                eprint_line(
                    "trackers have taken over all partitions: the switch is complete, the old store is no longer needed",
                );
                Ok(Code::Ok)
            }
            Ending::Complete if self.unverified.is_empty() => Ok(Code::Ok),
            Ending::Complete => {
                Err(Failure::failed(format_args!("{} partitions were not compared", self.unverified.len())))
            }
            Ending::Stopped if self.ready => {
                eprint_line("stopped: the new store is not updated until trackers take over, or this is run again");
                Ok(Code::Ok)
            }
            Ending::Stopped => Err(Failure::failed("stopped before the copy was complete")
                .hint("run the same command again: it resumes where it stopped")),
            Ending::Different => Err(self.difference_failure()),
        }
    }

    fn difference_failure(&self) -> Failure {
        let which: Vec<String> = self.differing.iter().map(ToString::to_string).collect();
        Failure::failed(format_args!("the copy differs from the source in partition {}", which.join(", "))).hint(
            "do not switch yet: something else wrote to one of the stores, or the log was incomplete; empty the new store and run this again; if the result is the same, the source is wrong",
        )
    }
}

fn difference(partition: u32, difference: &Difference) -> String {
    let Difference { key, checkpoint, source, copy } = difference;
    format!("partition {partition}, at offset {checkpoint}: `{}`\n  source  {source}\n  copy    {copy}", one_line(key))
}

fn steps(target: &str) -> [String; 2] {
    [
        format!("restart every API with the new store (`[redis] url` or KAFLEET_REDIS): {target}"),
        "then restart the trackers with it, one by one".to_owned(),
    ]
}

fn switch(target: &str) -> String {
    let [apis, trackers] = steps(target);
    format!(
        "ready to switch while this keeps running:\n  1. {apis}\n  2. {trackers}\nthis exits once trackers have taken over all partitions; until then it keeps the new store up to date"
    )
}

fn document(event: &RebuildEvent, target: &str) -> Value {
    match event {
        RebuildEvent::Verified(VerifiedPartition { partition, checkpoints: (from, to), keys, digest }) => json!({
            "event": "verified", "partition": partition, "from": from, "to": to, "keys": keys,
            "digest": format!("{digest:032x}"),
        }),
        RebuildEvent::Unverified { partition, error } => {
            json!({"event": "unverified", "partition": partition, "why": error})
        }
        RebuildEvent::Differs { partition, differences } => {
            let of = |one: &Difference| json!({"key": one.key, "at": one.checkpoint, "source": one.source, "copy": one.copy});
            let differences: Vec<Value> = differences.iter().map(of).collect();
            json!({"event": "differs", "partition": partition, "differences": differences})
        }
        RebuildEvent::TakenOver { partition } => json!({"event": "taken_over", "partition": partition}),
        RebuildEvent::Ready => json!({"event": "ready", "steps": steps(target)}),
    }
}
