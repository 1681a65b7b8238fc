//! Loads a [`Config`] from a file, the environment and the command line, or returns the list of all problems.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::document::{Document, ExpansionError, Location, SyntaxError, dotted, join, keys};
use super::problem::{ConfigProblem, Problems};
use super::secrets::without_userinfo;
use super::shape::{Origin, UnlocatedProblem, schema_violations};
use super::{Config, Scalar, rules};

/// Default configuration file.
pub const DEFAULT_FILE: &str = "kafleet.toml";
/// Default bootstrap servers.
pub const DEFAULT_BROKERS: &str = "127.0.0.1:9092";

/// Values of the command line or the environment that override the file.
#[derive(Clone, Default)]
pub struct Overrides {
    /// `--brokers`, `KAFLEET_BROKERS`: `[kafka]` `bootstrap.servers`.
    pub brokers: Option<String>,
    /// `--redis`, `KAFLEET_REDIS`: `[redis]` `url`.
    pub redis: Option<String>,
    /// `--postgres`, `KAFLEET_POSTGRES`: `[outbox]` `postgres`.
    pub postgres: Option<String>,
    /// `--listen`, `KAFLEET_API_LISTEN`: `[api]` `listen`.
    pub api_listen: Option<String>,
    /// `--ops-listen`, `KAFLEET_OPS_LISTEN`: `[ops]` `listen`.
    pub ops_listen: Option<String>,
    /// `--prefix`, `KAFLEET_PREFIX`: `[topics]` `prefix`.
    pub prefix: Option<String>,
    /// Sections that this process does not use. Unset variables in them are ignored, so that a worker needs
    /// none of the API's secrets.
    pub unused: &'static [&'static str],
    /// Types that this process serves; empty: all. Unset variables in the sections of other types, and of apps that serve
    /// none of these, are ignored too.
    pub types: Vec<String>,
}

impl std::fmt::Debug for Overrides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Overrides")
            .field("brokers", &self.brokers)
            .field("redis", &self.redis.as_deref().map(without_userinfo))
            .field("postgres", &self.postgres.as_deref().map(without_userinfo))
            .field("api_listen", &self.api_listen)
            .field("ops_listen", &self.ops_listen)
            .field("prefix", &self.prefix)
            .field("unused", &self.unused)
            .field("types", &self.types)
            .finish()
    }
}

/// A configuration and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedConfig {
    pub config: Config,
    /// `None` if there is no file; all settings then have their defaults.
    pub path: Option<PathBuf>,
    /// Absolute base folder of relative paths: the file's folder, or the working directory without a file.
    pub folder: PathBuf,
    /// Environment variables that the file expands, also in sections that this process does not use.
    pub variables: BTreeSet<String>,
}

/// Reads `path`, or `./kafleet.toml` if it exists, expands variables, applies the overrides and checks everything.
pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<LoadedConfig, Problems> {
    load_with(path, overrides, &|name| std::env::var(name).ok())
}

/// Loads as [`load`], with the given environment.
pub fn load_with(
    path: Option<&Path>,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedConfig, Problems> {
    let default_file = Path::new(DEFAULT_FILE);
    let path = path.or_else(|| default_file.exists().then_some(default_file));
    let text = match path.map(std::fs::read_to_string) {
        Some(Err(error)) => return Err(unreadable(path.unwrap_or(default_file), &error)),
        Some(Ok(text)) => text,
        None => String::new(),
    };
    let folder = std::path::absolute(path.unwrap_or(default_file))
        .map_err(|error| unreadable(path.unwrap_or(default_file), &error))?;
    let folder = folder.parent().map(Path::to_owned).unwrap_or_default();
    let (config, variables) = read(&text, path, &folder, overrides, env)?;
    Ok(LoadedConfig { config, path: path.map(Path::to_owned), folder, variables })
}

fn read(
    text: &str,
    path: Option<&Path>,
    folder: &Path,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, BTreeSet<String>), Problems> {
    let list = ProblemList { file: path.map_or_else(|| "configuration".to_owned(), |path| path.display().to_string()) };
    let mut document = Document::parse(text).map_err(|errors| list.syntax(errors))?;
    let variables = document.variables();
    let unexpanded = document.expand(env, &unused_tables(&document.value, overrides));
    apply_overrides(&mut document, overrides);
    let mut problems: Vec<UnlocatedProblem> =
        unexpanded.into_iter().map(|(pointer, error)| missing(pointer, &error)).collect();
    problems.extend(schema_violations(&document, Origin::File));
    let mut config = typed(&document.value, &mut problems).map(|config| resolve_paths(config, folder));
    if let (Some(config), Some(url)) = (&mut config, &overrides.redis) {
        config.redis.set_url(url);
    }
    if let Some(config) = &config {
        // One problem per key.
        let is_reported = |rule: &UnlocatedProblem| problems.iter().any(|reported| reported.pointer == rule.pointer);
        let of_rules: Vec<_> =
            rules::problems(&document, config).into_iter().filter(|rule| !is_reported(rule)).collect();
        problems.extend(of_rules);
    }
    problems.retain(|problem| !document.unset.contains(&problem.pointer));
    match config {
        Some(config) if problems.is_empty() => Ok((config, variables)),
        _ => Err(list.problems(&document, problems)),
    }
}

/// Returns the pointers of the tables that the process does not use.
fn unused_tables(document: &Value, overrides: &Overrides) -> Vec<String> {
    let sections = overrides.unused.iter().map(|section| join("", section));
    let is_served = |name: &str| overrides.types.is_empty() || overrides.types.iter().any(|chosen| chosen == name);
    let serves_none = |app: &Value| {
        app["types"].as_array().is_some_and(|types| !types.iter().filter_map(Value::as_str).any(is_served))
    };
    let tables = |section: &str| document[section].as_object().into_iter().flatten();
    let types = tables("types").filter(|(name, _)| !is_served(name)).map(|(name, _)| join("/types", name));
    let apps = tables("apps").filter(|(_, app)| serves_none(app)).map(|(name, _)| join("/apps", name));
    sections.chain(types).chain(apps).collect()
}

fn apply_overrides(document: &mut Document, overrides: &Overrides) {
    for (value, section, key, from) in [
        (&overrides.brokers, "kafka", "bootstrap.servers", "--brokers or KAFLEET_BROKERS"),
        (&overrides.redis, "redis", "url", "--redis or KAFLEET_REDIS"),
        (&overrides.postgres, "outbox", "postgres", "--postgres or KAFLEET_POSTGRES"),
        (&overrides.api_listen, "api", "listen", "--listen or KAFLEET_API_LISTEN"),
        (&overrides.ops_listen, "ops", "listen", "--ops-listen or KAFLEET_OPS_LISTEN"),
        (&overrides.prefix, "topics", "prefix", "--prefix or KAFLEET_PREFIX"),
    ] {
        if let Some(value) = value {
            document.override_value(section, key, value, from);
        }
    }
}

fn missing(pointer: String, error: &ExpansionError) -> UnlocatedProblem {
    match error {
        ExpansionError::NotSet(name) => {
            UnlocatedProblem::new(pointer, format!("the environment variable `{name}` is not set"))
                .hint(format!("set it, or write `$${{{name}}}` for the literal text"))
        }
        ExpansionError::Malformed => UnlocatedProblem::new(pointer, "`${` without a variable name and `}`")
            .hint("write `${NAME}`, or `$${` for the literal text `${`"),
    }
}

/// Deserializes the configuration without the keys that are known to be wrong, so that all others are checked too. Adds
/// errors that the schema does not cover, such as too large durations and sizes. `None` if nothing can be read.
pub(super) fn typed(value: &Value, problems: &mut Vec<UnlocatedProblem>) -> Option<Config> {
    let mut value = value.clone();
    for problem in &*problems {
        prune(&mut value, &keys(&problem.pointer));
    }
    loop {
        let error = match serde_path_to_error::deserialize(&value) {
            Ok(config) => return Some(config),
            Err(error) => error,
        };
        let pointer = error.path().iter().fold(String::new(), |above, segment| join(&above, &segment.to_string()));
        problems.push(UnlocatedProblem::new(&pointer, format!("`{}`: {}", dotted(&pointer), error.inner())));
        if !prune(&mut value, &keys(&pointer)) {
            return None;
        }
    }
}

/// Removes a key; of a list, the whole list.
fn prune(value: &mut Value, keys: &[String]) -> bool {
    let ([key, rest @ ..], Value::Object(table)) = (keys, value) else { return false };
    match table.get_mut(key) {
        Some(inner @ Value::Object(_)) if !rest.is_empty() => prune(inner, rest),
        _ => table.remove(key).is_some(),
    }
}

/// Makes paths absolute, relative to the file's folder, and sets the default bootstrap servers.
fn resolve_paths(mut config: Config, folder: &Path) -> Config {
    config.kafka.entry("bootstrap.servers".into()).or_insert_with(|| Scalar::Text(DEFAULT_BROKERS.into()));
    for secret in config.callbacks.iter_mut().flat_map(|callbacks| callbacks.secrets.values_mut()) {
        secret.file = secret.file.take().map(|file| folder.join(file));
    }
    let redis = &mut config.redis;
    for path in [&mut redis.ca, &mut redis.certificate, &mut redis.key].into_iter().flatten() {
        *path = folder.join(&*path);
    }
    for path in config.email.iter_mut().flat_map(|email| email.ca.iter_mut().chain(&mut email.password_file)) {
        *path = folder.join(&*path);
    }
    for kind in config.types.values_mut() {
        for path in kind.schema.iter_mut().chain(&mut kind.cwd) {
            *path = folder.join(&*path);
        }
        resolve_program(&mut kind.command, folder);
    }
    for app in config.apps.values_mut() {
        app.cwd = Some(app.cwd.as_ref().map_or_else(|| folder.to_owned(), |cwd| folder.join(cwd)));
        resolve_program(&mut app.command, folder);
    }
    config
}

/// Makes the path of a program absolute. A program without a `/` is looked up in PATH.
fn resolve_program(command: &mut [String], folder: &Path) {
    if let Some(program) = command.first_mut().filter(|program| program.contains('/')) {
        *program = folder.join(&*program).to_string_lossy().into_owned();
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problems {
    let message = format!("cannot be read: {error}");
    Problems(vec![ConfigProblem { location: path.display().to_string(), key: String::new(), message, hint: None }])
}

struct ProblemList {
    file: String,
}

impl ProblemList {
    fn line(&self, line: Option<usize>) -> String {
        line.map_or_else(|| self.file.clone(), |line| format!("{}:{line}", self.file))
    }

    fn syntax(&self, errors: Vec<SyntaxError>) -> Problems {
        let problem = |error: SyntaxError| ConfigProblem {
            location: self.line(error.line),
            key: String::new(),
            message: format!("not TOML: {}", error.message),
            hint: None,
        };
        Problems(errors.into_iter().map(problem).collect())
    }

    fn problems(&self, document: &Document, mut unlocated: Vec<UnlocatedProblem>) -> Problems {
        unlocated.sort_by_key(|problem| document.location(&problem.pointer).cloned());
        let locate = |problem: UnlocatedProblem| ConfigProblem {
            location: match document.location(&problem.pointer) {
                Some(Location::Line(line)) => self.line(Some(*line)),
                Some(Location::Given(from)) => (*from).to_owned(),
                None => self.file.clone(),
            },
            key: dotted(&problem.pointer),
            message: problem.message,
            hint: problem.hint,
        };
        Problems(unlocated.into_iter().map(locate).collect())
    }
}
