//! Schedules that the configuration and the code of apps declare, with their owners.

use std::collections::BTreeMap;

use kafleet_apps::pool::AppPool;
use kafleet_config::{AppConfig, Config};
use kafleet_model::json::RawJson;
use kafleet_model::schedule::{CONFIG_OWNER, Spec};

use crate::cli::app_target::{TARGET_APP, starts_the_same};
use crate::cli::exit::Failure;
use crate::cli::setup::Setup;

/// Schedules by name.
pub(crate) type DeclaredSchedules = BTreeMap<String, DeclaredSchedule>;

/// Schedule of the configuration or of an app.
pub(crate) struct DeclaredSchedule {
    pub owner: String,
    pub spec: Spec,
}

/// Returns the schedules of the configuration and of all apps.
///
/// # Errors
/// Two sources declare different schedules with one name.
pub(crate) fn declared(setup: &Setup) -> Result<DeclaredSchedules, Failure> {
    let of_config = setup.config.schedules.iter();
    let of_config = of_config.map(|(name, spec)| (CONFIG_OWNER.to_owned(), name, spec));
    let of_apps = setup.apps.iter().flat_map(|pool| of_app(pool, &setup.config));
    collect(of_config.chain(of_apps))
}

/// Returns the schedules of the app on the command line, and their owner.
///
/// # Errors
/// As [`declared`].
pub(crate) fn declared_by(target: &AppConfig, setup: &Setup) -> Result<(String, DeclaredSchedules), Failure> {
    let is_target = |pool: &&&AppPool| {
        setup
            .config
            .apps
            .get(pool.name())
            .is_some_and(|section| section.command == target.command || starts_the_same(section, target))
    };
    let pools: Vec<&AppPool> = setup.apps.iter().map(|pool| &**pool).collect();
    let pool =
        pools.iter().find(is_target).ok_or_else(|| Failure::failed("the app on the command line was not started"))?;
    Ok((owner_of(pool, &setup.config), collect(of_app(pool, &setup.config))?))
}

/// Returns whether two schedules have equal values: an API keeps numbers and the order of names as they were written.
pub(crate) fn is_same(one: &Spec, other: &Spec) -> bool {
    let texts = RawJson::of(one).and_then(|one| Ok((one, RawJson::of(other)?)));
    texts.is_ok_and(|(one, other)| one.is_same_value(&other))
}

/// Apps that share a module declare the same schedules: the first one owns them.
fn collect<'a>(sources: impl Iterator<Item = (String, &'a String, &'a Spec)>) -> Result<DeclaredSchedules, Failure> {
    let mut all = DeclaredSchedules::new();
    for (owner, name, spec) in sources {
        match all.get(name) {
            Some(other) if !is_same(&other.spec, spec) => {
                let both = format!("`{}` and `{owner}` declare different schedules `{name}`", other.owner);
                return Err(Failure::usage(both).hint("give each its own name"));
            }
            Some(_) => {}
            None => drop(all.insert(name.clone(), DeclaredSchedule { owner, spec: spec.clone() })),
        }
    }
    Ok(all)
}

fn of_app<'a>(pool: &'a AppPool, config: &Config) -> impl Iterator<Item = (String, &'a String, &'a Spec)> {
    let owner = owner_of(pool, config);
    pool.declaration().schedules.iter().map(move |(name, spec)| (owner.clone(), name, spec))
}

/// Owner of the schedules of an app: `app/` and its name, or the file or module of the app on the command line.
fn owner_of(pool: &AppPool, config: &Config) -> String {
    let entry = config.apps.get(pool.name()).and_then(|app| app.command.last());
    let name = entry.filter(|_| pool.name() == TARGET_APP).map_or(pool.name(), String::as_str);
    let is_kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let kept: String = name.chars().map(|c| if is_kept(c) { c } else { '-' }).take(64).collect();
    format!("app/{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_may_share_a_schedule_and_not_its_name() {
        let spec = |every: &str, n: &str| -> Spec {
            let text = format!(r#"{{"every":"{every}","task":{{"type":"echo","params":{{"n":{n}}}}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let (name, hourly, same, other) = ("tick".to_owned(), spec("1h", "1"), spec("1h", "1.0"), spec("2h", "1"));
        let both =
            |spec| collect([("app/a".to_owned(), &name, &hourly), ("app/b".to_owned(), &name, spec)].into_iter());
        assert_eq!(both(&same).ok().unwrap()["tick"].owner, "app/a");
        let refused = both(&other).err().unwrap().message;
        assert_eq!(refused, "`app/a` and `app/b` declare different schedules `tick`");
    }
}
