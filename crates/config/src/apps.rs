//! `[apps.NAME]`: programs that declare task types and run their attempts; and the policies that they declare.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kafleet_model::task::id::clip;
use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::checks::{MIN_MEMORY, positive};
use super::document::{Document, join};
use super::shape::{Origin, UnlocatedProblem, bad_value, schema_violations, table};
use super::type_rules::type_problems;
use super::{Bytes, Config, ProgramVariables, SettingScope, TYPE_SETTINGS, TopicsConfig, TypeConfig, TypeSetting};

/// Maximum length of an app's name.
const MAX_NAME_CHARS: usize = 64;
/// Section `[apps.NAME]`.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AppConfig {
    /// Program and arguments, run without a shell.
    pub command: Vec<String>,
    /// Working directory. Default: the folder of kafleet.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Environment variables, in addition to those that are inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Inherit the worker's environment variables, except for those that kafleet.toml expands and kafleet's own secrets.
    /// `false`: only `PATH`, `HOME` and other ordinary ones.
    pub inherit: bool,
    /// Number of processes. Default: the number of cores; fewer if they would need more than 70 % of the container's
    /// memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub processes: Option<u32>,
    /// Concurrent attempts in one process. Default: the number that the app declares.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub slots: Option<u32>,
    /// Types to use. Default: all that the app declares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// Number of attempts after which a process is replaced, varied by 10 %. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_tasks: Option<u32>,
    /// Memory of a process with its child processes. Above it, a process that has grown by 20 % since its start is
    /// replaced; above 1.5 times of it, a process is killed. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Time until a process is ready.
    pub start_timeout: Millis,
    /// A process ends only when its replacement is ready. `false`: it ends first, where two do not fit.
    pub overlap: bool,
}

impl Default for AppConfig {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            cwd: None,
            env: BTreeMap::new(),
            inherit: true,
            processes: None,
            slots: None,
            types: None,
            max_tasks: None,
            memory: None,
            start_timeout: Millis::secs(60),
            overlap: true,
        }
    }
}

impl AppConfig {
    /// Environment variables of the app.
    pub fn variables(&self) -> ProgramVariables {
        ProgramVariables { own: self.env.clone(), inherit: self.inherit }
    }
}

pub(super) fn problems(document: &Document, apps: &BTreeMap<String, AppConfig>) -> Vec<UnlocatedProblem> {
    apps.iter().flat_map(|(name, app)| app_problems(document, name, app)).collect()
}

fn app_problems(document: &Document, name: &str, app: &AppConfig) -> Vec<UnlocatedProblem> {
    let at = join("/apps", name);
    let mut problems = positive(document, &at, [("start_timeout", Some(app.start_timeout))]);
    if !is_app_name(name) {
        let message = format!("`{}` cannot name an app", clip(name));
        problems.push(
            UnlocatedProblem::new(at.clone(), message)
                .hint(format!("use 1 to {MAX_NAME_CHARS} characters of a-z 0-9 -")),
        );
    }
    if app.command.first().is_none_or(String::is_empty) {
        let message = format!("{} has no `command`", table(&at));
        problems.push(
            UnlocatedProblem::new(join(&at, "command"), message)
                .hint("set the program: `command = [\"program\", \"argument\"]`"),
        );
    }
    if app.memory.is_some_and(|memory| memory < MIN_MEMORY) {
        problems.push(bad_value(document, &join(&at, "memory"), &format!("at least `{MIN_MEMORY}`")));
    }
    if app.types.as_ref().is_some_and(Vec::is_empty) {
        let message = format!("`types` in {} is empty", table(&at));
        problems.push(
            UnlocatedProblem::new(join(&at, "types"), message).hint("name the types to use, or remove it to use all"),
        );
    }
    for name in app.env.keys().filter(|name| name.is_empty() || name.contains(['=', '\0'])) {
        problems.push(UnlocatedProblem::new(
            join(&join(&at, "env"), name),
            format!("`{name}` is not a valid variable name"),
        ));
    }
    problems
}

fn is_app_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Combines the policy that an app declares for a type with `[types.<name>]`, which has precedence.
///
/// # Errors
/// All problems of the declared policy, and of the combination.
pub fn combine_policy(
    name: &str,
    declared: &Map<String, Value>,
    configured: Option<&TypeConfig>,
    topics: &TopicsConfig,
) -> Result<TypeConfig, Vec<String>> {
    let refused = TYPE_SETTINGS
        .iter()
        .find(|setting| setting.scope != SettingScope::Declarable && declared.contains_key(setting.key));
    if let Some(TypeSetting { key, scope, .. }) = refused {
        let is_of_file = *scope == SettingScope::FileOnly;
        let hint = if is_of_file { "set it in `[types.NAME]` of kafleet.toml" } else { "remove it" };
        return Err(vec![format!("`{key}` is not part of a policy; hint: {hint}")]);
    }
    let mut combined = declared.clone();
    combined.extend(configured.map(written_keys).unwrap_or_default());
    let document = Document::of(json!({"types": {name: combined}}));
    let mut problems = schema_violations(&document, Origin::App);
    let config: Option<Config> = super::load::typed(&document.value, &mut problems);
    let kind = config.and_then(|config| config.types.into_values().next()).unwrap_or_default();
    if problems.is_empty() {
        problems = type_problems(&document, name, &kind, topics);
    }
    if problems.is_empty() { Ok(kind) } else { Err(problems.into_iter().map(text_of).collect()) }
}

/// Returns the keys of a section that are set.
pub fn written_keys(section: &TypeConfig) -> Map<String, Value> {
    match serde_json::to_value(section) {
        Ok(Value::Object(keys)) => keys,
        _ => Map::new(),
    }
}

fn text_of(problem: UnlocatedProblem) -> String {
    let hint = problem.hint.map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    format!("{}{hint}", problem.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combine(declared: Value, configured: &TypeConfig) -> Result<TypeConfig, Vec<String>> {
        let Value::Object(declared) = declared else { panic!("a policy is an object") };
        combine_policy("resize", &declared, Some(configured), &TopicsConfig::default())
    }

    #[test]
    fn section_overrides_the_declared_policy() {
        let configured = TypeConfig { retries: Some(9), ..TypeConfig::default() };
        let declared = json!({"retries": 1, "timeout": "30s", "fail_on": ["shop.BadWidth"], "publish_results": true});
        let combined = combine(declared, &configured).unwrap();
        assert_eq!((combined.retries, combined.timeout), (Some(9), Some(Millis::secs(30))));
        assert_eq!((&combined.fail_on[..], combined.publish_results), (&["shop.BadWidth".to_owned()][..], Some(true)));
    }

    #[test]
    fn invalid_declared_policy_is_refused_with_its_key() {
        for (declared, parts) in [
            (json!({"retrys": 1}), ["unknown key `retrys`", "did you mean `retries`?"]),
            (json!({"retries": "many"}), ["`types.resize.retries`", "is not a whole number"]),
            (json!({"timeout": "0s"}), ["`types.resize.timeout`", "longer than zero"]),
            (json!({"timeout": "soon"}), ["`types.resize.timeout`", "soon"]),
            (json!({"command": ["x"]}), ["`command` is not part of a policy", "remove it"]),
            (json!({"retention": "1d"}), ["`retention` is not part of a policy", "in `[types.NAME]` of kafleet.toml"]),
            (json!({"fail_on": ["a b"]}), ["`a b`", "is not an error kind"]),
            (json!({"mask": ["/a"], "index": ["/a"]}), ["`/a` is in both `index` and `mask`", "cannot be searched"]),
        ] {
            let problems = combine(declared, &TypeConfig::default()).unwrap_err().join("; ");
            assert!(parts.iter().all(|part| problems.contains(part)), "{problems}");
        }
    }
}
