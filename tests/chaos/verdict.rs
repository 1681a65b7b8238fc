//! The verdict of a run: printed, as JSON, and as a page of the documentation.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::faults::{Kind, RECOVERY, Row};
use crate::load::Round;
use crate::oracle::Fired;

#[derive(Serialize)]
pub struct Verdict {
    pub seed: u64,
    pub date: String,
    pub command: String,
    pub machine: BTreeMap<&'static str, String>,
    pub lasted_s: f64,
    pub trees: usize,
    pub tasks: usize,
    pub executions: usize,
    pub probes: usize,
    pub lost: Vec<String>,
    pub wrong_rollups: Vec<String>,
    pub wrong_counts: Vec<String>,
    /// The same three after everything was folded again into an empty Redis.
    pub wrong_when_folded_again: Vec<String>,
    pub fired: Fired,
    pub duplicates: BTreeMap<&'static str, usize>,
    /// What is known of the repeats that nothing explains.
    pub unexplained: Vec<String>,
    pub beyond_window: Vec<String>,
    pub again_after_a_stop: Vec<String>,
    /// Roles that ended without having been told to.
    pub ended_by_themselves: Vec<String>,
    pub longest_silence_ms: i64,
    /// The fault that was on, or the last one before.
    pub longest_silence_during: Option<Kind>,
    /// Milliseconds that a round of probes took in quiet and in all: the median, the longest.
    pub rounds_ms: [i64; 2],
    pub faults: Vec<Row>,
}

impl Verdict {
    /// What must not be, in lines; empty where all held.
    pub fn broken(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut tell = |what: &str, found: &[String]| {
            if !found.is_empty() {
                lines.push(format!("{what}: {}", found.len()));
                lines.extend(found.iter().take(10).map(|line| format!("  {line}")));
            }
        };
        tell("lost", &self.lost);
        tell("wrong rollups", &self.wrong_rollups);
        tell("wrong counts", &self.wrong_counts);
        tell("wrong after a fold into an empty Redis", &self.wrong_when_folded_again);
        tell("timers and effects not fired once", &self.fired.wrong);
        tell("repeats beyond a window", &self.beyond_window);
        tell("finished, and done again after a stop in order", &self.again_after_a_stop);
        let never = self.faults.iter().filter(|row| row.recovered_in_ms.is_none() || row.well_after_ms.is_none());
        let never: Vec<String> = never.map(|row| format!("{} ({})", row.kind.words(), row.hit)).collect();
        tell(&format!("not recovered within {} s", RECOVERY.as_secs()), &never);
        lines
    }

    fn sums(&self) -> Vec<(&'static str, String)> {
        let fired = &self.fired;
        let silence = self.longest_silence_during.map_or(String::new(), |kind| format!(" ({})", kind.words()));
        vec![
            ("trees, tasks, attempts", format!("{}, {}, {}", self.trees, self.tasks, self.executions)),
            ("lost", self.lost.len().to_string()),
            ("wrong rollups", self.wrong_rollups.len().to_string()),
            ("wrong counts", self.wrong_counts.len().to_string()),
            ("wrong after a fold into an empty Redis", self.wrong_when_folded_again.len().to_string()),
            (
                "fired: timers, continuations, retries, scheduled times",
                format!("{}, {}, {}, {}", fired.timers, fired.continuations, fired.retries, fired.scheduled),
            ),
            ("of these not exactly once", fired.wrong.len().to_string()),
            ("attempts made again", self.duplicates.values().sum::<usize>().to_string()),
            ("of these beyond a window", self.beyond_window.len().to_string()),
            ("of these finished by a worker that was stopped in order", self.again_after_a_stop.len().to_string()),
            ("processes that ended by themselves", self.ended_by_themselves.len().to_string()),
            ("longest time without progress", format!("{}{silence}", seconds(self.longest_silence_ms))),
            ("a probe of all partitions, median and longest", self.rounds_ms.map(seconds).join(", ")),
        ]
    }

    pub fn print(&self) {
        println!("\nchaos, seed {}, {:.0} s, {} faults", self.seed, self.lasted_s, self.faults.len());
        for row in &self.faults {
            let (recovered, well) = (maybe(row.recovered_in_ms), maybe(row.well_after_ms));
            let lasted = seconds(row.ended_ms - row.begun_ms);
            println!(
                "  {:32} {lasted:>7}  recovered in {recovered:>7}, well {well:>7} after its end  {}",
                row.kind.words(),
                row.hit
            );
        }
        for (what, count) in self.sums() {
            println!("  {what:56} {count}");
        }
        for (cause, count) in &self.duplicates {
            println!("    made again, {cause}: {count}");
        }
        for line in &self.unexplained {
            println!("  made again, and no fault was near: {line}");
        }
        for line in &self.ended_by_themselves {
            println!("  ended by itself: {line}");
        }
        for line in self.broken() {
            println!("  BROKEN {line}");
        }
        println!("{}", serde_json::to_string(self).unwrap());
    }

    /// The page of the documentation.
    pub fn publish(&self, file: &Path) {
        let mut page = String::from(INTRODUCTION);
        let line = |page: &mut String, text: &str| writeln!(page, "{text}").unwrap();
        line(&mut page, &format!("\n## The run of {}\n", self.date));
        line(&mut page, &format!("```sh\n{}\n```\n", self.command));
        line(&mut page, "| | |\n|---|---|");
        for (what, value) in &self.machine {
            line(&mut page, &format!("| {what} | {value} |"));
        }
        line(&mut page, &format!("| lasted | {:.1} min, {} faults |", self.lasted_s / 60.0, self.faults.len()));
        let broken = self.broken();
        line(&mut page, &format!("\n## Verdict: {}\n", if broken.is_empty() { "everything held" } else { "broken" }));
        line(&mut page, "| | |\n|---|---|");
        for (what, count) in self.sums() {
            line(&mut page, &format!("| {what} | {count} |"));
        }
        for text in &broken {
            line(&mut page, &format!("\n    {text}"));
        }
        self.publish_repeats(&mut page);
        self.publish_faults(&mut page);
        std::fs::write(file, page).unwrap();
    }

    fn publish_repeats(&self, page: &mut String) {
        writeln!(page, "\n## Attempts that were made again, by cause\n\n{REPEATS}\n\n| cause | attempts |\n|---|---|").unwrap();
        for (cause, count) in &self.duplicates {
            writeln!(page, "| {cause} | {count} |").unwrap();
        }
    }

    fn publish_faults(&self, page: &mut String) {
        writeln!(page, "\n## Faults\n\n{FAULTS}\n\n{HEAD}").unwrap();
        let mut kinds = BTreeMap::<Kind, Vec<&Row>>::new();
        for row in &self.faults {
            kinds.entry(row.kind).or_default().push(row);
        }
        for (kind, rows) in kinds {
            let lasted = spread(rows.iter().map(|row| row.ended_ms - row.begun_ms).collect());
            let recovered = spread(rows.iter().filter_map(|row| row.recovered_in_ms).collect());
            let well = spread(rows.iter().filter_map(|row| row.well_after_ms).collect());
            writeln!(page, "| {} | {} | {lasted} | {recovered} | {well} |", kind.words(), rows.len()).unwrap();
        }
    }
}

const INTRODUCTION: &str = "# Reliability

What kafleet does while Kafka, Redis, the network and its own processes fail. This page is written by the command that it names,
at the end of its run; it is not edited.

The fleet is real: three Kafka brokers (KRaft, combined roles, three copies, two of them in sync before anything is acknowledged), Redis
with a replica and a sentinel, three workers, two trackers, two apis, all processes of their own on one machine. The load is trees of tasks whose
outcome is known from their shape: children, failing attempts, retries in the worker and by timer, delays, cancels, retries of what
failed, continuations, programs, dead letters, a recurring schedule; published over the api, with the library, and as bare records. Between
faults, and during them, rounds of probes submit tasks to all partitions and wait until they are seen done.

The verdict comes from code that knows the trees, a file in which every handler notes what it does, and the records in Kafka, and
nothing of how the fleet comes to its answers. *Lost*: a task that is unknown, open for ever, has no record, or is said to have ended
without having been done. *Wrong rollups*: a state, own state or run that is not what the tree's shape gives. *Wrong counts*: counts
below a task, or by type and state, that differ from a recount. *Fired*: what timers and effects publish, against what asked for it.

By hand: `KAFLEET_CHAOS=15 cargo test --profile quick --test chaos -- --nocapture` (minutes; `KAFLEET_SEED` repeats the order of
faults, `KAFLEET_RELIABILITY=docs/reliability.md` writes this page). A short run is part of all tests.
";

const REPEATS: &str =
    "Execution is at least once. A worker that is lost has at most a window (256 tasks of a partition) in hand, and only that is done
again. A worker that is stopped finishes what it runs and says what is done; a task that waits for its next attempt is taken over by
another worker and begins with its first one. What was done twice is put down to what hit Kafka or the worker shortly before: up to 45 s
after the end of a fault, or, if that was later, 15 s after the fleet was seen well again.";

const FAULTS: &str =
    "*Lasted*: until the process was started again or the link stood. *Recovered*: from the beginning of the fault until tasks of
every partition, submitted after it, were seen done. *Well*: the same from the end of the fault. Median, and the longest.";

const HEAD: &str = "| fault | times | lasted | recovered in | well after its end |\n|---|---|---|---|---|";

fn seconds(ms: i64) -> String {
    format!("{:.1} s", ms as f64 / 1000.0)
}

fn maybe(ms: Option<i64>) -> String {
    ms.map_or("never".to_owned(), seconds)
}

/// The median and the longest.
fn spread(mut all: Vec<i64>) -> String {
    all.sort_unstable();
    match all[..] {
        [] => "never".to_owned(),
        [one] => seconds(one),
        _ => format!("{}, {}", seconds(all[all.len() / 2]), seconds(all[all.len() - 1])),
    }
}

/// The median and the longest of all rounds of probes.
pub fn of_rounds(rounds: &[Round]) -> [i64; 2] {
    let mut all: Vec<i64> = rounds.iter().map(|round| round.ended_ms - round.begun_ms).collect();
    all.sort_unstable();
    [all.get(all.len() / 2).copied().unwrap_or(0), all.last().copied().unwrap_or(0)]
}

/// The machine and the versions, for whoever reads the figures.
pub fn machine(kafka: &str) -> BTreeMap<&'static str, String> {
    let first = |program: &str, argument: &str| {
        let output = std::process::Command::new(program).arg(argument).output();
        let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
    };
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("", |(_, model)| model);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let redis = first("redis-server", "--version");
    let redis = redis.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or_default().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    BTreeMap::from([
        ("machine", format!("{cores} cores ({model}), {} GiB, shared by all of it", kib.unwrap_or(0) >> 20)),
        ("kafleet", format!("{}, librdkafka {}", env!("CARGO_PKG_VERSION"), kafleet::broker::kafka::client_version())),
        ("Kafka", format!("{}, {}, heaps of 384 MiB", kafka, first("java", "-version"))),
        ("Redis", redis),
    ])
}
