//! What was asked for becomes a task to publish, or a refusal that says what is wrong with it.

use std::sync::Arc;

use axum::http::HeaderMap;

use crate::api::Api;
use crate::api::documents::CreateTask;
use crate::api::http::problem::{ApiError, Code};
use crate::model::json::RawJson;
use crate::model::task::continuation::{Continuation, check_thens, number_of};
use crate::model::task::hash::spawn_hash;
use crate::model::task::id::{TaskId, check_type};
use crate::model::task::{MAX_POLICY_BYTES, MAX_RETRIES, MAX_TEXT_CHARS, Policy, Rules, Trace, check_tags, parse_time};
use crate::model::units::duration::Millis;
use crate::publish::NewTask;

/// The largest params, in bytes of compact JSON.
pub const MAX_PARAMS_BYTES: usize = 1 << 20;

/// A task that can be published as far as it can be told without asking anybody.
#[derive(Clone, Debug)]
pub struct Draft {
    pub id: TaskId,
    /// Nobody else can have this id.
    pub generated: bool,
    pub hash: String,
    pub new: NewTask,
}

impl Draft {
    pub fn is_external(&self) -> bool {
        self.new.policy.rules.external
    }
}

impl Api {
    pub fn draft(&self, asked: CreateTask, now_ms: i64, trace: Option<&Trace>) -> Result<Draft, ApiError> {
        check_type(&asked.task_type).map_err(|why| bad_field("type", why))?;
        let (id, generated) = id_of(&asked)?;
        let params = params_of(&asked)?;
        if asked.external {
            check_external(&asked)?;
        } else {
            self.check_fit(&asked.task_type, &params, "/params")?;
        }
        let hash = spawn_hash(&asked.task_type, &asked.params);
        let mut new = NewTask::new(&asked.task_type, params);
        check_short("key", asked.key.as_deref())?;
        new.key = asked.key.clone();
        new.policy = self.policy_of(asked, now_ms)?;
        self.check_thens_fit(&new.policy.rules.then, "/then")?;
        self.check_tells(&new.policy.rules, now_ms)?;
        new.id = Some(id.clone());
        new.trace = trace.cloned().map(Box::new);
        Ok(Draft { id, generated, hash, new })
    }

    fn policy_of(&self, asked: CreateTask, now_ms: i64) -> Result<Policy, ApiError> {
        let policy = Policy {
            not_before_ms: self.start_of(asked.delay, asked.at.as_deref(), now_ms)?,
            expires_at_ms: asked.expires.map(|span| now_ms.saturating_add(span.as_i64())),
            retries: asked.retries,
            min_backoff: asked.min_backoff,
            max_backoff: asked.max_backoff,
            timeout: asked.timeout,
            total_timeout: asked.total_timeout,
            on_failure: asked.on_failure,
            rules: rules_of(&asked)?,
            name: asked.name,
            creator: asked.creator,
            tags: asked.tags,
            link: asked.link,
        };
        check_policy(&policy)?;
        Ok(policy)
    }

    /// Time at which the task may start; `None`: at once.
    pub fn start_of(&self, delay: Option<Millis>, at: Option<&str>, now_ms: i64) -> Result<Option<i64>, ApiError> {
        let start = match (delay, at) {
            (Some(_), Some(_)) => return Err(bad_field("at", "give `delay` or `at`, not both".into())),
            (Some(delay), None) => now_ms.saturating_add(delay.as_i64()),
            (None, Some(at)) => parse_time(at).map_err(|why| bad_field("at", why))?,
            (None, None) => return Ok(None),
        };
        let furthest = self.max_tree_age;
        if start > now_ms.saturating_add(furthest.as_i64()) {
            let field = if at.is_some() { "at" } else { "delay" };
            return Err(bad_field(field, format!("the task would start more than {furthest} from now"))
                .hint("submit it nearer to its time, or raise `topics.max_tree_age`: a tree may be open so long at most"));
        }
        Ok((start > now_ms).then_some(start))
    }

    /// Where this process knows the type: its schema, and whether its handler can read the params.
    pub fn check_fit(&self, task_type: &str, params: &RawJson, at: &str) -> Result<(), ApiError> {
        match self.registry.get(task_type).and_then(|known| known.validate(params)) {
            Some(misfit) => Err(ApiError::new(Code::Schema, misfit.message)
                .pointer(format!("{at}{}", misfit.pointer))
                .hint(format!("GET /v1/types shows the schema of `{task_type}`"))),
            None => Ok(()),
        }
    }

    /// The same for what follows, as far as its params are known by now: results are not.
    pub fn check_thens_fit(&self, thens: &[Continuation], at: &str) -> Result<(), ApiError> {
        for (n, then) in thens.iter().enumerate() {
            let here = format!("{at}/{n}");
            if !then.with_results {
                let params = RawJson::of(&then.params).map_err(|why| bad_field("then", why.to_string()))?;
                self.check_fit(&then.task_type, &params, &format!("{here}/params"))?;
            }
            self.check_thens_fit(&then.then, &format!("{here}/then"))?;
        }
        Ok(())
    }
}

fn id_of(asked: &CreateTask) -> Result<(TaskId, bool), ApiError> {
    let bad = |pointer: &'static str| {
        move |why: crate::model::task::id::IdError| ApiError::new(Code::BadId, why.to_string()).pointer(pointer)
    };
    if let Some(parent) = &asked.parent {
        TaskId::parse(parent).map_err(bad("/parent"))?;
    }
    let made = uuid::Uuid::now_v7().to_string();
    let id = TaskId::resolve(asked.id.as_deref().unwrap_or(&made), asked.parent.as_deref()).map_err(bad("/id"))?;
    if !id.is_root() && number_of(id.segment()).is_some() {
        let why = format!("`{}` is what a continuation of its parent is called", id.segment());
        return Err(ApiError::new(Code::BadId, why).pointer("/id").hint("choose another one, or give the parent a `then`"));
    }
    Ok((id, asked.id.is_none()))
}

fn params_of(asked: &CreateTask) -> Result<RawJson, ApiError> {
    let params = RawJson::of(&asked.params).map_err(|why| bad_field("params", why.to_string()))?;
    let bytes = params.text().len();
    if bytes > MAX_PARAMS_BYTES {
        return Err(ApiError::new(
            Code::TooLarge,
            format!("the params have {bytes} bytes: at most {MAX_PARAMS_BYTES} are allowed"),
        )
        .pointer("/params")
        .hint("put the data elsewhere and pass a link"));
    }
    Ok(params)
}

/// An external task has no record, no attempts and no start of ours: what would be lost is refused.
fn check_external(asked: &CreateTask) -> Result<(), ApiError> {
    let lost = [
        ("params", !asked.params.is_null()),
        ("key", asked.key.is_some()),
        ("delay", asked.delay.is_some()),
        ("at", asked.at.is_some()),
        ("expires", asked.expires.is_some()),
        ("retries", asked.retries.is_some()),
        ("min_backoff", asked.min_backoff.is_some()),
        ("max_backoff", asked.max_backoff.is_some()),
        ("timeout", asked.timeout.is_some()),
        ("total_timeout", asked.total_timeout.is_some()),
    ];
    match lost.iter().find(|(_, given)| *given) {
        Some((field, _)) => {
            let why = format!("an external task has no `{field}`: whoever runs it keeps it");
            Err(bad_field(field, why).hint("what belongs to the task can go into `options`"))
        }
        None => Ok(()),
    }
}

/// What is wrong with a policy as a whole.
pub fn check_policy(policy: &Policy) -> Result<(), ApiError> {
    check_tags(&policy.tags).map_err(|why| bad_field("tags", why))?;
    for (field, text) in [("name", &policy.name), ("creator", &policy.creator), ("link", &policy.link)] {
        check_short(field, text.as_deref())?;
    }
    if policy.expires_at_ms.zip(policy.not_before_ms).is_some_and(|(expires, start)| expires <= start) {
        return Err(bad_field("expires", "the task would expire before it may start".into()));
    }
    check_attempts(policy)?;
    if policy.rules.options.as_ref().is_some_and(|options| !options.is_object()) {
        return Err(bad_field("options", "it must be a JSON object".into()));
    }
    let bytes = serde_json::to_vec(&policy.rules).map_or(0, |text| text.len());
    if bytes > MAX_POLICY_BYTES {
        let why = format!("the options have {bytes} bytes: at most {MAX_POLICY_BYTES} are allowed");
        return Err(ApiError::new(Code::TooLarge, why).pointer("/options"));
    }
    Ok(())
}

fn check_attempts(policy: &Policy) -> Result<(), ApiError> {
    if policy.retries.is_some_and(|retries| retries > MAX_RETRIES) {
        return Err(bad_field("retries", format!("at most {MAX_RETRIES} retries are allowed")));
    }
    if policy.timeout.is_some_and(|timeout| timeout.0 == 0) {
        return Err(bad_field("timeout", "an attempt needs some time".into()));
    }
    if policy.total_timeout.is_some_and(|timeout| timeout.0 == 0) {
        return Err(bad_field("total_timeout", "a task needs some time".into()));
    }
    if policy.min_backoff.zip(policy.max_backoff).is_some_and(|(min, max)| min > max) {
        return Err(bad_field("min_backoff", "it is longer than `max_backoff`".into()));
    }
    Ok(())
}

fn rules_of(asked: &CreateTask) -> Result<Rules, ApiError> {
    let CreateTask { options, external, block_when_done, fail_fast, max_failed, then, actions, checks, .. } = asked.clone();
    if block_when_done.is_some() && !external {
        return Err(bad_field("block_when_done", "it is for external tasks only".into()));
    }
    check_thens(&then).map_err(|(at, why)| bad_field(&format!("then{at}"), why))?;
    let block_when_done = block_when_done.unwrap_or(true);
    let rules = Rules { options, external, block_when_done, fail_fast, max_failed, then, actions, checks };
    rules.own_tells().check().map_err(|(at, why)| bad_field(at.trim_start_matches('/'), why))?;
    Ok(rules)
}

fn check_short(field: &str, text: Option<&str>) -> Result<(), ApiError> {
    match text {
        Some(text) if text.chars().count() > MAX_TEXT_CHARS => {
            Err(bad_field(field, format!("it has more than {MAX_TEXT_CHARS} characters")))
        }
        _ => Ok(()),
    }
}

pub fn bad_field(field: &str, why: String) -> ApiError {
    ApiError::new(Code::BadField, why).pointer(format!("/{field}"))
}

/// The trace that the request belongs to, where its headers have the W3C form; others are not passed on.
pub fn trace_of(headers: &HeaderMap) -> Option<Arc<Trace>> {
    let text = |name: &str| headers.get(name)?.to_str().ok().filter(|text| text.len() <= MAX_TEXT_CHARS).map(str::to_owned);
    let parent = text("traceparent").filter(|text| text.len() >= 55 && text.is_ascii())?;
    Some(Arc::new(Trace { parent, state: text("tracestate") }))
}
