//! `rebuild`: folds the log into another Redis while the first one serves, and says when and how to switch.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows, one_line, tell};
use super::serve::{OpsArgs, StartArgs};
use super::setup::{Setup, SetupOptions, told};
use crate::handlers::Registry;
use crate::runtime::Shutdown;
use crate::store::Store;
use crate::store::inspect::Inspect;
use crate::telemetry::init_logs;
use crate::tracker::rebuild::{
    self, Difference, Ending, Next, Rebuild, RebuildEvent, RebuildPlan, RebuildProgress, Refusal, Verified,
};

/// How often the progress is shown on a terminal.
const FRAME: Duration = Duration::from_millis(250);
/// How often it is told elsewhere.
const LINE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct RebuildArgs {
    /// The Redis to fold the log into: empty, or begun by an earlier rebuild
    #[arg(long, value_name = "URL", env = "KAFLEET_REBUILD_INTO", hide_env_values = true)]
    into: String,
    /// End when everything is folded and compared, instead of following the log until trackers take over
    #[arg(long)]
    no_follow: bool,
    /// Go on where retention has removed the beginning of trees that are still shown
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    start: StartArgs,
    #[command(flatten)]
    ops: OpsArgs,
}

pub async fn rebuild(args: RebuildArgs, globals: &Globals, registry: Registry) -> Outcome {
    // What it waits for is told; what passes while it folds is not.
    init_logs("error,kafleet::cli=warn");
    // It may run beside a tracker: it serves metrics only where that was asked for.
    let ops_listen = Some(args.ops.ops_listen.clone().unwrap_or_default());
    let wants =
        SetupOptions { ops_listen, unused: &["api", "types", "schedules", "callbacks", "email"], ..SetupOptions::default() };
    let parts = Setup::load(globals, registry, wants)?;
    let broker = parts.kafka()?;
    let (source, copy) = (parts.redis_here()?, parts.redis_at(&args.into)?);
    let place = copy.place().to_owned();
    let mut roles = parts.enter().await?;
    let partitions = parts.wait_for_kafka(&broker, args.start.start_timeout.into()).await?;
    let (source, copy) = (Arc::new(source), Arc::new(copy));
    let (serving, filled): (Arc<dyn Store>, Arc<dyn Store>) = (source.clone(), copy.clone());
    for store in [&serving, &filled] {
        parts.wait_for_store(store, args.start.start_timeout.into()).await?;
    }
    let compare: (Arc<dyn Inspect>, Arc<dyn Inspect>) = (source, copy);
    let setup = Rebuild {
        tracker: Arc::new(parts.tracker(broker, filled, partitions)),
        source: serving,
        compare: Some(compare),
        partial: args.partial,
        follow: !args.no_follow,
    };
    let outcome = run(setup, place, globals.screen(), &parts.shutdown).await;
    parts.shutdown.begin();
    while roles.join_next().await.is_some() {}
    outcome
}

async fn run(setup: Rebuild, place: String, screen: Output, shutdown: &Shutdown) -> Outcome {
    let plan = rebuild::preflight(&setup).await.map_err(refused)?;
    let mut show = Show::new(screen, place, setup.follow);
    show.begins(&plan)?;
    let mut running = rebuild::start(setup, plan).await.map_err(refused)?;
    let progress = running.progress.clone();
    let mut frames = tokio::time::interval(FRAME);
    loop {
        let step = {
            let mut next = std::pin::pin!(running.next(shutdown));
            loop {
                tokio::select! {
                    step = &mut next => break step,
                    _ = frames.tick() => show.progress(&progress)?,
                }
            }
        };
        match step {
            Ok(Next::RebuildEvent(what)) => show.told(what)?,
            Ok(Next::Ended(ending)) => return show.ended(ending),
            Err(refusal) => {
                show.bar.finish_and_clear();
                return Err(refused(refusal));
            }
        }
    }
}

fn refused(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Unfit(why) => told(Code::Failed, &why),
        Refusal::Unavailable(why) => told(Code::Unavailable, &why),
    }
}

/// What is shown of it.
struct Show {
    screen: Output,
    /// Where the copy is.
    place: String,
    follow: bool,
    bar: ProgressBar,
    lines: Lines,
    verified: Vec<Verified>,
    unverified: Vec<(u32, String)>,
    differing: Vec<u32>,
    ready: bool,
}

/// Progress where there is no terminal.
struct Lines {
    begun: Instant,
    last: Instant,
    /// Nothing new is told twice.
    said: (u64, u64),
}

impl Show {
    fn new(screen: Output, place: String, follow: bool) -> Self {
        let target = if screen.is_json() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let template = "{bar:24} {human_pos} of {human_len} events  {per_sec}  {msg}";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let now = Instant::now();
        let lines = Lines { begun: now, last: now, said: (0, 0) };
        let (verified, unverified, differing) = (Vec::new(), Vec::new(), Vec::new());
        Self { screen, place, follow, bar, lines, verified, unverified, differing, ready: false }
    }

    fn begins(&self, plan: &RebuildPlan) -> Result<(), Failure> {
        let places: i64 = plan.partitions.iter().map(|task| task.end - task.from).sum();
        let numbers: Vec<u32> = plan.partitions.iter().map(|task| task.number).collect();
        if self.screen.is_json() {
            return self.screen.json_line(&json!({
                "event": "begins", "into": self.place, "partitions": numbers, "events": places, "resumed": plan.resumed,
                "taken": plan.taken, "partial_trees": plan.partial_trees,
            }));
        }
        let resumed = if plan.resumed { "goes on folding" } else { "folds" };
        tell(format_args!("{resumed} {} events partitions into `{}`: {places} events to go", numbers.len(), self.place));
        if !plan.taken.is_empty() {
            tell(format_args!("trackers have {} of them already", plan.taken.len()));
        }
        if plan.partial_trees > 0 {
            tell(format_args!("{} trees began before the log does: they will be missing or partial", plan.partial_trees));
        }
        Ok(())
    }

    fn progress(&mut self, progress: &RebuildProgress) -> Result<(), Failure> {
        let ((passed, all), compared) = (progress.places(), progress.compared.load(Relaxed));
        if !self.screen.is_json() && !self.bar.is_hidden() {
            self.bar.set_length(all);
            self.bar.set_position(passed);
            let what = if self.ready { "following".to_owned() } else { format!("{compared} keys compared") };
            self.bar.set_message(what);
            return Ok(());
        }
        if self.lines.last.elapsed() < LINE || self.lines.said == (passed, compared) {
            return Ok(());
        }
        (self.lines.last, self.lines.said) = (Instant::now(), (passed, compared));
        let rate = (passed as f64 / self.lines.begun.elapsed().as_secs_f64().max(0.001)) as u64;
        if self.screen.is_json() {
            let line = json!({"event": "progress", "folded": passed, "of": all, "per_second": rate, "compared": compared});
            return self.screen.json_line(&line);
        }
        tell(format_args!("{passed} of {all} events folded, {rate} a second; {compared} keys compared"));
        Ok(())
    }

    fn told(&mut self, told: RebuildEvent) -> Result<(), Failure> {
        if self.screen.is_json() {
            self.screen.json_line(&document(&told, &self.place))?;
        }
        match told {
            RebuildEvent::Verified(verified) => self.verified.push(verified),
            RebuildEvent::Unverified { partition, why } => {
                self.say(&format!("partition {partition} was not compared: {}", one_line(&why)))?;
                self.unverified.push((partition, why));
            }
            RebuildEvent::Differs { partition, differences } => {
                self.differing.push(partition);
                for one in &differences {
                    self.say(&difference(partition, one))?;
                }
            }
            RebuildEvent::TakenOver { partition } => self.say(&format!("partition {partition} is a tracker's now"))?,
            RebuildEvent::Ready => {
                self.ready = true;
                self.compared()?;
                if self.follow {
                    self.say(&switch(&self.place))?;
                }
            }
        }
        Ok(())
    }

    /// For people, without a bar in between.
    fn say(&self, text: &str) -> Result<(), Failure> {
        if self.screen.is_json() { Ok(()) } else { self.bar.suspend(|| self.screen.line(text)) }
    }

    fn compared(&mut self) -> Result<(), Failure> {
        if self.screen.is_json() || self.verified.is_empty() {
            return Ok(());
        }
        self.verified.sort_by_key(|one| one.partition);
        let mut rows = Rows::new(["PARTITION", "SAME AT", "KEYS", "DIGEST"]);
        for one in &self.verified {
            let at = if one.fences.0 == one.fences.1 {
                one.fences.0.to_string()
            } else {
                format!("{} to {}", one.fences.0, one.fences.1)
            };
            let digest = Field::Text(format!("{:032x}", one.digest));
            rows.add([Field::Number(one.partition.into()), Field::Text(at), Field::Number(one.keys), digest]);
        }
        self.bar.suspend(|| self.screen.table(rows))
    }

    fn ended(&self, ending: Ending) -> Outcome {
        self.bar.finish_and_clear();
        if self.screen.is_json() {
            let how = match ending {
                Ending::TakenOver => "taken_over",
                Ending::Complete => "complete",
                Ending::Stopped => "stopped",
                Ending::Different => "different",
            };
            self.screen.json_line(&json!({"event": "ended", "how": how}))?;
        }
        match ending {
            Ending::TakenOver => {
                tell("trackers have taken over all partitions: the switch is done, the old store is not needed any more");
                Ok(Code::Ok)
            }
            Ending::Complete if self.unverified.is_empty() => Ok(Code::Ok),
            Ending::Complete => Err(Failure::failed(format_args!("{} partitions were not compared", self.unverified.len()))),
            Ending::Stopped if self.ready => {
                tell("stopped: nobody follows the log in the new store until trackers take over, or this runs again");
                Ok(Code::Ok)
            }
            Ending::Stopped => {
                Err(Failure::failed("stopped before everything was folded").hint("run the same again: it goes on where it was"))
            }
            Ending::Different => {
                let which: Vec<String> = self.differing.iter().map(ToString::to_string).collect();
                Err(Failure::failed(format_args!("the copy is not what the source is in partition {}", which.join(", "))).hint(
                    "do not switch yet: something has written into one of the stores, or the log was not whole; empty the new one and run this again, and if it says the same, the source is what is wrong",
                ))
            }
        }
    }
}

fn difference(partition: u32, one: &Difference) -> String {
    let Difference { key, fence, source, copy } = one;
    format!("partition {partition}, at offset {fence}: `{}`\n  source  {source}\n  copy    {copy}", one_line(key))
}

fn steps(place: &str) -> [String; 2] {
    [
        format!("restart every api with the new store (`[redis] url` or KAFLEET_REDIS): {place}"),
        "then restart the trackers with it, one by one".to_owned(),
    ]
}

fn switch(place: &str) -> String {
    let [apis, trackers] = steps(place);
    format!(
        "ready to switch, while this goes on:\n  1. {apis}\n  2. {trackers}\nit ends by itself when trackers have all partitions; until then it follows the log in the new store"
    )
}

fn document(told: &RebuildEvent, place: &str) -> Value {
    match told {
        RebuildEvent::Verified(Verified { partition, fences: (from, to), keys, digest }) => json!({
            "event": "verified", "partition": partition, "from": from, "to": to, "keys": keys,
            "digest": format!("{digest:032x}"),
        }),
        RebuildEvent::Unverified { partition, why } => json!({"event": "unverified", "partition": partition, "why": why}),
        RebuildEvent::Differs { partition, differences } => {
            let of = |one: &Difference| json!({"key": one.key, "at": one.fence, "source": one.source, "copy": one.copy});
            let differences: Vec<Value> = differences.iter().map(of).collect();
            json!({"event": "differs", "partition": partition, "differences": differences})
        }
        RebuildEvent::TakenOver { partition } => json!({"event": "taken_over", "partition": partition}),
        RebuildEvent::Ready => json!({"event": "ready", "steps": steps(place)}),
    }
}
