//! Apps of a process: the start that reads their declarations, and `app check`.

use std::sync::Arc;

use clap::Subcommand;
use kafleet_apps::capacity::SlotKind;
use kafleet_apps::conformance::{self, CaseReport, CaseResult};
use kafleet_apps::loaded_files::LoadedFiles;
use kafleet_apps::pool::{AppPool, OpenedApp};
use kafleet_apps::process::AppProgram;
use kafleet_apps::protocol::{Limits, VERSION, Welcome};
use kafleet_apps::register::register;
use kafleet_config::{AppConfig, Config, Names};
use kafleet_documents::given_params;
use kafleet_handlers::Registry;
use kafleet_handlers::program_env::{ProgramEnv, WithheldVariables};
use kafleet_model::task::id::check_own_type;
use kafleet_telemetry::init_logs;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::task::JoinSet;

use super::app_attach::{AttachArgs, attach, limit_processes};
use super::app_target::{TARGET_APP, TargetApp, TargetArgs};
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows, eprint_line};
use super::setup::{RoleEnd, Setup, SetupOptions};

/// Last part of the error of a Python without the SDK.
const NO_SDK: &str = "No module named kafleet";
/// Last part of the error of a Python before 3.11, which does not know `-P`.
const OLD_PYTHON: &str = "Try `python -h' for more information.";
/// Code in Node's message about a package that is not installed.
const NO_PACKAGE: &str = "[ERR_MODULE_NOT_FOUND]: Cannot find package";
/// Code in Node's message about TypeScript, which it does not run before version 22.18.
const OLD_NODE: &str = "[ERR_UNKNOWN_FILE_EXTENSION]";

#[derive(Debug, Subcommand)]
pub(super) enum AppVerb {
    /// Start each app once and show its types, or the reason why a worker would refuse it
    Check(TargetArgs),
    /// Play recorded sessions and faults against an app, and show which rules of the protocol it breaks
    Test(TargetArgs),
    /// Connect `kafleet dev` to an app in the process of a test or of a debugger, as the command of the app
    Attach(AttachArgs),
}

/// Starts each app of the configuration for its declaration, and registers the declared types. `environment` is added to
/// that of the apps.
pub(super) async fn open(setup: &mut Setup, environment: &[(&str, String)], dev: bool) -> Result<(), Failure> {
    for (name, mut section) in needed(setup) {
        limit_processes(&mut section);
        let welcome = welcome(&setup.config, &name, &section, dev);
        let mut program = program(&name, &section, environment, &setup.withheld);
        program.may_block = setup.config.worker.no_timeouts;
        let opened = OpenedApp::open(program, welcome).await;
        let opened = opened.map_err(|error| start_failure(&error.to_string(), &section.command))?;
        let chosen = &setup.source.options.types;
        if !chosen.is_empty() && !opened.declaration.types.keys().any(|declared| chosen.contains(declared)) {
            continue;
        }
        let pool = register(opened, &section, &mut setup.config, &mut setup.registry);
        setup.apps.push(pool.map_err(|problems| Failure::failed(problems.join("\n")))?);
    }
    // With the groups of the declared types.
    setup.names = Names::of(&setup.config);
    Ok(())
}

/// Returns the apps to start. If the process serves only some types: those that serve one of them, or that may serve one
/// that nothing else has.
fn needed(setup: &Setup) -> Vec<(String, AppConfig)> {
    let (config, chosen) = (&setup.config, &setup.source.options.types);
    let is_of_app = |name: &String| {
        config.apps.values().flat_map(|app| app.types.iter().flatten()).any(|declared| declared == name)
    };
    let is_of_config = |name: &String| config.types.get(name).is_some_and(|kind| kind.handler.is_some());
    let is_built_in = |name: &String| check_own_type(name).is_err();
    let is_unknown = |name: &String| {
        setup.registry.get(name).is_none() && !is_of_app(name) && !is_of_config(name) && !is_built_in(name)
    };
    let has_unknown = chosen.iter().any(is_unknown);
    let is_needed = |section: &AppConfig| match &section.types {
        _ if chosen.is_empty() => true,
        Some(types) => types.iter().any(|name| chosen.contains(name)),
        None => has_unknown,
    };
    config.apps.iter().filter(|(_, app)| is_needed(app)).map(|(name, app)| (name.clone(), app.clone())).collect()
}

/// Starts each app for its declaration, registers the declared types, and ends the apps.
pub(super) async fn check(setup: &mut Setup) -> Result<(), Failure> {
    let opened = open(setup, &[], false).await;
    stop(&setup.apps).await;
    opened
}

/// Ends all processes of apps.
pub(super) async fn stop(apps: &[Arc<AppPool>]) {
    futures::future::join_all(apps.iter().map(|pool| pool.stop())).await;
}

/// Ends the worker if an app is down for minutes, so that others take its partitions.
pub(super) fn watch(setup: &Setup, running: &mut JoinSet<RoleEnd>) {
    for pool in &setup.apps {
        let pool = pool.clone();
        let drain = setup.shutdown.drain.clone();
        running.spawn(async move {
            let error = drain.run_until_cancelled(pool.given_up()).await;
            ("worker", error.map_or(Ok(()), |error| Err(anyhow::anyhow!(error))))
        });
    }
}

fn welcome(config: &Config, name: &str, section: &AppConfig, dev: bool) -> Welcome {
    let worker = &config.worker;
    Welcome {
        protocol: VERSION,
        app: name.to_owned(),
        worker: kafleet_worker::host(),
        version: env!("CARGO_PKG_VERSION"),
        types: section.types.clone(),
        slots: section.slots,
        grace_ms: worker.grace.0,
        limits: Limits::new(worker.max_params.0, worker.max_output.0),
        dev,
    }
}

fn program(
    name: &str,
    section: &AppConfig,
    environment: &[(&str, String)],
    withheld: &WithheldVariables,
) -> AppProgram {
    let mut variables = section.variables();
    for (name, value) in environment {
        variables.own.entry((*name).to_owned()).or_insert_with(|| value.clone());
    }
    AppProgram {
        name: name.to_owned(),
        command: section.command.clone(),
        cwd: section.cwd.clone().unwrap_or_default(),
        env: ProgramEnv { variables, withheld: withheld.clone() },
        start_timeout: section.start_timeout.into(),
        types: section.types.clone(),
        slots: section.slots,
        has_order: false,
        files: LoadedFiles::default(),
        may_block: false,
        launcher: None,
    }
}

/// Returns the failure of a start, with its hint separated from the message.
fn start_failure(reason: &str, command: &[String]) -> Failure {
    let (message, hint) =
        reason.rsplit_once("; hint: ").map_or((reason, None), |(message, hint)| (message, Some(hint)));
    let failure = Failure::failed(message);
    match (command.first(), hint) {
        (Some(python), _) if message.ends_with(NO_SDK) => failure.hint(format_args!(
            "install the SDK from a checkout of kafleet: {python} -m pip install PATH_OF_THE_CHECKOUT/sdk/python"
        )),
        (Some(python), _) if message.ends_with(OLD_PYTHON) => {
            failure.hint(format_args!("the SDK needs Python 3.11 or newer; `{python}` is older"))
        }
        (Some(_), _) if message.contains(NO_PACKAGE) => failure.hint("run `npm install` in the folder of the app"),
        (Some(node), _) if message.contains(OLD_NODE) => {
            failure.hint(format_args!("Node runs TypeScript from version 22.18 on; `{node}` is older"))
        }
        (_, Some(hint)) => failure.hint(hint),
        (_, None) => failure,
    }
}

pub(super) async fn app(verb: AppVerb, globals: &Globals, registry: Registry) -> Outcome {
    init_logs("warn");
    match verb {
        AppVerb::Check(args) => check_apps(&args, globals, registry).await,
        AppVerb::Test(args) => test(&args, &globals.output()).await,
        AppVerb::Attach(args) => attach(args).await,
    }
}

/// Plays all cases against the app of the target.
async fn test(args: &TargetArgs, output: &Output) -> Outcome {
    let Some(TargetApp { section, .. }) = args.app()? else {
        return Err(Failure::new(Code::NotFound, "there is no app")
            .hint("name one: `kafleet app test tasks.py`, `kafleet app test -- COMMAND`"));
    };
    let reports = conformance::run(&program(TARGET_APP, &section, &[], &WithheldVariables::default())).await;
    let reports = reports.map_err(|error| start_failure(&error.to_string(), &section.command))?;
    output.json_or_table(&reports, |reports| report_rows(reports))?;
    let count = |is: fn(&CaseResult) -> bool| reports.iter().filter(|report| is(&report.result)).count();
    let failed = count(|result| matches!(result, CaseResult::Failed(_)));
    let skipped = count(|result| matches!(result, CaseResult::Skipped(_)));
    let played = reports.len() - skipped;
    if failed > 0 {
        return Err(Failure::failed(format_args!("the app breaks the protocol in {failed} of {played} cases"))
            .hint("the rules are in docs/app-protocol.md"));
    }
    eprint_line(format_args!("the app passes {played} cases; {skipped} were skipped"));
    Ok(Code::Ok)
}

fn report_rows(reports: &[CaseReport]) -> Rows {
    let mut rows = Rows::new(["CASE", "RESULT", "REASON"]);
    for report in reports {
        let (result, reason) = match &report.result {
            CaseResult::Passed => ("passed", Field::Empty),
            CaseResult::Skipped(error) => ("skipped", Field::Text(error.clone())),
            CaseResult::Failed(error) => ("failed", Field::Text(format!("rule: {}\nthe app: {error}", report.rule))),
        };
        rows.add([Field::from(&*report.case), Field::from(result), reason]);
    }
    rows
}

async fn check_apps(args: &TargetArgs, globals: &Globals, registry: Registry) -> Outcome {
    let options = SetupOptions {
        unused: &["kafka", "redis", "outbox", "api", "tracker", "ops", "schedules", "callbacks", "email"],
        app: args.app()?,
        ..SetupOptions::default()
    };
    let mut setup = Setup::load(globals, registry, options)?;
    if setup.config.apps.is_empty() {
        return Err(Failure::new(Code::NotFound, "there is no app")
            .hint("name one (`kafleet app check tasks.py`, `kafleet app check -- COMMAND`), or add `[apps.NAME]`"));
    }
    let opened = open(&mut setup, &[], false).await;
    let checked = opened.and_then(|()| setup.register());
    let shown = checked.and_then(|()| show(&globals.output(), &setup));
    stop(&setup.apps).await;
    shown
}

/// App as `app check` shows it.
#[derive(Serialize)]
struct AppDocument<'a> {
    app: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sdk: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'a str>,
    processes: u32,
    slots: u32,
    threads: u32,
    types: Vec<TypeDocument<'a>>,
}

#[derive(Serialize)]
struct TypeDocument<'a> {
    name: &'a str,
    params: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    doc: Option<&'a str>,
    policy: Map<String, Value>,
}

fn show(output: &Output, setup: &Setup) -> Outcome {
    let documents: Vec<AppDocument<'_>> = setup.apps.iter().map(|pool| document(pool, setup)).collect();
    output.json_or_table(&documents, |documents| app_rows(documents))?;
    eprint_line(capacity_text(&setup.apps).join("\n"));
    Ok(Code::Ok)
}

/// Numbers of attempts that the apps run at once, such as `shop: 2 processes × 10 slots = 20 at once`.
pub(super) fn capacity_text(apps: &[Arc<AppPool>]) -> Vec<String> {
    let lines_of = |pool: &Arc<AppPool>| {
        let sync = pool.app_capacity(SlotKind::Thread);
        let synchronous = pool.declaration().types.iter().filter(|(_, declared)| declared.is_sync);
        let names: Vec<&str> = synchronous.map(|(name, _)| name.as_str()).collect();
        let of_sync = (sync.per_process > 0).then(|| format!("{}: {sync} for {}", pool.name(), names.join(", ")));
        [Some(format!("{}: {}", pool.name(), pool.app_capacity(SlotKind::General))), of_sync]
    };
    apps.iter().flat_map(lines_of).flatten().collect()
}

fn app_rows(documents: &[AppDocument<'_>]) -> Rows {
    let mut rows = Rows::new(["APP", "TYPE", "PARAMS", "POLICY"]);
    for app in documents {
        for kind in &app.types {
            let policy: Vec<String> = kind.policy.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            let policy = if policy.is_empty() { Field::Empty } else { Field::Text(policy.join(", ")) };
            rows.add([Field::from(app.app), Field::from(kind.name), Field::Text(params_text(kind.params)), policy]);
        }
    }
    rows
}

fn document<'a>(pool: &'a Arc<AppPool>, setup: &'a Setup) -> AppDocument<'a> {
    let declaration = pool.declaration();
    let types = declaration.types.iter().map(|(name, declared)| TypeDocument {
        name,
        params: declared.params.json(),
        output: declared.output.as_ref(),
        doc: declared.doc.as_deref(),
        policy: setup.config.types.get(name).map(kafleet_config::written_keys).unwrap_or_default(),
    });
    AppDocument {
        app: pool.name(),
        sdk: declaration.sdk.as_deref(),
        runtime: declaration.runtime.as_deref(),
        processes: pool.app_capacity(SlotKind::General).processes,
        slots: pool.capacity().slots,
        threads: pool.capacity().threads,
        types: types.collect(),
    }
}

/// Names of the params, with `?` after optional ones; `any` without a schema of an object.
fn params_text(schema: &Value) -> String {
    let schema = given_params(schema);
    let Some(properties) = schema["properties"].as_object() else { return "any".to_owned() };
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let name = |name: &String| if required.contains(&name.as_str()) { name.clone() } else { format!("{name}?") };
    properties.keys().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_apps_of_the_chosen_types_are_started() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("kafleet.toml");
        let text = "[types.call]\nhandler = \"echo\"\n[types.resize]\nretries = 1\n\
            [apps.a]\ncommand = [\"a\"]\ntypes = [\"resize\", \"crop\"]\nenv = { X = \"${KAFLEET_TEST_UNSET}\" }\n\
            [apps.b]\ncommand = [\"b\"]\ntypes = [\"mail\"]\n[apps.c]\ncommand = [\"c\"]\n";
        std::fs::write(&config, text).unwrap();
        let globals = Globals { config: Some(config), ..Globals::default() };
        let loaded = |types: &[&str]| {
            let types = types.iter().map(|name| (*name).to_owned()).collect();
            Setup::load(&globals, Registry::default(), SetupOptions { types, ..SetupOptions::default() })
        };
        for (types, expected) in [
            (&["mail"][..], &["b"][..]),
            (&["call"], &[]),
            (&["call", "mail"], &["b"]),
            (&["kafleet-callback"], &[]),
            (&["mail", "other"], &["b", "c"]),
        ] {
            let names: Vec<String> = needed(&loaded(types).unwrap()).into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, expected, "{types:?}");
        }
        for types in [&["crop"][..], &[]] {
            let failure = loaded(types).err().unwrap();
            assert!(failure.message.contains("`KAFLEET_TEST_UNSET` is not set"), "{types:?}: {}", failure.message);
        }
    }

    #[test]
    fn params_are_listed_by_name() {
        let schema = json!({"properties": {"path": {}, "width": {"default": 200}}, "required": ["path"]});
        assert_eq!(params_text(&schema), "path, width?");
        assert_eq!(params_text(&json!(true)), "any");
    }

    #[test]
    fn unsuitable_installation_is_reported_with_the_remedy() {
        for (last, remedy) in [
            (
                "/v/python: No module named kafleet",
                "checkout of kafleet: /v/python -m pip install PATH_OF_THE_CHECKOUT",
            ),
            ("Try `python -h' for more information.", "the SDK needs Python 3.11 or newer; `/v/python` is older"),
            ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'kafleet' imported from /t.ts", "run `npm install`"),
            (
                "TypeError [ERR_UNKNOWN_FILE_EXTENSION]: Unknown file extension \".ts\"",
                "22.18 on; `/v/python` is older",
            ),
        ] {
            let reason = format!("the app `main` ended before it was ready: exit code 1: {last}; hint: x");
            let hint = start_failure(&reason, &["/v/python".to_owned()]).hint.unwrap();
            assert!(hint.contains(remedy), "{hint}");
        }
    }
}
