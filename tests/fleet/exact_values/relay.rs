//! Type whose handler gives a value on, without decoding it.

use kafleet::handlers::{Child, Context, Continuation, Failure, Schema, TaskResult, TypeRegistration};
use kafleet::model::json::RawJson;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub const TYPE: &str = "relay";

/// Way in which a value leaves a handler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Result,
    Progress,
    Child,
    ChildResult,
    ChildAtOnce,
    Continuation,
    DeadLetter,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Relay {
    by: By,
    #[serde(default)]
    value: RawJson,
}

pub fn registered() -> TypeRegistration {
    // A schema would decode the value.
    TypeRegistration { schema: Schema::any(), ..TypeRegistration::of_fn(relay) }
}

async fn relay(Relay { by, value }: Relay, cx: Context) -> TaskResult<Option<RawJson>> {
    match by {
        By::Result => return Ok(Some(value)),
        By::Progress => cx.progress(value),
        By::Child => cx.spawn_child(Child::new("echo", value).id("c")),
        By::ChildResult => {
            let params = RawJson::of(&Relay { by: By::Result, value }).expect("a relay is JSON");
            cx.spawn_child(Child::new(TYPE, params).id("c"));
        }
        By::ChildAtOnce => drop(cx.spawn_now(vec![Child::new("echo", value).id("c")]).await?),
        By::Continuation => cx.then(Continuation::new("echo", value)),
        By::DeadLetter => return Err(Failure::dead("for a redrive")),
    }
    Ok(None)
}
