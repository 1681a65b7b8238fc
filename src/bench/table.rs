//! What a benchmark prints.

use serde::Serialize;

/// One figure over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Figure {
    pub fn of(name: &str, unit: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |n: usize| values.get(n).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        let median = (at(last / 2) + at(last.div_ceil(2))) / 2.0;
        Self { name: name.to_owned(), unit, median, min: at(0), max: at(last) }
    }
}

/// The outcome of one benchmark: settings, figures, and the ratio that matters.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub benchmark: &'static str,
    pub version: &'static str,
    pub cores: usize,
    pub settings: Vec<(String, String)>,
    pub figures: Vec<Figure>,
    /// Against the ceiling of the same run: median of the rounds' ratios.
    pub ratio: Option<f64>,
    /// Everything was there exactly once.
    pub checked: bool,
}

impl Report {
    pub fn new(benchmark: &'static str, settings: Vec<(String, String)>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let version = env!("CARGO_PKG_VERSION");
        Self { benchmark, version, cores, settings, figures: Vec::new(), ratio: None, checked: false }
    }

    pub fn add(&mut self, name: &str, unit: &'static str, values: Vec<f64>) {
        self.figures.push(Figure::of(name, unit, values));
    }

    /// For people.
    pub fn table(&self) -> String {
        let settings: Vec<String> = self.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let mut text =
            format!("kafleet {} bench {} on {} cores: {}\n\n", self.version, self.benchmark, self.cores, settings.join(", "));
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["figure", "median", "min", "max", "unit"]);
        for figure in &self.figures {
            let number = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
            table.add_row([
                figure.name.clone(),
                number(figure.median),
                number(figure.min),
                number(figure.max),
                figure.unit.to_owned(),
            ]);
        }
        text += &table.to_string();
        if let Some(ratio) = self.ratio {
            text += &format!("\n\nratio {ratio:.2}");
        }
        if self.checked {
            text += "\nchecked: every task there exactly once";
        }
        text
    }
}
