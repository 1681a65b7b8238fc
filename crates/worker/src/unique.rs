//! Unique tasks of foreign producers: records with the header `ce_unique` that no publisher of the fleet has asked for. The
//! worker does not start them, but hands them over as asks, and the tracker releases what the key lets start.

use kafleet_config::TypePolicy;
use kafleet_model::task::TaskSpec;
use kafleet_model::task::hash::spawn_hash;
use kafleet_model::task::id::TaskId;
use kafleet_model::unique::UniqueRule;
use kafleet_model::unique::field::MAX_UNIQUE_PARAMS_BYTES;
use kafleet_model::unique::id::{ask_id, tag};

/// Ask that a record stands for: the id and the complete rule of its task.
pub(super) struct ForeignAsk {
    pub id: TaskId,
    pub rule: UniqueRule,
}

impl ForeignAsk {
    /// Ask of a record; `None`: the task is not unique, or its ask was decided.
    ///
    /// # Errors
    /// The reason why the task cannot be unique.
    pub(super) fn of(policy: &TypePolicy, task: &TaskSpec) -> Result<Option<Self>, String> {
        let Some(own) = task.ask_rule() else { return Ok(None) };
        if !task.id.is_root() {
            return Err("only a root can be unique: omit it, or `ce_parent`".to_owned());
        }
        let bytes = task.params.text().len();
        if bytes > MAX_UNIQUE_PARAMS_BYTES {
            return Err(format!(
                "the params of a unique task have {bytes} bytes: at most {MAX_UNIQUE_PARAMS_BYTES} are allowed"
            ));
        }
        let setting = policy.unique.as_ref();
        let header = |name: &str| {
            let headers = &task.policy.as_ref()?.rules.headers;
            headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
        };
        let key = match own.key() {
            Some(key) => Some(key.to_owned()),
            None => setting.map_or(Ok(None), |setting| setting.key_of(&task.params, None, header))?,
        };
        let key = key.ok_or("it names no key, and the setting `unique` of the type finds none")?;
        let rule = own.complete(key.clone(), setting);
        rule.check_complete()?;
        let tag = tag(&task.task_type, &key);
        let id = if task.id.tag() == Some(&tag) {
            Ok(task.id.clone())
        } else {
            TaskId::parse(&ask_id(&tag, task.id.as_str()))
        };
        let id = id.map_err(|error| format!("the id with the key is invalid: {error}"))?;
        Ok(Some(Self { id, rule }))
    }

    /// Makes the task that of the ask.
    pub(super) fn apply(self, task: &mut TaskSpec) {
        task.id = self.id;
        task.policy.get_or_insert_default().unique = Some(self.rule);
        if task.hash.is_none() {
            task.hash = spawn_hash(&task.task_type, &task.params).ok().map(Into::into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafleet_model::json::RawJson;
    use kafleet_model::task::Policy;
    use kafleet_model::unique::UniqueSetting;

    fn task(id: &str, unique: Option<&str>) -> TaskSpec {
        let mut task =
            TaskSpec::new(TaskId::parse(id).unwrap(), "refresh", RawJson::parse(b"{\"customer\":7}").unwrap());
        let unique = unique.map(|text| UniqueRule::parse(text).unwrap());
        task.set_policy(Policy { unique, ..Policy::default() });
        task
    }

    fn ask(task: &TaskSpec, by: Option<&str>) -> Result<Option<String>, String> {
        let setting = UniqueSetting { by: by.map(str::to_owned), ..UniqueSetting::default() };
        let policy = TypePolicy { unique: Some(setting), ..TypePolicy::default() };
        Ok(ForeignAsk::of(&policy, task)?.map(|ask| ask.id.to_string()))
    }

    #[test]
    fn record_with_the_header_asks_under_an_id_of_its_key() {
        let id = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(ask(&task("a", Some("k")), None), id("refresh~k~~a"));
        assert_eq!(ask(&task("refresh~k~~a", Some("k")), None), id("refresh~k~~a"));
        assert_eq!(ask(&task("a", Some("{\"mode\":\"latest\"}")), Some("/customer")), id("refresh~7~~a"));
        assert_eq!(ask(&task("a", None), Some("/customer")), Ok(None), "only the header makes a foreign record unique");
        let decided = TaskSpec { asked: true, ..task("a", Some("k")) };
        assert_eq!(ask(&decided, None), Ok(None));
        for (refused, reason) in [
            (task("a:b", Some("k")), "only a root"),
            (task("a", Some("{\"mode\":\"latest\"}")), "names no key"),
            (task("a", Some("{\"key\":\"k\",\"mode\":\"throttle\"}")), "needs a `window`"),
        ] {
            assert!(ask(&refused, None).unwrap_err().contains(reason), "{reason}");
        }
    }
}
