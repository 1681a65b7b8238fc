//! `[types.<name>]`: handler, limits and policy of a type.
//!
//! The table at the end lists all keys; rules about single ones are in `type_rules.rs` and `policy.rs`. From it come [`TypeConfig`], the section as it is written;
//! [`TypePolicy`], the values in force; the constants of `Task` (crate `kafleet-handlers`); the keys that a running worker takes
//! over; and, in files that `KAFLEET_UPDATE=1 cargo test --test standalone schemas` writes, docs/configuration.md,
//! `schemas/config.json`, the options of the SDKs, and the keys for which the chart replaces no pods.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kafleet_model::batch::setting::{BatchPolicy, BatchSetting};
use kafleet_model::omit::is_default;
use kafleet_model::retry::DEFAULT_MAX_WAIT;
use kafleet_model::unique::UniqueSetting;
use kafleet_model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::types::{HandlerKind, Isolation, OnError, Order};
use super::{Adaptive, Bytes, ProgramVariables, Rate};

/// Key of `[types.<name>]`, for its documentation.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct TypeSetting {
    pub key: &'static str,
    /// Default as text for people.
    pub default: &'static str,
    /// Description without links.
    pub doc: &'static str,
    /// Further text of the documentation, with links.
    pub details: &'static str,
    /// A running worker applies a change of the file.
    pub is_live: bool,
    pub scope: SettingScope,
}

/// Types that have a setting, and who sets it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingScope {
    /// All types: an app may declare it for its types, and kafleet.toml sets it.
    Declarable,
    /// All types: only kafleet.toml sets it.
    FileOnly,
    /// Types with the handler `exec`.
    Exec,
    /// Types with the handler `http`.
    Http,
}

impl TypeSetting {
    /// Returns the built-in handler that alone uses the setting.
    pub fn handler(&self) -> Option<HandlerKind> {
        match self.scope {
            SettingScope::Declarable | SettingScope::FileOnly => None,
            SettingScope::Exec => Some(HandlerKind::Exec),
            SettingScope::Http => Some(HandlerKind::Http),
        }
    }
}

/// Value of the section that overrides one of the code.
trait Override<T> {
    fn override_value(&self, value: &mut T);
}

impl<T: Clone> Override<T> for Option<T> {
    fn override_value(&self, value: &mut T) {
        if let Some(setting) = self {
            value.clone_from(setting);
        }
    }
}

impl<T: Clone> Override<Option<T>> for Option<T> {
    fn override_value(&self, value: &mut Option<T>) {
        if self.is_some() {
            value.clone_from(self);
        }
    }
}

/// Each member overrides that of the code.
impl Override<Option<BatchPolicy>> for Option<BatchSetting> {
    fn override_value(&self, value: &mut Option<BatchPolicy>) {
        if let Some(setting) = self {
            *value = Some(value.take().unwrap_or_default().with(setting));
        }
    }
}

impl Override<Vec<String>> for Vec<String> {
    fn override_value(&self, value: &mut Vec<String>) {
        if !self.is_empty() {
            value.clone_from(self);
        }
    }
}

impl Override<BTreeMap<String, String>> for BTreeMap<String, String> {
    fn override_value(&self, value: &mut BTreeMap<String, String>) {
        if !self.is_empty() {
            value.clone_from(self);
        }
    }
}

/// Reload of a key that is marked as `live`.
fn live<T: Clone>(value: &mut T, new: &T) {
    value.clone_from(new);
}

/// Defines the section, the policy and the list of keys.
macro_rules! define {
    ($(
        $key:ident: $written:ty $([$($schema:tt)*])?, $default:literal, $doc:literal $(+ $details:literal)?
        $(, policy $policy:ty = $value:expr)? $(, constant $name:ident: $constant:ty = $of_code:expr)?
        => $scope:ident $(+ $live:ident)?;
    )*) => {
        /// Section `[types.<name>]`.
        #[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct TypeConfig {
            $(
                #[doc = concat!($doc, " Default: ", $default, ".")]
                #[serde(skip_serializing_if = "is_default")]
                $(#[schemars($($schema)*)])?
                pub $key: $written,
            )*
        }

        /// Execution policy of a type: the settings of its code, overridden by `[types.<name>]`.
        #[derive(Clone, Debug, PartialEq)]
        pub struct TypePolicy {
            $($(
                #[doc = concat!($doc, " Default: ", $default, ".")]
                pub $key: $policy,
            )?)*
            /// Environment variables of child processes.
            pub variables: ProgramVariables,
        }

        impl Default for TypePolicy {
            fn default() -> Self {
                Self { $($($key: $value,)?)* variables: ProgramVariables::default() }
            }
        }

        impl TypePolicy {
            /// Overrides the policy with the values that are set in a section of the configuration.
            pub fn with(mut self, config: &TypeConfig) -> Self {
                $($( Override::<$policy>::override_value(&config.$key, &mut self.$key); )?)*
                if !config.variables().is_default() {
                    self.variables = config.variables();
                }
                self
            }

            /// Returns the policy with the values of another one that can change while a worker runs.
            pub fn reloaded(&self, new: &Self) -> Self {
                let mut policy = self.clone();
                $($( $live(&mut policy.$key, &new.$key); )?)*
                policy
            }
        }

        /// The keys of `[types.<name>]`, in the order of the documentation.
        #[doc(hidden)]
        pub const TYPE_SETTINGS: &[TypeSetting] = &[$(
            TypeSetting {
                key: stringify!($key),
                default: $default,
                doc: $doc,
                details: concat!($($details)?),
                is_live: !concat!($(stringify!($live))?).is_empty(),
                scope: SettingScope::$scope,
            },
        )*];
    };
}

/// Calls a macro with the table. An entry: key, type in the section with the attributes of its schema, default and
/// description; then, as far as it has them, its type and default in the policy, its constant in
/// `Task` (crate `kafleet-handlers`), and `live`; last, the types that have it ([`SettingScope`]).
#[doc(hidden)]
#[macro_export]
macro_rules! with_type_settings {
    ($then:ident) => { $then! {
        handler: Option<HandlerKind>, "the code of the worker or of an app",
            "Built-in handler: `\"echo\"`, `\"foreach\"`, `\"exec\"` or `\"http\"`." => FileOnly;
        group: Option<String>, "`worker.group`; else `app-<app>` for types of apps",
            "Name of a consumer group shared with other types; the type's own name: a group of its own."
            + "See [shared consumer groups](#shared-consumer-groups)." => FileOnly;
        concurrency: Option<u32> [range(min = 1, max = 100_000)], "number of cores; of an app: `processes` × `slots`",
            "Concurrent attempts per worker, 1 to 100,000.",
            policy Option<u32> = None, constant CONCURRENCY: u32 = 0 => Declarable + live;
        max_concurrency: Option<u32> [range(min = 1)], "no limit",
            "Concurrent attempts in all workers together."
            + "The limit is divided among partitions: of P partitions each has ⌊limit/P⌋ slots, the first (limit mod P) one more, and a worker may use the sum over its partitions; so the limit is at least P and independent of the number of workers. It may be exceeded for a session timeout after a worker is lost, and after a rebalance until attempts started under the previous assignment have ended.",
            policy Option<u32> = None => Declarable + live;
        adaptive: Option<Adaptive>, "none",
            "Limit of concurrent attempts in the whole fleet that is learned from refusals: `{ min = 2, target = \"400ms\", on = [\"rate_limited\"] }`."
            + "At most `concurrency` a worker and `max_concurrency` in all. `min` (default 1) is the smallest limit, `target` (default none) the mean time of an attempt above which it is cut, `on` lists the error kinds of refusals (default `rate_limited`, `overloaded`, `unreachable`). `{}` switches it on with the defaults. See [adaptive concurrency](task-types.md#adaptive-concurrency).",
            policy Option<Adaptive> = None => Declarable + live;
        rate: Option<Rate>, "no limit",
            "Limit of starting attempts: `{ count = 100, per = \"1s\", burst = 10, by = \"type\" }`."
            + "`count` attempts may start per `per` (default `1s`), up to `burst` (default 1) at once after an idle time. By `\"type\"` the limit and its burst apply to the whole fleet, divided among workers by their partitions (a worker may always start one); by `\"key\"` to tasks with the same key, which are in one partition. Retries count.",
            policy Option<Rate> = None => Declarable + live;
        order: Option<Order>, "`\"none\"`",
            "Order in which tasks run."
            + "`\"none\"`: no order, the fastest; `\"key\"`: one at a time per key; `\"partition\"`: one at a time per partition, so `concurrency` beyond `partitions` is refused.",
            policy Order = Order::None, constant ORDER: Order = Order::None => Declarable;
        retries: Option<u32> [range(max = 1000)], "`5`",
            "Number of retries, up to 1,000.",
            policy u32 = 5, constant RETRIES: u32 = 5 => Declarable + live;
        min_backoff: Option<Millis>, "`1s`",
            "Wait before the second attempt."
            + "It doubles with each further attempt, plus a random 0 to 20 %.",
            policy Millis = Millis::secs(1), constant MIN_BACKOFF: Duration = Duration::from_secs(1) => Declarable + live;
        max_backoff: Option<Millis>, "`3s`",
            "Maximum wait between two attempts."
            + "Before the random part; at least `min_backoff`.",
            policy Millis = Millis::secs(3), constant MAX_BACKOFF: Duration = Duration::from_secs(3) => Declarable + live;
        backoff_reset: Option<Millis>, "never",
            "Time of an attempt after which its failure starts the backoff again at `min_backoff`."
            + "For attempts that work for long and fail now and then. `retries` counts them all the same.",
            policy Option<Millis> = None, constant BACKOFF_RESET: Option<Duration> = None => Declarable + live;
        max_wait: Option<Millis>, "`24h`",
            "Time after the first wait of a run from which on waits count as attempts; `0`: each counts."
            + "See [waits](task-types.md#waits).",
            policy Millis = DEFAULT_MAX_WAIT, constant MAX_WAIT: Duration = Duration::from_secs(24 * 3_600) => Declarable + live;
        timeout: Option<Millis>, "`120s`",
            "Time limit of one attempt.",
            policy Millis = Millis::secs(120), constant TIMEOUT: Duration = Duration::from_secs(120) => Declarable + live;
        total_timeout: Option<Millis>, "no limit",
            "Time limit of the task with all attempts and waits, from its creation (or `ce_notbefore`).",
            policy Option<Millis> = None, constant TOTAL_TIMEOUT: Option<Duration> = None => Declarable + live;
        stall_timeout: Option<Millis>, "no limit",
            "Time without progress, log line or heartbeat after which an attempt fails as `stalled`.",
            policy Option<Millis> = None, constant STALL_TIMEOUT: Option<Duration> = None => Declarable + live;
        retention: Option<Millis>, "`topics.record_retention`",
            "Retention of finished trees whose root has this type." => FileOnly;
        retry_on: Vec<String>, "none",
            "Error kinds that are retried even if the handler declares them final; `*` is any kind not named.",
            policy Vec<String> = Vec::new() => Declarable + live;
        fail_on: Vec<String>, "none",
            "Error kinds that are final even if the handler would retry them; `*` is any kind not named.",
            policy Vec<String> = Vec::new() => Declarable + live;
        on_error: Option<OnError>, "`\"retry\"`",
            "Consequence of a failed attempt: `\"retry\"`, `\"fail\"` or `\"skip\"`.",
            policy OnError = OnError::Retry => Declarable + live;
        max_failures: Option<u32> [range(min = 1, max = 1_000_000)], "no limit",
            "Number of failed attempts of any kind within `failure_period` above which the circuit opens and stays open until the type is resumed."
            + "See [circuit](task-types.md#circuit).",
            policy Option<u32> = None => Declarable + live;
        failure_period: Option<Millis>, "`10s`",
            "Period of `max_failures`.",
            policy Millis = Millis::secs(10) => Declarable + live;
        trip_on: Option<Vec<String>>, "for `http`: `[\"unreachable\", \"overloaded\", \"timeout\"]`, else none",
            "Error kinds that open the type's circuit: while most attempts fail with them, only single probes start. `[]`: the type has no circuit."
            + "See [circuit](task-types.md#circuit).",
            policy Vec<String> = Vec::new(), constant TRIP_ON: &'static [&'static str] = &[] => Declarable + live;
        keep_headers: Vec<String> [length(max = 16)], "none",
            "Names of headers of the task's record that handlers in Rust and apps can read, such as `x-tenant`."
            + "In Rust [with](task-types.md#hooks-and-layers) `cx.header(\"x-tenant\")`; apps get them with the [attempt](app-protocol.md#worker-to-app). At most 16 per task, each up to 1 KiB with its name, as UTF-8; upper and lower case are the same. Headers that kafleet reads itself, and attributes of structured mode, are not kept.",
            policy Vec<String> = Vec::new(), constant KEEP_HEADERS: &'static [&'static str] = &[] => FileOnly;
        mask: Vec<String> [length(max = 20)], "none",
            "JSON pointers, such as `/card/number`, to values of params and results that only callers with the role `admin` see, at most 20."
            + "See [masked values](production.md#masked-values).",
            policy Vec<String> = Vec::new(), constant MASK: &'static [&'static str] = &[] => Declarable + live;
        index: Vec<String> [length(max = 5)], "none",
            "JSON pointers, such as `/customer`, to values of params by which tasks can be found, at most 5."
            + "See [declared params](search.md#declared-params).",
            policy Vec<String> = Vec::new(), constant INDEX: &'static [&'static str] = &[] => Declarable;
        unique: Option<UniqueSetting>, "none",
            "Uniqueness of the type's tasks: `{ by = \"/customer\", mode = \"skip\", for = \"10m\" }`."
            + "At most one task of a key is open at a time. See [unique tasks](unique.md).",
            policy Option<UniqueSetting> = None => FileOnly + live;
        batch: Option<BatchSetting>, "none; for Rust types of `BatchTask` their `BATCH`",
            "Batches of tasks that the handler takes in one call: `{ max = 100, wait = \"20ms\", max_bytes = \"4MiB\", by = \"/tenant\", split = true }`."
            + "For types of Rust code that implement `BatchTask`, programs and web services. Unset members are those of the code, else the values above and no `by`. See [batches](batches.md).",
            policy Option<BatchPolicy> = None => FileOnly;
        isolation: Option<Isolation>, "`\"none\"`",
            "Isolation of attempts: in the worker (`\"none\"`), or in child processes (`\"process\"`)."
            + "For a type of an app: each attempt has a process of the app to itself.",
            policy Isolation = Isolation::None, constant ISOLATION: Isolation = Isolation::None => Declarable;
        isolation_tasks: Option<u32> [range(min = 1, max = 1_000_000_000)], "`1000`",
            "Number of attempts after which a child process is replaced; refused for types of apps, which have `max_tasks`.",
            policy u32 = 1_000 => FileOnly;
        isolation_memory: Option<Bytes>, "`512MiB`",
            "Memory limit of a child process, at least 16MiB; not for apps."
            + "A process that holds more than half of it after an attempt is replaced.",
            policy Bytes = Bytes(512 << 20) => FileOnly;
        schema: Option<PathBuf>, "none",
            "File with the JSON Schema of the params, relative to kafleet.toml; tasks with invalid params become dead letters." => FileOnly;
        publish_results: Option<bool>, "`false`",
            "Publish the end of each task to `<prefix>.results.<name>`."
            + "See [results](wire.md#results).",
            policy bool = false => Declarable;
        partitions: Option<u32> [range(min = 1, max = 1024)], "`topics.task_partitions`",
            "Partitions of the task topic, 1 to 1024." => Declarable;
        command: Vec<String>, "none (required)",
            "Program and arguments, run without a shell."
            + "A program with a `/` is relative to the file, any other is looked up in `PATH`." => Exec;
        env: BTreeMap<String, String>, "none",
            "Environment variables of programs, and of child processes of types in Rust, in addition to the inherited ones."
            + "See [environment of programs](#environment-of-programs)." => FileOnly;
        inherit: Option<bool>, "`true`",
            "Inherit the worker's environment variables, except for those that kafleet.toml expands and kafleet's own secrets; `false`: only `PATH`, `HOME` and other ordinary ones." => FileOnly;
        cwd: Option<PathBuf>, "the file's folder",
            "Working directory." => Exec;
        retry_exit_codes: Option<Vec<i32>>, "`[75]`",
            "Exit codes that are retried; any other code except 0 fails the task." => Exec;
        wait_exit_codes: Vec<i32>, "none",
            "Exit codes after which the task waits, which does not count as an attempt."
            + "See [waits](task-types.md#waits)." => Exec;
        url: Option<String>, "none (required)",
            "URL that receives the params, `http://` or `https://`." => Http;
        method: Option<String>, "`\"POST\"`",
            "`\"POST\"`, `\"PUT\"` or `\"PATCH\"`." => Http;
        headers: BTreeMap<String, String>, "none",
            "Request headers; `${NAME}` reads secrets from the environment." => Http;
        resend_on_close: Option<bool>, "`true`",
            "Send a request once more if the service closes a kept connection instead of answering."
            + "See [web services](task-types.md#a-web-service-http)." => Http;
    }};
}

with_type_settings!(define);

impl TypeConfig {
    /// Environment variables of the programs of the type.
    pub fn variables(&self) -> ProgramVariables {
        ProgramVariables { own: self.env.clone(), inherit: self.inherit.unwrap_or(true) }
    }
}
