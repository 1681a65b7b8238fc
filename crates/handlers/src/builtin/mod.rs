//! Task types from `kafleet.toml`. A `[types.<name>]` section with a handler defines a type; one without a handler
//! overrides the policy of a type registered in Rust.

mod batch_answers;
pub mod callback;
pub mod demo;
pub mod echo;
pub mod email;
pub mod exec;
pub mod foreach;
pub mod http;
mod http_batch;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use kafleet_config::{CallbacksConfig, EmailConfig, HandlerKind, TypeConfig, WorkerConfig};
use kafleet_model::similar::similar;
use kafleet_model::task::id::check_own_type;
use serde_json::Value;

use super::builtin::callback::Callbacks;
use super::builtin::echo::Echo;
use super::builtin::email::Emails;
use super::builtin::exec::Exec;
use super::builtin::foreach::Foreach;
use super::builtin::http::Http;
use super::egress::kept_connections::KeepAliveClient;
use super::program_env::WithheldVariables;
use super::{Registry, Schema, Task, TypeRegistration};

/// Maximum size of a schema file, in bytes.
const MAX_SCHEMA_BYTES: u64 = 1 << 20;

/// Environment of types defined in the configuration.
pub struct HandlerEnv<'a> {
    /// Directory of `kafleet.toml`; relative paths start there.
    pub dir: &'a Path,
    pub worker: &'a WorkerConfig,
    pub callbacks: Option<&'a CallbacksConfig>,
    pub email: Option<&'a EmailConfig>,
    /// Variables of the worker that programs do not inherit.
    pub withheld: &'a WithheldVariables,
    /// There are apps that have not been started: sections without a handler may belong to their types.
    pub has_unknown_types: bool,
}

/// Registers the types of `[types]`. The error lists every problem with its key; problems visible in the file alone
/// were already reported with their line when it was read.
pub fn register_config(
    registry: &mut Registry,
    types: &BTreeMap<String, TypeConfig>,
    env: &HandlerEnv<'_>,
) -> Result<(), Vec<String>> {
    let (mut problems, mut client) = (Vec::new(), None);
    let slots = types.get(callback::TYPE).and_then(|config| config.concurrency);
    let notifying = [
        ("callbacks", callback::TYPE, env.callbacks.map(|config| Callbacks::registered(config, slots))),
        ("email", email::TYPE, env.email.map(Emails::registered)),
    ];
    for (section, name, made) in notifying {
        match made {
            Some(Ok(registered)) => drop(registry.add_reserved(name, registered)),
            Some(Err(error)) => problems.push(format!("`{section}`: {error}")),
            None => {}
        }
    }
    let declared: Vec<String> = registry.types().map(|(name, _)| name.to_string()).collect();
    for (name, config) in types {
        let (client, problems) = (&mut client, &mut problems);
        let mut section = Section { name, config, env, client, declared: &declared, problems };
        if registry.get(name).is_some() {
            section.override_policy(registry);
        } else if (config.handler.is_some() || !env.has_unknown_types)
            && let Some(registered) = section.create_type()
        {
            registry.add(name, registered);
        }
    }
    for (name, registered) in registry.types() {
        let contradictions = registered.policy.contradictions().into_iter();
        problems.extend(contradictions.map(|(key, error)| format!("`types.{name}.{key}`: {error}")));
        if registered.policy.batch.is_some() && !registered.handler.capabilities().takes_batches {
            problems.push(format!(
                "`types.{name}.batch`: the handler takes one task a call; hint: implement `BatchTask` for the type, without layers \
                 and services of its own, use `exec` or `http`, or remove this key"
            ));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Registers `echo` and `foreach` under their own names, unless these are taken: the types of a fleet without
/// configuration.
pub fn register_samples(registry: &mut Registry) {
    if registry.get("echo").is_none() {
        registry.add("echo", TypeRegistration::new(Echo));
    }
    if registry.get("foreach").is_none() {
        registry.task::<Foreach>();
    }
}

/// Returns the handler that a child process runs under this name: one registered in Rust, otherwise a built-in one.
pub fn in_child(registry: &Registry, name: &str) -> Option<TypeRegistration> {
    registry.get(name).cloned().or_else(|| match name {
        "echo" => Some(TypeRegistration::new(Echo)),
        Foreach::TYPE => Some(TypeRegistration::of::<Foreach>()),
        _ => None,
    })
}

/// A `[types.<name>]` section being processed.
struct Section<'a> {
    name: &'a str,
    config: &'a TypeConfig,
    env: &'a HandlerEnv<'a>,
    /// Created for the first `http` type and shared by all.
    client: &'a mut Option<KeepAliveClient>,
    /// Names of the types of Rust and of apps.
    declared: &'a [String],
    problems: &'a mut Vec<String>,
}

impl Section<'_> {
    fn problem(&mut self, key: &str, error: impl std::fmt::Display) {
        let key = if key.is_empty() { String::new() } else { format!(".{key}") };
        self.problems.push(format!("`types.{}{key}`: {error}", self.name));
    }

    fn override_policy(&mut self, registry: &mut Registry) {
        let in_code = "the handler and the schema come from the code of the type: remove this key";
        if self.config.handler.is_some() {
            self.problem("handler", in_code);
        }
        if self.config.schema.is_some() {
            self.problem("schema", in_code);
        }
        if let Some(registered) = registry.get_mut(self.name) {
            registered.policy = registered.policy.clone().with(self.config);
        }
    }

    /// Creates the type. Problems are recorded and give `None`.
    fn create_type(&mut self) -> Option<TypeRegistration> {
        let before = self.problems.len();
        if let Err(error) = check_own_type(self.name) {
            self.problem("", error);
        }
        let Some(kind) = self.config.handler else {
            let near = similar(self.name, self.declared.iter().map(String::as_str));
            let near = near.map(|name| format!("did you mean `{name}`? Or ")).unwrap_or_default();
            self.problem(
                "handler",
                format_args!(
                    "missing, and no Rust type or app has this name; hint: {near}set it to `echo`, `foreach`, `exec` or `http`"
                ),
            );
            return None;
        };
        let made = self.handler(kind);
        let schema = self.schema(kind);
        if self.problems.len() > before {
            return None;
        }
        let made = made?;
        let policy = made.policy.clone().with(self.config);
        Some(TypeRegistration { schema: schema.unwrap_or_else(|| made.schema.clone()), policy, ..made })
    }

    fn handler(&mut self, kind: HandlerKind) -> Option<TypeRegistration> {
        match kind {
            HandlerKind::Echo => Some(TypeRegistration::new(Echo)),
            HandlerKind::Foreach => Some(TypeRegistration::of::<Foreach>()),
            HandlerKind::Exec => Exec::from_section(self),
            HandlerKind::Http => Http::from_section(self),
        }
    }

    /// Returns the configured schema; `None`: the handler's own.
    fn schema(&mut self, kind: HandlerKind) -> Option<Schema> {
        let file = self.config.schema.as_ref()?;
        if kind == HandlerKind::Foreach {
            self.problem("schema", "`foreach` has its own schema: remove this key");
            return None;
        }
        let path = self.path(file);
        read_schema(&path).map_err(|error| self.problem("schema", format!("`{}`: {error}", path.display()))).ok()
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.env.dir.join(path)
    }

    fn max_output(&self) -> usize {
        usize::try_from(self.env.worker.max_output.0).unwrap_or(usize::MAX)
    }
}

fn read_schema(path: &Path) -> Result<Schema, String> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_SCHEMA_BYTES + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_SCHEMA_BYTES {
        return Err(format!("larger than {MAX_SCHEMA_BYTES} bytes, the maximum for a schema"));
    }
    let schema: Value = serde_json::from_slice(&text).map_err(|error| format!("not JSON: {error}"))?;
    Schema::compile(schema).map_err(|error| format!("not a JSON Schema: {error}"))
}
