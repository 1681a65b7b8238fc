//! Query of the list of tasks: a search in `q`, or one parameter per condition.

use kafleet_model::query::{Fault, Qualifier, TaskQuery, Term, Test};

use super::route::{TEXT, TIME, TYPE_NAME};
use crate::http::input::Input;
use crate::http::problem::{ApiError, Code};
use crate::http::request::{ApiRequest, Parameter, Query, bad_parameter, bad_query};

impl Input for TaskQuery {
    const QUERY: &'static [Parameter] = &[
        Parameter { name: "type", description: "Only tasks of this type.", schema: TYPE_NAME },
        Parameter {
            name: "state",
            description: "Only tasks in this state.",
            schema: r##"{"$ref": "#/components/schemas/State"}"##,
        },
        Parameter {
            name: "level",
            description: "`roots`: only tasks without a parent; `any`: tasks of all levels. Default: `any` with \
                          `type`, `error` or `root`, otherwise `roots`. With an indexed \
                          `state` (running, retrying, scheduled, cancelling, warning, failed, cancelled), tasks \
                          are sorted by their own times; otherwise trees are sorted by the times of their roots, \
                          with parents before children.",
            schema: r#"{"type": "string", "enum": ["roots", "any"]}"#,
        },
        Parameter { name: "tag", description: "Only tasks with this tag.", schema: TEXT },
        Parameter { name: "creator", description: "Only tasks of this creator.", schema: TEXT },
        Parameter { name: "name", description: "Only tasks whose name starts with this prefix.", schema: TEXT },
        Parameter {
            name: "name_like",
            description: "Only tasks whose name matches this regular expression anywhere (anchor it with `^` and \
                          `$`).",
            schema: r#"{"type": "string", "minLength": 1, "maxLength": 512}"#,
        },
        Parameter {
            name: "error",
            description: "Only tasks with an error of this kind, or with a similar error message: numbers, ids \
                          and quoted values may differ.",
            schema: TEXT,
        },
        Parameter { name: "from", description: "Only tasks first seen at or after this time.", schema: TIME },
        Parameter { name: "to", description: "Only tasks first seen before this time.", schema: TIME },
        Parameter {
            name: "root",
            description: "Only this task and its descendants, parents before children.",
            schema: TEXT,
        },
        Parameter {
            name: "q",
            description: "Search, such as `type:resize,thumb state:failed -tag:test \"build main\"`, instead of the \
                          filters above (docs/search.md). A mistake is marked by `span` of the problem.",
            schema: r#"{"type": "string", "minLength": 1, "maxLength": 8192}"#,
        },
    ];
    const PROBLEMS: &'static [Code] = &[Code::NotFound];

    fn read(request: &mut ApiRequest) -> Result<Self, ApiError> {
        query_of(&request.query)
    }
}

/// Parameters that filter, and the qualifiers with the same meaning.
const PARAMETERS: [(&str, Qualifier); 11] = [
    ("type", Qualifier::Type),
    ("state", Qualifier::State),
    ("level", Qualifier::Level),
    ("tag", Qualifier::Tag),
    ("creator", Qualifier::Creator),
    ("name", Qualifier::Name),
    ("name_like", Qualifier::NameLike),
    ("error", Qualifier::Error),
    ("from", Qualifier::From),
    ("to", Qualifier::To),
    ("root", Qualifier::Under),
];

/// Reads the query of a request: its `q`, or its filter parameters.
pub(crate) fn query_of(query: &Query) -> Result<TaskQuery, ApiError> {
    let given = |(name, qualifier)| Some((name, qualifier, query.text(name)?));
    let mut parameters = PARAMETERS.into_iter().filter_map(given);
    if let Some(text) = query.text("q") {
        if let Some((name, qualifier, _)) = parameters.next() {
            let hint = format!("write `{}:` in `q` instead", qualifier.name());
            return Err(bad_parameter(name, "it cannot be combined with `q`").hint(hint));
        }
        return TaskQuery::parse(text).map_err(|mistake| bad_query(text, mistake));
    }
    if query.text("root").is_some() && query.text("level").is_some() {
        return Err(bad_parameter("level", "`root` lists tasks of all levels: omit `level`"));
    }
    let terms = parameters.map(|(name, qualifier, value)| term_of(name, qualifier, value));
    Ok(TaskQuery { terms: terms.collect::<Result<_, _>>()? })
}

/// Condition of a filter parameter.
fn term_of(name: &str, qualifier: Qualifier, value: &str) -> Result<Term, ApiError> {
    match Test::new(qualifier, &[value]) {
        Ok(test) => Ok(Term { negated: false, test }),
        Err((_, Fault { message, hint })) => {
            let error = bad_parameter(name, &message);
            Err(hint.into_iter().fold(error, ApiError::hint))
        }
    }
}
