//! Task types from `kafleet.toml`. A `[types.<name>]` section with a handler defines a type; one without a handler
//! overrides the policy of a type registered in Rust.

pub mod callback;
pub(crate) mod demo;
pub mod echo;
pub mod email;
pub mod exec;
pub mod foreach;
pub mod http;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Url};
use serde_json::Value;

use super::builtin::callback::Callbacks;
use super::builtin::echo::Echo;
use super::builtin::email::Emails;
use super::builtin::exec::{Exec, Program, RETRY_EXIT_CODE};
use super::builtin::foreach::Foreach;
use super::builtin::http::{Call, Http};
use super::{Registered, Registry, Schema, Task};
use crate::config::{CallbacksConfig, EmailConfig, HandlerKind, TypeConfig, WorkerConfig};
use crate::model::task::id::{check_own_type, clip};

/// Maximum size of a schema file, in bytes.
const MAX_SCHEMA_BYTES: u64 = 1 << 20;

/// Environment of types defined in the configuration.
pub struct HandlerEnv<'a> {
    /// Directory of `kafleet.toml`; relative paths start there.
    pub dir: &'a Path,
    pub worker: &'a WorkerConfig,
    pub callbacks: Option<&'a CallbacksConfig>,
    pub email: Option<&'a EmailConfig>,
}

/// Registers the types of `[types]`. The error lists every problem with its key; problems visible in the file alone
/// were already reported with their line when it was read.
pub fn register_config(
    registry: &mut Registry,
    types: &BTreeMap<String, TypeConfig>,
    env: &HandlerEnv<'_>,
) -> Result<(), Vec<String>> {
    let (mut problems, mut client) = (Vec::new(), None);
    let notifying = [
        ("callbacks", callback::TYPE, env.callbacks.map(Callbacks::registered)),
        ("email", email::TYPE, env.email.map(Emails::registered)),
    ];
    for (section, name, made) in notifying {
        match made {
            Some(Ok(registered)) => drop(registry.add_reserved(name, registered)),
            Some(Err(why)) => problems.push(format!("`{section}`: {why}")),
            None => {}
        }
    }
    for (name, config) in types {
        let mut section = Section { name, config, env, client: &mut client, problems: &mut problems };
        if registry.get(name).is_some() {
            section.override_policy(registry);
        } else if let Some(registered) = section.make() {
            registry.add(name, registered);
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Registers `echo` and `foreach` under their own names, unless these are taken: the types of a fleet without
/// configuration.
pub fn register_samples(registry: &mut Registry) {
    if registry.get("echo").is_none() {
        registry.add("echo", Registered::new(Echo));
    }
    if registry.get("foreach").is_none() {
        registry.task::<Foreach>();
    }
}

/// Returns the handler that a child process runs under this name: one registered in Rust, otherwise a built-in one.
pub fn in_child(registry: &Registry, name: &str) -> Option<Registered> {
    registry.get(name).cloned().or_else(|| match name {
        "echo" => Some(Registered::new(Echo)),
        Foreach::TYPE => Some(Registered::of::<Foreach>()),
        _ => None,
    })
}

/// A `[types.<name>]` section being processed.
struct Section<'a> {
    name: &'a str,
    config: &'a TypeConfig,
    env: &'a HandlerEnv<'a>,
    /// Created for the first `http` type and shared by all.
    client: &'a mut Option<Client>,
    problems: &'a mut Vec<String>,
}

impl Section<'_> {
    fn problem(&mut self, key: &str, why: impl std::fmt::Display) {
        let key = if key.is_empty() { String::new() } else { format!(".{key}") };
        self.problems.push(format!("`types.{}{key}`: {why}", self.name));
    }

    fn override_policy(&mut self, registry: &mut Registry) {
        let in_code = "the type is registered in Rust, where its handler and schema come from: remove this key";
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
    fn make(&mut self) -> Option<Registered> {
        let before = self.problems.len();
        if let Err(why) = check_own_type(self.name) {
            self.problem("", why);
        }
        let Some(kind) = self.config.handler else {
            self.problem(
                "handler",
                "missing, and no Rust type of this name is registered; hint: set it to `echo`, `foreach`, `exec` or `http`",
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
        Some(Registered { schema: schema.unwrap_or_else(|| made.schema.clone()), policy, ..made })
    }

    fn handler(&mut self, kind: HandlerKind) -> Option<Registered> {
        match kind {
            HandlerKind::Echo => Some(Registered::new(Echo)),
            HandlerKind::Foreach => Some(Registered::of::<Foreach>()),
            HandlerKind::Exec => self.program().map(|program| Registered::new(Exec::new(program))),
            HandlerKind::Http => self.call().map(|(client, call)| Registered::new(Http::new(client, call))),
        }
    }

    fn program(&mut self) -> Option<Program> {
        let Some((program, arguments)) = self.config.command.split_first().filter(|(program, _)| !program.is_empty()) else {
            self.problem("command", "missing; hint: a program and its arguments, such as [\"python3\", \"count.py\"]");
            return None;
        };
        // A name without a slash is looked up in PATH; a path is relative to kafleet.toml, independent of the working
        // directory.
        let program = if program.contains('/') { self.path(Path::new(program)) } else { PathBuf::from(program) };
        Some(Program {
            program,
            arguments: arguments.to_vec(),
            env: self.config.env.clone(),
            cwd: self.path(self.config.cwd.as_deref().unwrap_or(Path::new("."))),
            retry_exit_codes: self.config.retry_exit_codes.clone().unwrap_or_else(|| vec![RETRY_EXIT_CODE]),
            max_output: self.max_output(),
            grace: Duration::from(self.env.worker.grace),
        })
    }

    fn call(&mut self) -> Option<(Client, Call)> {
        let (url, method, headers) = (self.url(), self.method(), self.headers());
        if self.client.is_none() {
            *self.client = http::client().map_err(|why| self.problem("", why)).ok();
        }
        let client = self.client.clone();
        Some((client?, Call { url: url?, method: method?, headers: headers?, max_output: self.max_output() }))
    }

    fn url(&mut self) -> Option<Url> {
        let Some(text) = &self.config.url else {
            self.problem(
                "url",
                "missing; hint: set it to the address of the service, such as \"https://resizer.internal/resize\"",
            );
            return None;
        };
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if url.is_none() {
            self.problem("url", format!("`{}` is not an http or https url", clip(text)));
        }
        url
    }

    fn method(&mut self) -> Option<Method> {
        match self.config.method.as_deref().unwrap_or("POST") {
            "POST" => Some(Method::POST),
            "PUT" => Some(Method::PUT),
            "PATCH" => Some(Method::PATCH),
            other => {
                self.problem("method", format!("`{}` is unknown: use POST, PUT or PATCH", clip(other)));
                None
            }
        }
    }

    fn headers(&mut self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.config.headers {
            match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                (Ok(name), Ok(value)) => drop(headers.insert(name, value)),
                // The value may be a secret and is not shown.
                (Ok(_), Err(_)) => {
                    self.problem(&format!("headers.{name}"), "the value has characters that are not allowed in a header")
                }
                (Err(_), _) => self.problem("headers", format!("`{}` is not the name of a header", clip(name))),
            }
        }
        (headers.len() == self.config.headers.len()).then_some(headers)
    }

    /// Returns the configured schema; `None`: the handler's own.
    fn schema(&mut self, kind: HandlerKind) -> Option<Schema> {
        let file = self.config.schema.as_ref()?;
        if kind == HandlerKind::Foreach {
            self.problem("schema", "`foreach` has its own schema: remove this key");
            return None;
        }
        let path = self.path(file);
        read_schema(&path).map_err(|why| self.problem("schema", format!("`{}`: {why}", path.display()))).ok()
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
    let file = std::fs::File::open(path).map_err(|why| why.to_string())?;
    file.take(MAX_SCHEMA_BYTES + 1).read_to_end(&mut text).map_err(|why| why.to_string())?;
    if text.len() as u64 > MAX_SCHEMA_BYTES {
        return Err(format!("larger than {MAX_SCHEMA_BYTES} bytes, the maximum for a schema"));
    }
    let schema: Value = serde_json::from_slice(&text).map_err(|why| format!("not JSON: {why}"))?;
    Schema::compile(schema).map_err(|why| format!("not a JSON Schema: {why}"))
}
