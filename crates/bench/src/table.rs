//! Report of a benchmark.

use serde::Serialize;

/// Median, minimum and maximum of a figure over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// Maximum that the median should not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
}

impl Figure {
    pub fn of(name: &str, unit: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |n: usize| values.get(n).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        let median = (at(last / 2) + at(last.div_ceil(2))) / 2.0;
        Self { name: name.to_owned(), unit, median, min: at(0), max: at(last), budget: None }
    }
}

/// Machine on which the benchmark ran.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub memory_mib: u64,
    /// Load average over the minute before the benchmark.
    pub load: f64,
}

impl Machine {
    fn of_this_host() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let field = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default();
        Self { cores, cpu: field("/proc/cpuinfo", "model name"), memory_mib: kib / 1024, load }
    }
}

/// Result of a benchmark: settings, figures, and the ratio to the baseline.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    pub benchmark: &'static str,
    pub version: &'static str,
    /// `release`, or `debug` for an unoptimised build.
    pub build: &'static str,
    pub librdkafka: String,
    /// Kafka's version, if it runs on this machine and can be determined.
    pub kafka: Option<String>,
    /// Redis's version, if it was used.
    pub redis: Option<String>,
    pub machine: Machine,
    pub settings: Vec<(String, String)>,
    pub figures: Vec<Figure>,
    /// Median over the rounds of the ratio to the baseline.
    pub ratio: Option<f64>,
    /// Whether every task was verified to be present exactly once.
    pub checked: bool,
}

impl BenchReport {
    pub fn new(benchmark: &'static str, settings: Vec<(String, String)>) -> Self {
        Self {
            benchmark,
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            librdkafka: kafleet_broker::kafka::client_version(),
            kafka: None,
            redis: None,
            machine: Machine::of_this_host(),
            settings,
            figures: Vec::new(),
            ratio: None,
            checked: false,
        }
    }

    pub fn add(&mut self, name: &str, unit: &'static str, values: Vec<f64>) {
        self.figures.push(Figure::of(name, unit, values));
    }

    /// Adds a figure with the maximum that its median should not exceed.
    pub fn budget(&mut self, name: &str, unit: &'static str, values: Vec<f64>, budget: f64) {
        self.figures.push(Figure { budget: Some(budget), ..Figure::of(name, unit, values) });
    }

    /// Renders the report as text.
    pub fn table(&self) -> String {
        let settings: Vec<String> = self.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let machine = &self.machine;
        let services = [("kafka", &self.kafka), ("redis", &self.redis)];
        let services = services.map(|(name, version)| version.as_ref().map(|version| format!(", {name} {version}")));
        let services: String = services.into_iter().flatten().collect();
        let mut text = format!(
            "kafleet {} bench {} ({} build, librdkafka {}{services})\n",
            self.version, self.benchmark, self.build, self.librdkafka
        );
        text += &format!(
            "on {} cores, {}, {} MiB, load before {:.1}: {}\n\n",
            machine.cores,
            machine.cpu,
            machine.memory_mib,
            machine.load,
            settings.join(", ")
        );
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        let has_budgets = self.figures.iter().any(|figure| figure.budget.is_some());
        table.set_header(["figure", "median", "min", "max", "unit"].into_iter().chain(has_budgets.then_some("budget")));
        for figure in &self.figures {
            let number = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
            let columns = [number(figure.median), number(figure.min), number(figure.max), figure.unit.to_owned()];
            let budget = figure.budget.map(|budget| {
                if figure.median <= budget { format!("{budget}") } else { format!("{budget}, exceeded") }
            });
            table.add_row([figure.name.clone()].into_iter().chain(columns).chain(budget));
        }
        text += &table.to_string();
        if let Some(ratio) = self.ratio {
            text += &format!("\n\nratio {ratio:.2}");
        }
        if self.checked {
            text += "\nchecked: every task is present exactly once";
        }
        text
    }
}
