//! Routes of types, kill switches and workers.

use kafleet_documents::{KillSwitchPreview, PauseType, ResumeType, SetCircuit, SetKillSwitch, SetLimits};
use kafleet_model::task::kill::KillMatch;

use super::route::{Route, TYPE_NAME, delete, get, post, put};
use crate::http::input::{Input, json_bodies};
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter, bad_parameter, read_json};
use crate::service::context::RequestContext;
use crate::service::kill_switches::{KillName, KillScope};
use crate::service::list::MAX_SCAN_TIME;
use crate::service::{kill_switch_preview, kill_switches, operations, types, workers};

json_bodies! { required SetLimits, SetCircuit; optional PauseType, ResumeType, SetKillSwitch; }

impl Input for KillName {
    const PROBLEMS: &'static [Code] = &[Code::BadKillSwitch];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        request.segments.next().unwrap_or_default().parse()
    }
}

impl Input for KillScope {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "type", description: "Only tasks of this type.", schema: TYPE_NAME },
        Parameter {
            name: "matches",
            description: "Only tasks with the tag, or only those whose id begins with the name. Default: both.",
            schema: r#"{"type": "string", "enum": ["tag", "id_prefix"]}"#,
        },
        Parameter {
            name: "params",
            description: "Only tasks of the type with these params: a JSON object of values by JSON pointer, such as \
                          `{\"/customer/id\": 42}`, at most 4. The name is then neither a tag nor a prefix of ids.",
            schema: r#"{"type": "string", "minLength": 2}"#,
        },
    ];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        let matches = request.query.text("matches").map(|text| {
            let known = KillMatch::ALL.into_iter().find(|matches| matches.name() == text);
            known.ok_or_else(|| bad_parameter("matches", "it is neither `tag` nor `id_prefix`"))
        });
        let params = request
            .query
            .text("params")
            .map(|text| read_json(text.as_bytes()).map_err(|error| bad_parameter("params", &error.document().detail)));
        let params = params.transpose()?.unwrap_or_default();
        Ok(Self { task_type: request.query.type_name("type")?, matches: matches.transpose()?, params })
    }
}

async fn preview_kill_switch(
    context: RequestContext,
    name: KillName,
    scope: KillScope,
) -> Result<KillSwitchPreview, ApiError> {
    kill_switch_preview::preview(context, name, scope, MAX_SCAN_TIME).await
}

pub(super) fn all() -> Vec<Route> {
    let kill_switch = "/v1/kill-switches/{name}";
    vec![
        get("/v1/types", "List the task types with task counts by state", types::types),
        get("/v1/types/{type}", "Get a task type with its task counts by state", types::read_type)
            .problems([Code::UnknownType]),
        get(
            "/v1/types/{type}/backlog",
            "Get the number of queued and running tasks of a type, for scaling",
            types::backlog,
        )
        .problems([Code::UnknownType]),
        post("/v1/types/{type}/pause", "Pause a type; running attempts finish", operations::pause)
            .problems([Code::UnknownType]),
        post("/v1/types/{type}/resume", "Resume a paused type", operations::resume).problems([Code::UnknownType]),
        put(
            "/v1/types/{type}/limits",
            "Set the limits of a type; omitted limits revert to the configuration",
            operations::limits,
        )
        .problems([Code::UnknownType, Code::LimitTooSmall]),
        put(
            "/v1/types/{type}/circuit",
            "Open or close the circuit of a type in all workers, or leave it to each of them",
            operations::circuit,
        )
        .problems([Code::UnknownType]),
        delete(
            "/v1/types/{type}",
            "Delete the declaration of a type; its topics and tasks remain",
            operations::forget_type,
        )
        .problems([Code::UnknownType]),
        get("/v1/kill-switches", "List the active kill switches", kill_switches::list_kill_switches)
            .without([Code::StoreUnavailable]),
        get(
            "/v1/kill-switches/{name}/preview",
            "Count the open tasks that a kill switch would cancel",
            preview_kill_switch,
        )
        .problems([Code::NotVisibleYet]),
        put(
            kill_switch,
            "Set a kill switch: cancel tasks with this tag or id prefix, or with given params, instead of starting them",
            kill_switches::set_kill_switch,
        )
        .problems([Code::TooManyKillSwitches])
        .without([Code::StoreUnavailable]),
        delete(kill_switch, "Delete a kill switch", kill_switches::delete_kill_switch)
            .success([(200, "Deleted; the deleted kill switch.")])
            .problems([Code::UnknownKillSwitch])
            .without([Code::StoreUnavailable]),
        get("/v1/workers", "List the workers with their last heartbeats", workers::workers)
            .without([Code::StoreUnavailable, Code::KafkaUnavailable]),
    ]
}
