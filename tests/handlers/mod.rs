//! Task types from their author's point of view: context, built-in types, types from the configuration.

mod callback;
mod exec;
mod http;
mod kept_connections;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use kafleet::config::{Config, Order, TypeConfig, WorkerConfig};
use kafleet::handlers::builtin::echo::Echo;
use kafleet::handlers::builtin::foreach::Foreach;
use kafleet::handlers::builtin::{HandlerEnv, register_config, register_samples};
use kafleet::handlers::context::MAX_CHILDREN;
use kafleet::handlers::note::Note;
use kafleet::handlers::program_env::WithheldVariables;
use kafleet::handlers::testing::TestRun;
use kafleet::handlers::{Child, Context, Fail, Failure, OrFail, Registry, Task, TaskResult, TypeRegistration};
use kafleet::model::json::RawJson;
use kafleet::model::task::hash::spawn_hash;
use kafleet::model::units::duration::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Serialize, Deserialize, JsonSchema)]
struct Resize {
    url: String,
    #[schemars(range(min = 1, max = 4096))]
    width: u32,
}

impl Task for Resize {
    const TYPE: &'static str = "resize";
    const RETRIES: u32 = 2;
    const TIMEOUT: Duration = Duration::from_secs(30);
    type Output = Value;

    async fn run(self, cx: Context) -> TaskResult<Value> {
        match self.url.as_str() {
            "retry" => "no".parse::<u32>().retry().map(Value::from),
            "fail" => "no".parse::<u32>().fail().map(Value::from),
            "blocking" => cx.blocking(|| Ok(json!(std::thread::current().name()))).await,
            "panicking" => cx.blocking(|| -> TaskResult<Value> { panic!("from the pool") }).await,
            "state" => Ok(json!(*cx.state::<u64>())),
            "family" => {
                cx.spawn_all([3, 4, 3].map(|width| Resize { url: "x".into(), width }));
                cx.spawn_child(Child::new("echo", json!([1])).id("own").name("mine").key("k").ignore_failure());
                let early = cx.spawn_now(vec![Child::of(&Resize { url: "x".into(), width: 3 })]).await?;
                Ok(json!(early))
            }
            "fertile" => {
                (0..=MAX_CHILDREN).for_each(|n| cx.spawn_child(Child::new("echo", json!(n))));
                Ok(json!(null))
            }
            "bad child" => {
                cx.spawn_child(Child::new("echo", json!(1)).id("a:b"));
                Ok(json!(null))
            }
            "bad type" => {
                cx.spawn_child(Child::new("Not A Type", json!(1)));
                Ok(json!(null))
            }
            "bad progress" => {
                cx.progress(BTreeMap::from([((1, 2), 3)]));
                Ok(json!(false))
            }
            "unsuccessful" => Err(Failure::unsuccessful("no image is that wide")),
            _ => Ok(json!(self.width)),
        }
    }
}

async fn resize(url: &str) -> kafleet::handlers::testing::Outcome {
    TestRun::new().id("r").state(42_u64).run(Resize { url: url.into(), width: 200 }).await
}

#[tokio::test]
async fn params_are_validated_by_schema_and_then_by_type() {
    let registered = TypeRegistration::of::<Resize>();
    for (params, pointer, expected) in [
        (json!({"url": "x", "width": 0}), "/width", "minimum of 1"),
        (json!({"url": "x", "width": "wide"}), "/width", "is not of type"),
        (json!({"url": "x"}), "", "\"width\" is a required property"),
        (json!(null), "", "is not of type"),
    ] {
        let rejection = registered.validate(&RawJson::of(&params).unwrap()).unwrap();
        assert_eq!(rejection.pointer, pointer, "{params}");
        assert!(rejection.message.contains(expected), "{rejection}");
        let outcome = TestRun::new().handle("resize", &registered, RawJson::of(&params).unwrap()).await;
        assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Dead, "schema"));
    }
    // A custom schema may accept more than the type; the type still rejects the params before anything runs.
    let wide = TypeRegistration { schema: kafleet::handlers::Schema::any(), ..registered };
    let params = RawJson::of(&json!({"url": "x", "width": -1})).unwrap();
    assert_eq!(wide.validate(&params).unwrap().pointer, "/width");
    let (cx, _) = TestRun::new().begin("resize");
    assert_eq!(wide.handler.run(&params, cx).err().unwrap().pointer, "/width");
}

#[tokio::test]
async fn errors_convert_to_retry_or_fail() {
    assert_eq!(*resize("retry").await.failure(), Failure::retry("invalid digit found in string"));
    assert_eq!(*resize("fail").await.failure(), Failure::fail("invalid digit found in string"));
}

#[tokio::test]
async fn context_provides_state_and_blocking_pool() {
    assert_eq!(resize("state").await.output(), json!(42));
    assert!(resize("blocking").await.output().is_string());
    let panic = tokio::spawn(resize("panicking")).await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"from the pool"));
}

#[tokio::test]
async fn blocking_work_stops_after_cancellation() {
    let (cx, _) = TestRun::new().begin("resize");
    let inner = cx.clone();
    let work = cx.blocking(move || {
        loop {
            inner.check()?;
            std::thread::yield_now();
        }
    });
    let work: TaskResult<()> = tokio::join!(work, async { cx.cancelled().cancel() }).0;
    assert_eq!(work.unwrap_err(), Failure::cancelled());
    assert_eq!(cx.blocking(|| Ok(())).await.unwrap_err(), Failure::cancelled(), "a cancelled attempt does not start");
}

#[tokio::test]
async fn equal_children_get_same_ids_in_every_attempt() {
    let first = resize("family").await;
    let hash = |width: u32| spawn_hash("resize", &json!({"url": "x", "width": width}).into()).unwrap();
    // The child published early has the first number: numbers count within the attempt, for all kinds of children.
    let segments: Vec<_> = first.children.iter().map(|child| child.segment.clone().unwrap()).collect();
    let expected =
        [format!("resize-{}-2", hash(3)), format!("resize-{}", hash(4)), format!("resize-{}-3", hash(3)), "own".into()];
    assert_eq!(segments, expected);
    assert_eq!(first.output(), json!([format!("r:resize-{}", hash(3))]));
    assert_eq!(resize("family").await.children, first.children);
    assert_eq!(first.children[3].policy.name.as_deref(), Some("mine"));
}

#[tokio::test]
async fn children_that_cannot_be_published_fail_the_attempt() {
    for (url, kind, expected) in [
        ("fertile", "bad_child", "100001 children"),
        ("bad child", "bad_child", "`:`"),
        ("bad type", "bad_child", "`Not A Type` is not a type name"),
    ] {
        let outcome = resize(url).await;
        assert_eq!((outcome.failure().then, outcome.failure().kind.as_ref()), (Fail::Final, kind));
        assert!(outcome.failure().message.contains(expected), "{}", outcome.failure());
        assert!(outcome.children.is_empty());
    }
}

#[tokio::test]
async fn progress_that_is_not_json_is_reported_as_warning() {
    let outcome = resize("bad progress").await;
    assert!(matches!(&outcome.notes[0], Note::Warning(text) if text.contains("progress that is not JSON")));
}

#[tokio::test]
async fn false_is_a_result_and_unsuccessful_is_a_failure() {
    assert_eq!(resize("bad progress").await.output(), json!(false));
    let echo = TestRun::new().handle("echo", &TypeRegistration::new(Echo), RawJson::parse(b"false").unwrap()).await;
    assert_eq!(echo.output(), json!(false));
    let unsuccessful = resize("unsuccessful").await;
    assert_eq!(*unsuccessful.failure(), Failure::fail("no image is that wide").of_kind("unsuccessful"));
}

#[tokio::test]
async fn echo_returns_params_verbatim() {
    let params = r#"{"b":1.0,  "a":[false,"é"]}"#;
    let outcome =
        TestRun::new().handle("echo", &TypeRegistration::new(Echo), RawJson::parse(params.as_bytes()).unwrap()).await;
    assert_eq!(outcome.answer.unwrap().text(), params);
}

#[tokio::test]
async fn foreach_counts_fails_at_step_and_stops_when_cancelled() {
    let count = |fail_at| Foreach { count: 3, pause: Millis(1), fail_at };
    let good = TestRun::new().run(count(None)).await;
    assert_eq!(good.output(), json!({"steps": 3}));
    assert_eq!(good.progress(), [1, 2, 3].map(|step| json!({"step": step, "of": 3})));
    let bad = TestRun::new().run(count(Some(2))).await;
    assert_eq!(bad.failure().message, "step 2 of 3 failed as requested by `fail_at`");
    assert_eq!(bad.progress().len(), 1);

    let (cx, tape) = TestRun::new().begin("foreach");
    let params = RawJson::parse(br#"{"count": 1000000, "pause": "1h"}"#).unwrap();
    let running = tokio::spawn(TypeRegistration::of::<Foreach>().handler.run(&params, cx.clone()).unwrap());
    while tape.notes().is_empty() {
        tokio::task::yield_now().await;
    }
    cx.cancelled().cancel();
    let answer =
        tokio::time::timeout(Duration::from_secs(60), running).await.expect("the pause ends with the cancellation");
    assert_eq!(answer.unwrap().unwrap_err(), Failure::cancelled());
}

fn types(toml: &str) -> BTreeMap<String, TypeConfig> {
    toml::from_str::<Config>(toml).unwrap().types
}

fn register(registry: &mut Registry, toml: &str, dir: &Path) -> Result<(), Vec<String>> {
    register_config(
        registry,
        &types(toml),
        &HandlerEnv {
            dir,
            worker: &WorkerConfig::default(),
            callbacks: None,
            email: None,
            withheld: &WithheldVariables::default(),
            has_unknown_types: false,
        },
    )
}

#[test]
fn configuration_defines_types_and_overrides_policies() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("count.json"), r#"{"type": "object", "required": ["text"]}"#).unwrap();
    let mut registry = Registry::default();
    registry.task::<Resize>();
    let config = r#"
        [types.resize]
        concurrency = 7
        timeout = "3s"
        [types.count]
        handler = "exec"
        command = ["./count", "--fast"]
        schema = "count.json"
        order = "key"
        [types.notify]
        handler = "http"
        url = "https://example.org/notify"
        headers = { authorization = "Bearer x" }
        [types.e]
        handler = "echo"
        [types.f]
        handler = "foreach""#;
    register(&mut registry, config, dir.path()).unwrap();
    assert_eq!(registry.types().map(|(name, _)| &**name).collect::<Vec<_>>(), ["count", "e", "f", "notify", "resize"]);
    let resize = &registry.get("resize").unwrap().policy;
    assert_eq!((resize.slots(), resize.timeout, resize.retries), (7, Millis::secs(3), 2));
    let count = registry.get("count").unwrap();
    assert_eq!(count.policy.order, Order::Key);
    let rejection = count.validate(&RawJson::parse(b"{}").unwrap()).unwrap();
    assert!(rejection.message.contains("\"text\" is a required property"), "{rejection}");
    assert!(registry.get("notify").unwrap().schema.accepts_anything());
    assert!(registry.get("f").unwrap().validate(&RawJson::parse(b"{}").unwrap()).is_some());
}

#[test]
fn every_configuration_problem_is_reported_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("broken.json"), "{").unwrap();
    std::fs::write(dir.path().join("no-schema.json"), r#"{"type": "thing"}"#).unwrap();
    std::fs::write(dir.path().join("remote.json"), r#"{"$ref": "https://example.org/schema.json"}"#).unwrap();
    let problems = |toml: &str| {
        let mut registry = Registry::default();
        registry.task::<Resize>();
        register(&mut registry, toml, dir.path()).unwrap_err().join("\n")
    };
    for (toml, expected) in [
        ("[types.resise]", "no Rust type or app has this name; hint: did you mean `resize`? Or set it to"),
        ("[types.a]", "`types.a.handler`: missing, and no Rust type or app has this name; hint"),
        ("[types.A_B]\nhandler = 'echo'", "`types.A_B`: `A_B` is not a type name"),
        ("[types.a]\nhandler = 'exec'", "`types.a.command`: missing; hint"),
        ("[types.a]\nhandler = 'exec'\ncommand = ['']", "`types.a.command`: missing; hint"),
        ("[types.a]\nhandler = 'http'", "`types.a.url`: missing; hint"),
        ("[types.a]\nhandler = 'http'\nurl = 'ftp://x'", "`types.a.url`: `ftp://x` is not an http or https url"),
        (
            "[types.a]\nhandler = 'http'\nurl = 'http://x'\nmethod = 'GET'",
            "`types.a.method`: `GET` is unknown: use POST",
        ),
        ("[types.a]\nhandler = 'http'\nurl = 'http://x'\nheaders = { 'a b' = '1' }", "`types.a.headers`: `a b` is not"),
        (
            "[types.a]\nhandler = 'http'\nurl = 'http://x'\nheaders = { a = \"sec\\nret\" }",
            "`types.a.headers.a`: the value has",
        ),
        ("[types.a]\nhandler = 'echo'\nschema = 'none.json'", "none.json`: No such file"),
        ("[types.a]\nhandler = 'echo'\nschema = 'broken.json'", "broken.json`: not JSON"),
        ("[types.a]\nhandler = 'echo'\nschema = 'no-schema.json'", "no-schema.json`: not a JSON Schema"),
        ("[types.a]\nhandler = 'echo'\nschema = 'remote.json'", "remote.json`: not a JSON Schema"),
        ("[types.a]\nhandler = 'foreach'\nschema = 'x.json'", "`types.a.schema`: `foreach` has its own"),
        ("[types.kafleet-callback]\nhandler = 'echo'", "`types.kafleet-callback`: `kafleet-callback` is reserved"),
        ("[types.resize]\nhandler = 'echo'", "`types.resize.handler`: the handler and the schema come from the code"),
        ("[types.resize]\nschema = 'x.json'", "`types.resize.schema`: the handler and the schema come from the code"),
    ] {
        let actual = problems(toml);
        assert!(actual.contains(expected), "{toml}\n{actual}");
        assert!(!actual.contains("sec"), "a header's value may be a secret: {actual}");
    }
    assert_eq!(problems("[types.a]\n[types.b]\n[types.c]\nhandler = 'http'\nmethod = 'GET'").lines().count(), 4);
}

#[test]
fn type_name_is_registered_once() {
    let mut registry = Registry::default();
    registry.task::<Resize>().task::<Resize>().add("No Name", TypeRegistration::new(Echo));
    assert_eq!(registry.problems().len(), 2);
    assert!(registry.problems()[0].contains("`resize` is registered twice"));
    let mut reserved = Registry::default();
    reserved.add("kafleet-callback", TypeRegistration::new(Echo));
    assert!(reserved.get("kafleet-callback").is_none());
    assert!(reserved.problems()[0].starts_with("`kafleet-callback` is reserved"), "{:?}", reserved.problems());
    let mut samples = Registry::default();
    samples.add("echo", TypeRegistration::new(Echo));
    register_samples(&mut samples);
    assert_eq!((samples.types().count(), samples.problems().len()), (2, 0));
}
