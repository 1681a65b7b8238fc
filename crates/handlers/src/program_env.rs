//! Environment of the programs that a worker starts: programs of `exec` types, processes of apps, and child processes.
//!
//! Programs inherit the worker's environment without its secrets: a program shows its environment in crash reports and
//! debug pages, and passes it on to everything that it starts. Withheld are the variables that kafleet.toml expands, and
//! those in which kafleet itself reads secrets, unless the section of the program names them in `env`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::Arc;

use kafleet_config::ProgramVariables;
use tokio::process::Command;

/// Variables in which kafleet reads secrets.
pub const OWN_SECRETS: [&str; 6] = [
    "KAFLEET_POSTGRES",
    "KAFLEET_REBUILD_INTO",
    "KAFLEET_REDIS",
    "KAFLEET_TOKEN",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
];

/// Variables that all programs inherit: without them most programs do not find what they need, and child processes do
/// not log like their worker.
const ORDINARY: [&str; 13] = [
    "HOME",
    "HOSTNAME",
    "KAFLEET_LOG",
    "KAFLEET_LOG_FORMAT",
    "LANG",
    "LOGNAME",
    "PATH",
    "PWD",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
];

/// Names of the worker's variables that its programs do not inherit.
#[derive(Clone, Debug)]
pub struct WithheldVariables(Arc<BTreeSet<String>>);

impl WithheldVariables {
    /// Withholds the variables that a configuration expands, and those with kafleet's own secrets.
    pub fn new(expanded: BTreeSet<String>) -> Self {
        let all = expanded.into_iter().chain(OWN_SECRETS.map(str::to_owned));
        Self(Arc::new(all.filter(|name| !is_ordinary(name)).collect()))
    }
}

impl Default for WithheldVariables {
    fn default() -> Self {
        Self::new(BTreeSet::new())
    }
}

fn is_ordinary(name: &str) -> bool {
    ORDINARY.contains(&name) || name.starts_with("LC_")
}

/// Environment of a program.
#[derive(Clone, Debug, Default)]
pub struct ProgramEnv {
    /// Variables of the program's section.
    pub variables: ProgramVariables,
    /// Variables of the worker that are withheld, unless the section names them.
    pub withheld: WithheldVariables,
}

impl ProgramEnv {
    /// Returns a command with this environment. Every program is started with one.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if self.variables.inherit {
            for name in self.withheld.0.iter() {
                command.env_remove(name);
            }
        } else {
            let kept = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ordinary));
            command.env_clear().envs(kept);
        }
        command.envs(&self.variables.own);
        command
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Variables that a program changes or removes (`None`) in the environment that it inherits.
    fn changes(expanded: &[&str], own: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
        let own = own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let variables = ProgramVariables { own, inherit: true };
        let withheld = WithheldVariables::new(expanded.iter().map(|name| (*name).to_owned()).collect());
        let command = ProgramEnv { variables, withheld }.command("true");
        let text = |text: &OsStr| text.to_str().unwrap().to_owned();
        command.as_std().get_envs().map(|(name, value)| (text(name), value.map(text))).collect()
    }

    #[test]
    fn expanded_variables_and_own_secrets_are_withheld_unless_named() {
        let named = changes(&["KAFKA_PASSWORD", "SHOP_TOKEN"], &[("SHOP_TOKEN", "s"), ("LANG", "C")]);
        assert_eq!((&named["KAFKA_PASSWORD"], named["SHOP_TOKEN"].as_deref()), (&None, Some("s")));
        assert!(OWN_SECRETS.iter().all(|name| named[*name].is_none()), "{named:?}");
        assert_eq!(named["LANG"].as_deref(), Some("C"));
        assert_eq!(named.len(), 3 + OWN_SECRETS.len(), "all else is inherited: {named:?}");
    }

    #[test]
    fn ordinary_variables_are_inherited_although_the_configuration_expands_them() {
        let changed = changes(&["HOME", "PATH", "LC_ALL", "OTHER"], &[]);
        assert!(!["HOME", "PATH", "LC_ALL"].iter().any(|name| changed.contains_key(*name)), "{changed:?}");
        assert_eq!(changed["OTHER"], None);
    }

    #[tokio::test]
    async fn program_that_inherits_nothing_has_only_ordinary_variables_and_its_own() {
        let own = BTreeMap::from([("OWN".to_owned(), "1".to_owned())]);
        let env = ProgramEnv { variables: ProgramVariables { own, inherit: false }, ..ProgramEnv::default() };
        let output = env.command("env").output().await.unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let names: Vec<&str> = printed.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        assert!(names.contains(&"OWN") && names.contains(&"PATH"), "{names:?}");
        assert!(names.iter().all(|name| *name == "OWN" || is_ordinary(name)), "{names:?}");
    }
}
