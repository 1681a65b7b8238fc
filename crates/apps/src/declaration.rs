//! Types that an app declares. All processes of an app declare the same.

use std::collections::{BTreeMap, BTreeSet};

use kafleet_handlers::Schema;
use kafleet_model::json::short_reason;
use kafleet_model::schedule::{Spec, check_name};
use kafleet_model::task::id::{check_own_type, clip};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::capacity::Capacity;
use super::protocol::{DeclaredType, MAX_SLOTS, Ready, VERSION};

/// Maximum length of a description, in characters.
const MAX_DOC_CHARS: usize = 10_000;

/// Declaration of an app's process.
#[derive(Clone)]
pub struct Declaration {
    /// Attempts that one process runs at once.
    pub capacity: Capacity,
    /// The app reads the socket while attempts run.
    pub responsive: bool,
    pub sdk: Option<String>,
    pub runtime: Option<String>,
    /// Declared types by name.
    pub types: BTreeMap<String, AppType>,
    /// Recurring schedules by name. `kafleet schedules apply` and `dev` write them.
    pub schedules: BTreeMap<String, Spec>,
}

/// Declared type.
#[derive(Clone)]
pub struct AppType {
    pub params: Schema,
    /// JSON Schema of the result.
    pub output: Option<Value>,
    pub doc: Option<String>,
    /// Keys of `[types.<name>]`.
    pub policy: Map<String, Value>,
    /// Attempts block their thread.
    pub is_sync: bool,
    /// File and line of the declaration.
    pub source: Option<String>,
}

/// Text that names a declared type in messages: its name, and where it is declared.
pub(crate) fn type_text(name: &str, source: Option<&str>) -> String {
    let name = clip(name);
    source.map_or_else(|| format!("`{name}`"), |source| format!("`{name}` ({})", clip(source)))
}

impl Declaration {
    /// Checks what an app has declared. `selected`: use only these types. The error lists every problem.
    pub fn read(ready: Ready, selected: Option<&[String]>) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        if !(1..=VERSION).contains(&ready.protocol) {
            problems.push(format!(
                "it speaks version {} of the app protocol; this worker speaks up to {VERSION}; hint: install an SDK of \
                 the worker's version",
                ready.protocol
            ));
        }
        if !(1..=MAX_SLOTS).contains(&ready.slots) {
            problems.push(format!("it declares {} slots: 1 to {MAX_SLOTS} are allowed", ready.slots));
        }
        if ready.threads > MAX_SLOTS {
            problems.push(format!("it declares {} threads: at most {MAX_SLOTS} are allowed", ready.threads));
        }
        let mut types = BTreeMap::new();
        let is_selected = |name: &String| selected.is_none_or(|selected| selected.contains(name));
        for declared in ready.types.into_iter().filter(|declared| is_selected(&declared.name)) {
            let name = declared.name.clone();
            let Some(declared) = read_type(declared, &mut problems) else { continue };
            if types.insert(name.clone(), declared).is_some() {
                problems.push(format!("it declares the type `{name}` twice: give each its own name"));
            }
        }
        let missing = selected.unwrap_or_default().iter().filter(|name| !types.contains_key(*name));
        if problems.is_empty() {
            problems.extend(missing.map(|name| format!("it does not declare the type `{}` of `types`", clip(name))));
        }
        if types.is_empty() && problems.is_empty() {
            problems.push("it declares no types".to_owned());
        }
        let schedules = read_schedules(&ready.schedules, &mut problems);
        let Ready { slots, threads, responsive, sdk, runtime, .. } = ready;
        let capacity = Capacity { slots, threads };
        if problems.is_empty() {
            Ok(Self { capacity, responsive, sdk, runtime, types, schedules })
        } else {
            Err(problems)
        }
    }

    /// Returns the first difference from the declaration of another process, for people.
    pub fn difference(&self, other: &Self) -> Option<String> {
        if (self.capacity.threads > 0) != (other.capacity.threads > 0) {
            return Some("one has `threads` and the other has none".to_owned());
        }
        let names: BTreeSet<&String> = self.types.keys().chain(other.types.keys()).collect();
        names.into_iter().find_map(|name| match (self.types.get(name), other.types.get(name)) {
            (Some(declared), Some(other)) => Some(format!("the {} of `{name}` differs", declared.difference(other)?)),
            (Some(_), None) => Some(format!("the type `{name}` is missing")),
            (None, _) => Some(format!("the type `{name}` is new")),
        })
    }
}

impl AppType {
    /// Returns the name of the first part that differs. Descriptions and results are not compared: they do not change
    /// the execution.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.params.json() != other.params.json() {
            return Some("schema of the params");
        }
        if self.is_sync != other.is_sync {
            return Some("member `sync`");
        }
        (self.policy != other.policy).then_some("policy")
    }
}

fn read_schedules(declared: &BTreeMap<String, Box<RawValue>>, problems: &mut Vec<String>) -> BTreeMap<String, Spec> {
    let mut schedules = BTreeMap::new();
    for (name, text) in declared {
        let mut problem = |error: String| problems.push(format!("it declares the schedule `{}`: {error}", clip(name)));
        if let Err(error) = check_name(name) {
            problem(error);
        }
        match serde_json::from_str::<Spec>(text.get()) {
            Err(error) => problem(short_reason(&error)),
            Ok(spec) => {
                spec.errors().into_iter().for_each(|flaw| problem(format!("`{}`: {}", flaw.at, flaw.message)));
                schedules.insert(name.clone(), spec);
            }
        }
    }
    schedules
}

fn read_type(declared: DeclaredType, problems: &mut Vec<String>) -> Option<AppType> {
    let DeclaredType { name, params, output, doc, policy, sync, source } = declared;
    let text = type_text(&name, source.as_deref());
    let mut problem = |part: &str, error: &dyn std::fmt::Display| {
        problems.push(format!("it declares the type {text}{part}: {error}"));
    };
    if let Err(error) = check_own_type(&name) {
        problem("", &error);
    }
    if doc.as_ref().is_some_and(|doc| doc.chars().count() > MAX_DOC_CHARS) {
        problem("", &format!("its `doc` has more than {MAX_DOC_CHARS} characters"));
    }
    let params = match params.map_or(Ok(Schema::any()), Schema::compile) {
        Ok(params) => Some(params),
        Err(error) => {
            problem(" with `params` that are not a JSON Schema", &error);
            None
        }
    };
    if let Some(Err(error)) = output.clone().map(Schema::compile) {
        problem(" with an `output` that is not a JSON Schema", &error);
    }
    Some(AppType { params: params?, output, doc, policy: policy.unwrap_or_default(), is_sync: sync, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ready(value: Value) -> Ready {
        serde_json::from_value(value).unwrap()
    }

    fn problems(value: Value) -> String {
        Declaration::read(ready(value), None).err().unwrap().join("; ")
    }

    #[test]
    fn declaration_has_the_wanted_types() {
        let two = ready(json!({"protocol": 1, "slots": 10, "types": [{"name": "a"}, {"name": "b", "doc": "B"}]}));
        let all = Declaration::read(two.clone(), None).ok().unwrap();
        assert_eq!((all.capacity, all.types.len()), (Capacity::shared(10), 2));
        let selected = Declaration::read(two.clone(), Some(&["b".to_owned()])).ok().unwrap();
        assert_eq!(selected.types.keys().collect::<Vec<_>>(), ["b"]);
        let missing = Declaration::read(two, Some(&["c".to_owned()])).err().unwrap();
        assert_eq!(missing, ["it does not declare the type `c` of `types`"]);
    }

    #[test]
    fn invalid_declarations_are_refused_with_all_problems() {
        let text = problems(json!({"protocol": 2, "slots": 0, "threads": 2_000, "types": [
            {"name": "a"}, {"name": "a"}, {"name": "No Type"}, {"name": "b", "params": {"type": 3}},
            {"name": "c", "output": {"type": "no"}}
        ], "schedules": {"a:b": {"every": "1h", "task": {"type": "a"}}, "n": {"cron": "61 * * * *", "task": {"type": "a"}},
            "m": {"every": "1h"}}}));
        for part in [
            "version 2 of the app protocol",
            "0 slots",
            "2000 threads",
            "declares the type `a` twice",
            "`No Type`",
            "`b` with `params` that are not a JSON Schema",
            "`c` with an `output` that is not a JSON Schema",
            "the schedule `a:b`: `a:b` cannot name a schedule",
            "the schedule `n`: `cron`: `61 * * * *` is not a cron expression",
            "the schedule `m`: missing field `task`",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(problems(json!({"protocol": 1, "types": []})), "it declares no types");
    }

    #[test]
    fn processes_with_other_declarations_differ() {
        let read = |types: Value| Declaration::read(ready(json!({"protocol": 1, "types": types})), None).ok().unwrap();
        let first = read(json!([{"name": "a", "params": {"type": "object"}}, {"name": "b"}]));
        let same = read(json!([{"name": "b", "doc": "new"}, {"name": "a", "params": {"type": "object"}}]));
        assert_eq!(first.difference(&same), None);
        for (types, error) in [
            (
                json!([{"name": "a", "params": {"type": "array"}}, {"name": "b"}]),
                "the schema of the params of `a` differs",
            ),
            (
                json!([{"name": "a", "params": {"type": "object"}}, {"name": "b", "policy": {"retries": 1}}]),
                "the policy of `b` differs",
            ),
            (
                json!([{"name": "a", "params": {"type": "object"}}, {"name": "b", "sync": true}]),
                "the member `sync` of `b` differs",
            ),
            (json!([{"name": "b"}]), "the type `a` is missing"),
            (json!([{"name": "a", "params": {"type": "object"}}, {"name": "b"}, {"name": "c"}]), "the type `c` is new"),
        ] {
            assert_eq!(first.difference(&read(types)).as_deref(), Some(error));
        }
    }

    #[test]
    fn all_processes_count_sync_types_apart_or_none_does() {
        let read = |threads: u32| {
            let ready = ready(json!({"protocol": 1, "threads": threads, "types": [{"name": "a", "sync": true}]}));
            Declaration::read(ready, None).ok().unwrap()
        };
        assert_eq!(read(1).difference(&read(3)), None);
        // Attempts of `sync` types would wait for a thread for ever.
        assert_eq!(read(1).difference(&read(0)).as_deref(), Some("one has `threads` and the other has none"));
    }
}
