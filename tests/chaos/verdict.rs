//! Verdict of a run: printed, as JSON, and as a page of the documentation.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::faults::{FaultRecord, Kind, RECOVERY};
use crate::load::Round;
use crate::oracle::PublishCounts;

/// Parameters and environment of a run.
#[derive(Serialize)]
pub struct RunInfo {
    pub seed: u64,
    pub date: String,
    pub command: String,
    pub machine: BTreeMap<&'static str, String>,
    pub lasted_s: f64,
}

/// Size of the load.
#[derive(Serialize)]
pub struct LoadInfo {
    pub trees: usize,
    pub tasks: usize,
    pub executions: usize,
    pub probes: usize,
}

#[derive(Serialize)]
pub struct Verdict {
    #[serde(flatten)]
    pub run: RunInfo,
    #[serde(flatten)]
    pub load: LoadInfo,
    pub lost: Vec<String>,
    pub wrong_rollups: Vec<String>,
    pub wrong_counts: Vec<String>,
    /// Violations of the three kinds above after a rebuild into an empty Redis.
    pub wrong_after_rebuild: Vec<String>,
    pub publish_counts: PublishCounts,
    pub duplicates: BTreeMap<&'static str, usize>,
    /// Descriptions of repetitions without a known cause.
    pub unexplained: Vec<String>,
    pub beyond_window: Vec<String>,
    pub repeated_after_stop: Vec<String>,
    /// Roles that exited without being stopped.
    pub unexpected_exits: Vec<String>,
    pub longest_silence_ms: i64,
    /// Fault at that time, or the last one before.
    pub longest_silence_during: Option<Kind>,
    /// Duration of a round of probes in milliseconds: median and maximum.
    pub rounds_ms: [i64; 2],
    pub faults: Vec<FaultRecord>,
}

impl Verdict {
    /// Violations, one per line; empty if there are none.
    pub fn violations(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut report = |subject: &str, found: &[String]| {
            if !found.is_empty() {
                lines.push(format!("{subject}: {}", found.len()));
                lines.extend(found.iter().take(10).map(|line| format!("  {line}")));
            }
        };
        report("lost", &self.lost);
        report("wrong rollups", &self.wrong_rollups);
        report("wrong counts", &self.wrong_counts);
        report("wrong after a rebuild into an empty Redis", &self.wrong_after_rebuild);
        report("timers and effects not published exactly once", &self.publish_counts.wrong);
        report("repetitions beyond a window", &self.beyond_window);
        report("finished, and repeated after a graceful stop", &self.repeated_after_stop);
        let never =
            self.faults.iter().filter(|row| row.recovered_in_ms.is_none() || row.recovered_after_end_ms.is_none());
        let never: Vec<String> = never.map(|row| format!("{} ({})", row.kind.name(), row.target)).collect();
        report(&format!("not recovered within {} s", RECOVERY.as_secs()), &never);
        lines
    }

    fn sums(&self) -> Vec<(&'static str, String)> {
        let publish_counts = &self.publish_counts;
        let silence = self.longest_silence_during.map_or(String::new(), |kind| format!(" ({})", kind.name()));
        vec![
            ("trees, tasks, attempts", format!("{}, {}, {}", self.load.trees, self.load.tasks, self.load.executions)),
            ("lost", self.lost.len().to_string()),
            ("wrong rollups", self.wrong_rollups.len().to_string()),
            ("wrong counts", self.wrong_counts.len().to_string()),
            ("wrong after a rebuild into an empty Redis", self.wrong_after_rebuild.len().to_string()),
            (
                "published: timers, continuations, retries, scheduled times",
                format!(
                    "{}, {}, {}, {}",
                    publish_counts.timers,
                    publish_counts.continuations,
                    publish_counts.retries,
                    publish_counts.scheduled
                ),
            ),
            ("of these not exactly once", publish_counts.wrong.len().to_string()),
            ("repeated attempts", self.duplicates.values().sum::<usize>().to_string()),
            ("of these beyond a window", self.beyond_window.len().to_string()),
            ("of these finished by a worker that was stopped gracefully", self.repeated_after_stop.len().to_string()),
            ("processes that exited by themselves", self.unexpected_exits.len().to_string()),
            ("longest time without progress", format!("{}{silence}", seconds(self.longest_silence_ms))),
            ("a probe of all partitions, median and longest", self.rounds_ms.map(seconds).join(", ")),
        ]
    }

    pub fn print(&self) {
        println!("\nchaos, seed {}, {:.0} s, {} faults", self.run.seed, self.run.lasted_s, self.faults.len());
        for row in &self.faults {
            let (recovered, recovered_after_end) =
                (optional_seconds(row.recovered_in_ms), optional_seconds(row.recovered_after_end_ms));
            let duration = seconds(row.ended_ms - row.begun_ms);
            println!(
                "  {:32} {duration:>7}  recovered in {recovered:>7}, {recovered_after_end:>7} after its end  {}",
                row.kind.name(),
                row.target
            );
        }
        for (subject, count) in self.sums() {
            println!("  {subject:56} {count}");
        }
        for (cause, count) in &self.duplicates {
            println!("    repeated, {cause}: {count}");
        }
        for line in &self.unexplained {
            println!("  repeated without a fault nearby: {line}");
        }
        for line in &self.unexpected_exits {
            println!("  exited by itself: {line}");
        }
        for line in self.violations() {
            println!("  BROKEN {line}");
        }
        println!("{}", serde_json::to_string(self).unwrap());
    }

    /// Writes the page of the documentation.
    pub fn publish(&self, file: &Path) {
        let mut page = String::from(INTRODUCTION);
        let line = |page: &mut String, text: &str| writeln!(page, "{text}").unwrap();
        line(&mut page, &format!("\n## The run of {}\n", self.run.date));
        line(&mut page, &format!("```sh\n{}\n```\n", self.run.command));
        line(&mut page, "| | |\n|---|---|");
        for (subject, value) in &self.run.machine {
            line(&mut page, &format!("| {subject} | {value} |"));
        }
        line(&mut page, &format!("| duration | {:.1} min, {} faults |", self.run.lasted_s / 60.0, self.faults.len()));
        let violations = self.violations();
        line(
            &mut page,
            &format!("\n## Verdict: {}\n", if violations.is_empty() { "no violations" } else { "violations" }),
        );
        line(&mut page, "| | |\n|---|---|");
        for (subject, count) in self.sums() {
            line(&mut page, &format!("| {subject} | {count} |"));
        }
        for text in &violations {
            line(&mut page, &format!("\n    {text}"));
        }
        self.publish_repeats(&mut page);
        self.publish_faults(&mut page);
        page.push_str(PROMISES);
        std::fs::write(file, page).unwrap();
    }

    fn publish_repeats(&self, page: &mut String) {
        writeln!(page, "\n## Repeated attempts by cause\n\n{REPEATS}\n\n| cause | attempts |\n|---|---|").unwrap();
        for (cause, count) in &self.duplicates {
            writeln!(page, "| {cause} | {count} |").unwrap();
        }
    }

    fn publish_faults(&self, page: &mut String) {
        writeln!(page, "\n## Faults\n\n{FAULTS}\n\n{HEAD}").unwrap();
        let mut kinds = BTreeMap::<Kind, Vec<&FaultRecord>>::new();
        for row in &self.faults {
            kinds.entry(row.kind).or_default().push(row);
        }
        for (kind, rows) in kinds {
            let duration = median_and_max(rows.iter().map(|row| row.ended_ms - row.begun_ms).collect());
            let recovered = median_and_max(rows.iter().filter_map(|row| row.recovered_in_ms).collect());
            let recovered_after_end =
                median_and_max(rows.iter().filter_map(|row| row.recovered_after_end_ms).collect());
            writeln!(page, "| {} | {} | {duration} | {recovered} | {recovered_after_end} |", kind.name(), rows.len())
                .unwrap();
        }
    }
}

const INTRODUCTION: &str = "# Reliability

Behaviour of kafleet while Kafka, Redis, the network and its own processes fail. The command below writes this page at the end of
its run; do not edit it.

The fleet is real: three Kafka brokers (KRaft, combined roles, replication factor 3, `min.insync.replicas=2`), Redis with a replica
and a sentinel, three workers, two trackers and two APIs, each a process, on one machine. The load consists of trees of tasks whose
outcome follows from their shape: children, failing attempts, retries in the worker and by timer, delays, cancels, retries of failed
tasks, continuations, programs, an app whose processes die, dead letters and a schedule; published over the API, with the library and
as plain records. During and between faults, rounds of probes submit tasks to all partitions and wait until they have succeeded.

The verdict is independent of the fleet: it compares the expected trees, a file to which every handler appends its executions, and
the records in Kafka. *Lost*: a task that is unknown, never ends, has no record, or ended without an execution. *Wrong rollups*: a
state, own state or run that does not follow from the tree's shape. *Wrong counts*: counts of a subtree, or by type and state, that
differ from a recount. *Published*: records of timers and effects, compared with their number of requests.

To repeat: `KAFLEET_CHAOS=15 cargo test --profile quick --test chaos -- --nocapture` (minutes; `KAFLEET_SEED` repeats a sequence
of faults, `KAFLEET_RELIABILITY=docs/reliability.md` writes this page). A short run is part of all tests.
";

/// Promises of the documentation and their tests, which are the same after each run.
const PROMISES: &str = include_str!("promises.md");

const REPEATS: &str =
    "Execution is at least once. A lost worker has at most a window (256 tasks of a partition) in flight, and only those are
repeated. A worker that is stopped gracefully finishes its running attempts and commits them; a task that waits for a retry is taken
over by another worker and starts with its first attempt. A repetition is attributed to a fault of Kafka or of the worker up to 45 s
after the end of the fault, or up to 15 s after the fleet had recovered, if that was later.";

const FAULTS: &str =
    "*Duration*: until the process was restarted or the link restored. *Recovered in*: from the start of the fault until tasks
submitted after it in every partition had succeeded. *Recovered after its end*: the same from the end of the fault. Median and
maximum.";

const HEAD: &str = "| fault | times | duration | recovered in | recovered after its end |\n|---|---|---|---|---|";

fn seconds(ms: i64) -> String {
    format!("{:.1} s", ms as f64 / 1000.0)
}

fn optional_seconds(ms: Option<i64>) -> String {
    ms.map_or("never".to_owned(), seconds)
}

/// Median and maximum.
fn median_and_max(mut all: Vec<i64>) -> String {
    all.sort_unstable();
    match all[..] {
        [] => "never".to_owned(),
        [one] => seconds(one),
        _ => format!("{}, {}", seconds(all[all.len() / 2]), seconds(all[all.len() - 1])),
    }
}

/// Median and maximum of all rounds of probes.
pub fn round_times(rounds: &[Round]) -> [i64; 2] {
    let mut all: Vec<i64> = rounds.iter().map(|round| round.ended_ms - round.begun_ms).collect();
    all.sort_unstable();
    [all.get(all.len() / 2).copied().unwrap_or(0), all.last().copied().unwrap_or(0)]
}

/// Machine and versions.
pub fn machine(kafka: &str) -> BTreeMap<&'static str, String> {
    let first = |program: &str, argument: &str| {
        let output = std::process::Command::new(program).arg(argument).output();
        let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
    };
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("", |(_, model)| model);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let redis = first("redis-server", "--version");
    let redis = redis.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or_default().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    BTreeMap::from([
        ("machine", format!("{cores} cores ({model}), {} GiB, shared by all processes", kib.unwrap_or(0) >> 20)),
        ("kafleet", format!("{}, librdkafka {}", env!("CARGO_PKG_VERSION"), kafleet::broker::kafka::client_version())),
        ("Kafka", format!("{}, {}, heaps of 384 MiB", kafka, first("java", "-version"))),
        ("Redis", redis),
    ])
}
