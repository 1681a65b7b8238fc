//! Tests of the published contracts in `schemas/` against the code.
//!
//! Generated schemas are compared with the files; `KAFLEET_UPDATE=1 cargo test --test standalone schemas` rewrites
//! them. Hand-written ones are checked against the code that decodes the data.

mod acls;
mod api_documents;
mod app_protocol;
mod configuration;
mod monitoring;
mod settings;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kafleet::documents;
use kafleet::model::event::{Event, Kind};
use kafleet::model::offsets::{Mark, Metadata};
use kafleet::model::task::field::{Change, Scope};
use kafleet::model::task::{Policy, Position, RecordSource, header, read_task};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings, schema_for};
use serde_json::{Value, json};

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas")
}

fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(schemas().join(name)).unwrap_or_else(|error| panic!("schemas/{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("schemas/{name}: {error}"))
}

fn of<T: JsonSchema>() -> Value {
    schema_for!(T).to_value()
}

macro_rules! add {
    ($generator:expr; $($name:ident),+ $(,)?) => { $($generator.subschema_for::<documents::$name>();)+ };
}

/// All documents of the API, as definitions of one schema.
fn api() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    add_documents_of_tasks(&mut generator);
    add_documents_of_the_fleet(&mut generator);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Documents of the API",
        "$defs": generator.take_definitions(true),
    })
}

fn add_documents_of_tasks(generator: &mut SchemaGenerator) {
    add! { generator; Suggestions, BulkSelection, BulkPreview, BulkRequest }
    add!(
        generator;
        CreateTask,
        Status,
        StateDocument,
        TaskPage,
        ExportEnd,
        TreeNode,
        History,
        Why,
        PatchTask,
        Attachments,
        AttachmentDocument,
        AppendLog,
        LogAppended,
        LogDocument,
        Params,
        DeadLetterPage,
        DeadLetterDetail,
        DeadLetterSelection,
        RedriveDeadLetter,
        DropDeadLetter,
        DeadLetterResults,
        Report,
        ReportOutcome,
        RetryTask,
        RetryOutcome,
        StartTask,
        StartOutcome,
        BatchOutcome,
        TaskPreview,
        CancelTask,
        CancelOutcome,
    );
}

fn add_documents_of_the_fleet(generator: &mut SchemaGenerator) {
    add!(
        generator;
        Types,
        Backlog,
        PauseDocument,
        TypeLimits,
        WorkerTotals,
        PauseType,
        ResumeType,
        SetCircuit,
        CircuitDocument,
        SetLimits,
        SetKillSwitch,
        KillSwitchDocument,
        KillSwitches,
        KillSwitchPreview,
        SetView,
        Views,
        UniqueKeyDocument,
        Stats,
        Slowest,
        Failures,
        Audit,
        Workers,
        WorkerDocument,
        NewSchedule,
        ScheduleDocument,
        Schedules,
        ScheduleTimes,
        ScheduleRequestOutcome,
        SchedulePreview,
        BackfillPreview,
        RunningDocument,
        FleetChange,
        StreamEnd,
        Problem,
    );
}

/// Generated files and their contents.
fn generated() -> Vec<(String, Value)> {
    let mut files = vec![
        ("config.json".to_owned(), kafleet::config::schema()),
        ("event.json".to_owned(), of::<Event>()),
        ("control.json".to_owned(), of::<kafleet::control::ByKey>()),
        ("heartbeat.json".to_owned(), of::<kafleet::control::heartbeat::Heartbeat>()),
        ("problem.json".to_owned(), of::<documents::Problem>()),
        ("api.json".to_owned(), api()),
        ("openapi.json".to_owned(), kafleet::api::openapi_document()),
    ];
    files.extend(built_in_params());
    files
}

/// Params of the built-in types: `params/<type>.json`.
fn built_in_params() -> Vec<(String, Value)> {
    let mut registry = kafleet::handlers::Registry::default();
    kafleet::handlers::builtin::register_samples(&mut registry);
    let callbacks = kafleet::handlers::builtin::callback::Callbacks::registered(&Default::default(), None).unwrap();
    registry.add_reserved(kafleet::handlers::builtin::callback::TYPE, callbacks);
    let mail = kafleet::config::EmailConfig {
        server: "localhost".into(),
        port: None,
        tls: kafleet::config::MailTls::None,
        ca: None,
        username: None,
        password: None,
        password_file: None,
        from: "fleet@example.com".into(),
        recipients: Vec::new(),
    };
    registry.add_reserved(
        kafleet::handlers::builtin::email::TYPE,
        kafleet::handlers::builtin::email::Emails::registered(&mail).unwrap(),
    );
    let types = registry.types();
    types.map(|(name, registered)| (format!("params/{name}.json"), registered.schema.json().clone())).collect()
}

#[test]
fn generated_schemas_are_up_to_date() {
    let update = std::env::var_os("KAFLEET_UPDATE").is_some();
    let mut stale = Vec::new();
    for (name, schema) in generated() {
        let path = schemas().join(&name);
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if update {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "not as generated: {stale:?}; run `KAFLEET_UPDATE=1 cargo test --test standalone schemas` and review the diff"
    );
}

/// Page of the fields of a task's policy.
fn field_page() -> String {
    let mut page = String::from(
        "# Task fields\n\n\
         Options of a task besides its type, params, id, parent, key and times. JSON has them in the same object as the other fields of\n\
         a task. A field without a header of its own is part of the JSON in `ce_policy`. Generated from `crates/model/src/task/policy.rs` by\n\
         `KAFLEET_UPDATE=1 cargo test --test standalone schemas`.\n\n\
         | field | header | argument | accepted in | change | meaning |\n|---|---|---|---|---|---|\n",
    );
    for field in Policy::fields() {
        let header = field.header.map_or("`ce_policy`".to_owned(), |header| format!("`{header}`"));
        let argument = field.argument.map_or(String::new(), |argument| {
            format!("`{}`", format!("--{} {}", argument.long, argument.value_name).trim_end())
        });
        let scopes = field.scopes.iter().map(|scope| match scope {
            Scope::Create => "tasks",
            Scope::Continue => "[continuations](trees.md#what-follows-then)",
            Scope::Schedule => "[schedules](schedules.md)",
            Scope::Change | Scope::Status => unreachable!("not a scope of creation"),
        });
        let scopes = scopes.collect::<Vec<_>>().join(", ");
        let change = match field.change {
            Change::Never => "",
            Change::Always => "any time",
            Change::BeforePublish => "before publishing",
        };
        let (name, description) = (field.name, field.description);
        page.push_str(&format!("| `{name}` | {header} | {argument} | {scopes} | {change} | {description} |\n"));
    }
    page.push_str(
        "\n\
         Change: [`PATCH /v1/tasks/{id}`](api.md#changing-a-task) and [`kafleet update`](cli.md#update). \"Before publishing\" means while no\n\
         record with the field is in a topic, or after the task's end. Arguments are those of [`submit`](cli.md#submit), `update` and\n\
         [`schedules`](cli.md#schedules), as far as they accept the field. See also [failed children](trees.md#children-that-fail) and\n\
         [notifications](callbacks.md).\n",
    );
    page
}

#[test]
fn page_of_task_fields_is_up_to_date() {
    let path = schemas().join("../docs/task-fields.md");
    if std::env::var_os("KAFLEET_UPDATE").is_some() {
        std::fs::write(&path, field_page()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(page, field_page(), "run `KAFLEET_UPDATE=1 cargo test --test standalone schemas`");
}

#[test]
fn each_file_is_a_schema_or_checked_here() {
    let known: BTreeSet<String> = generated().into_iter().map(|(name, _)| name).collect();
    let by_hand = ["task-headers.json", "dead-letter-headers.json", "app-protocol.json"].map(str::to_owned);
    for folder in ["", "params"] {
        for entry in std::fs::read_dir(schemas().join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(schemas()).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() || name == "spawn-hash.json" {
                continue;
            }
            let is_known = known.contains(&name) || by_hand.contains(&name);
            assert!(is_known, "schemas/{name} is neither generated nor listed: remove it");
            jsonschema::validator_for(&read(&name)).unwrap_or_else(|error| panic!("schemas/{name}: {error}"));
        }
    }
}

/// Header names declared in a source file.
fn declared(source: &str) -> BTreeSet<&str> {
    let module = source.split("pub mod header {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or(source);
    module.lines().filter_map(|line| line.split('"').nth(1)).collect()
}

#[test]
fn each_header_is_described() {
    for (file, declared) in [
        ("task-headers.json", header::all().collect()),
        ("dead-letter-headers.json", declared(include_str!("../../crates/fleet/src/dead_letters/headers.rs"))),
    ] {
        let schema = read(file);
        let described: BTreeSet<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(described, declared, "schemas/{file} against the code");
    }
}

fn fits(schema: &str, value: &Value) -> Result<(), String> {
    let schema = read(schema);
    let validator = jsonschema::options().build(&schema).unwrap();
    let wrong: Vec<_> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

fn task_of(example: &Value) -> Result<kafleet::model::task::TaskSpec, kafleet::model::task::Reject> {
    let number = |key: &str| example[key].as_i64().unwrap();
    let source = RecordSource {
        task_type: &Arc::from(example["type"].as_str().unwrap()),
        position: Position { partition: number("partition") as i32, offset: number("offset") },
        timestamp_ms: number("timestamp_ms"),
        value: example["value"].as_str().map(str::as_bytes),
    };
    let headers = example["headers"].as_object().unwrap();
    read_task(&source, headers.iter().map(|(name, value)| (name.as_str(), value.as_str().map(str::as_bytes))))
}

#[test]
fn example_records_are_decoded_as_documented() {
    for example in read("examples/task-records.json").as_array().unwrap() {
        let about = &example["about"];
        let fit = fits("task-headers.json", &example["headers"]);
        let expected = &example["task"];
        match task_of(example) {
            Err(refusal) => {
                assert_eq!(refusal.code, example["refused"], "{about}: {}", refusal.message);
                let by_header = matches!(refusal.code, "bad_header" | "unsupported_version");
                assert_eq!(fit.is_err(), by_header, "{about}: valid in the schema: {fit:?}");
            }
            Ok(task) => {
                assert_eq!(fit, Ok(()), "{about}");
                assert_eq!(
                    (task.id.as_str(), task.run),
                    (expected["id"].as_str().unwrap(), expected["run"].as_u64().unwrap() as u32)
                );
                assert_eq!(task.params.value().unwrap(), expected["params"], "{about}");
                let policy = task.policy.map_or(Value::Null, |policy| serde_json::to_value(policy).unwrap());
                assert_eq!(policy, expected["policy"], "{about}");
                assert!(
                    expected["created_at_ms"].is_null() || expected["created_at_ms"] == task.created_at_ms,
                    "{about}"
                );
            }
        }
    }
}

/// Compares the published schema of headers with the code that decodes them.
#[test]
fn code_and_schema_accept_the_same_headers() {
    for (name, good, bad) in [
        ("ce_specversion", "1.0", "0.3"),
        ("ce_id", "a.b_c~d@e-f", "a b"),
        ("ce_type", "echo", "Echo!"),
        ("ce_time", "2026-01-31T12:00:00Z", "noon"),
        ("ce_time", "1700000000000", ""),
        ("ce_notbefore", "1700000000000", "1700000000"),
        ("ce_id", "a..b", ".."),
        ("ce_timeout", "30s", "1700000000000"),
        ("content-type", "application/vnd.x+json; charset=utf-8", "text/plain"),
        ("content-type", "", "json"),
        ("ce_parent", "r:p", "r::p"),
        ("ce_run", "3", "-1"),
        ("ce_attempt", "0", "first"),
        ("ce_asof", "10", "1.5"),
        ("ce_notbefore", "2026-01-31T12:00:00+01:00", "10m"),
        ("ce_expires", "10m", "later"),
        ("ce_expires", "2026-01-31T12:00:00Z", "-5m"),
        ("ce_retries", "0", "none"),
        ("ce_minbackoff", "1500", "1.5s"),
        ("ce_maxbackoff", "3 s", "3 weeks"),
        ("ce_timeout", "2h", ""),
        ("ce_totaltimeout", "1d", "soon"),
        ("ce_maxwait", "12h", "12.5"),
        ("ce_waits", "3,1800000000000", "0,1800000000000"),
        ("ce_backoffreset", "10m", "soon"),
        ("ce_backofffrom", "3", "-1"),
        ("ce_onfailure", "ignore", "FAIL"),
        ("ce_name", "Ä name", &"x".repeat(513)),
        ("ce_creator", "", &"x".repeat(513)),
        ("ce_tags", "a,b", &"x".repeat(129)),
        ("ce_link", "anything", &"x".repeat(513)),
        ("ce_policy", "{\"external\":true}", "[]"),
        ("traceparent", "00-1-2-01", &"x".repeat(513)),
    ] {
        for (value, is_good) in [(good, true), (bad, false)] {
            let example = json!({"type": "echo", "partition": 0, "offset": 1, "timestamp_ms": 1, "value": "1", "headers": {name: value}});
            let read = task_of(&example);
            let fit = fits("task-headers.json", &example["headers"]);
            assert_eq!((read.is_ok(), fit.is_ok()), (is_good, is_good), "{name}: {value}: {read:?} {fit:?}");
        }
    }
}

#[test]
fn example_events_are_decoded() {
    let text = std::fs::read_to_string(schemas().join("examples/events.jsonl")).unwrap();
    let schema = read("event.json");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut kinds = BTreeSet::new();
    for line in text.lines() {
        let event = Event::decode(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
        let value: Value = serde_json::from_str(line).unwrap();
        let wrong: Vec<_> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{line}: {wrong:?}");
        let mut again = Vec::new();
        event.encode(&mut again).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), value, "no field is lost");
        assert_ne!(event.kind(), Kind::Unknown, "{line}");
        kinds.insert(event.kind().name());
    }
    let documented = kinds_of(&schema);
    let all: BTreeSet<&str> = documented.iter().map(String::as_str).filter(|name| *name != "unknown").collect();
    assert_eq!(kinds, all, "at least one example of each kind");
}

fn kinds_of(schema: &Value) -> BTreeSet<String> {
    let kind = &schema["$defs"]["Kind"];
    let plain = kind["enum"].as_array().into_iter().flatten();
    let described = kind["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|variant| variant["enum"].as_array().into_iter().flatten().chain(variant.get("const")));
    plain.chain(described).filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

#[test]
fn example_metadata_is_decoded() {
    for example in read("examples/commit-metadata.json").as_array().unwrap() {
        let about = &example["about"];
        let read = Metadata::decode(example["offset"].as_i64().unwrap(), example["metadata"].as_str().unwrap());
        let Some(read) = read else {
            assert_eq!(example["unreadable"], true, "{about}");
            continue;
        };
        assert_eq!(
            (json!(read.mark == Mark::Clean), json!(read.window_end), json!(read.unclean_takeovers)),
            (example["clean"].clone(), example["window_end"].clone(), example["unclean"].clone()),
            "{about}"
        );
        let retries = example["retries"].as_array().cloned().unwrap_or_default();
        assert_eq!(read.retries.len(), retries.len(), "{about}");
        for retry in &retries {
            let known = read.retries.get(retry[0].as_i64().unwrap()).unwrap();
            let used = json!([retry[0], known.progress.attempts, known.progress.waits.number, known.due_ms]);
            assert_eq!(used, *retry, "{about}");
        }
        let pass_over = read.pass_over.as_ref();
        assert_eq!(pass_over.map(|pass_over| json!(pass_over.read)), example.get("read").cloned(), "{about}");
        for (list, is_claimed) in [("claimed", true), ("unclaimed", false)] {
            for offset in example[list].as_array().into_iter().flatten() {
                assert_eq!(read.may_have_started(offset.as_i64().unwrap()), is_claimed, "{about}: offset {offset}");
            }
        }
        for (list, is_done) in [("done", true), ("open", false)] {
            for offset in example[list].as_array().unwrap() {
                assert_eq!(read.completed.is_done(offset.as_i64().unwrap()), is_done, "{about}: offset {offset}");
            }
        }
    }
}

/// Compares schema, code and docs/wire.md on the kinds of control records.
#[test]
fn example_control_records_are_decoded() {
    let wire = include_str!("../../docs/wire.md");
    for example in read("examples/control-records.json").as_array().unwrap() {
        let about = &example["about"];
        let key = example["key"].as_str().unwrap();
        let value = example["value"].to_string();
        let kind = key.split('/').next().unwrap();
        let record = kafleet::broker::RecordRef {
            topic: "kafleet.control",
            partition: 0,
            offset: 0,
            timestamp_ms: 0,
            log_append_time: false,
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &Vec::new(),
        };
        let read = kafleet::control::ControlState::default().with_schedules().with_views().apply_record(&record);
        let fit = fits("control.json", &json!({kind: example["value"].clone()}));
        let good = example["refused"] != true;
        assert_eq!((read.is_ok(), fit.is_ok()), (good, good), "{about}: {read:?} {fit:?}");
        assert!(wire.contains(&format!("`{kind}/<")), "docs/wire.md does not explain `{kind}/…`");
        for field in example["value"].as_object().unwrap().keys() {
            assert!(
                wire.contains(&format!("`{field}`")) || wire.contains(&format!("\"{field}\"")),
                "`{field}` of {kind}"
            );
        }
    }
}

#[test]
fn dead_letter_example_matches_the_schema() {
    assert_eq!(fits("dead-letter-headers.json", &read("examples/dead-letter.json")), Ok(()));
    assert!(fits("dead-letter-headers.json", &json!({"kafleet_code": "schema"})).is_err());
}

/// Checks that docs/wire.md, with its table of task fields, names all headers and event kinds.
#[test]
fn wire_format_is_documented() {
    let text = concat!(include_str!("../../docs/wire.md"), include_str!("../../docs/task-fields.md"));
    let kinds = kinds_of(&read("event.json"));
    let headers = header::all().chain(declared(include_str!("../../crates/fleet/src/dead_letters/headers.rs")));
    let names = headers.map(str::to_owned).chain(kinds);
    for name in names.filter(|name| name != "unknown") {
        assert!(text.contains(&format!("`{name}`")), "docs/wire.md does not explain `{name}`");
    }
    let event = read("event.json");
    let of_kinds = event["oneOf"].as_array().unwrap().iter().map(|kind| &kind["properties"]["data"]["properties"]);
    let fields: BTreeSet<&String> =
        of_kinds.chain([&event["properties"]]).filter_map(Value::as_object).flat_map(|fields| fields.keys()).collect();
    assert!(fields.len() > 25, "{fields:?}");
    for field in fields {
        assert!(text.contains(&format!("`{field}`")), "docs/wire.md does not explain the event's `{field}`");
    }
}
