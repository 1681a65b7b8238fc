//! Routes of the keys of unique tasks.

use kafleet_config::Role;

use super::route::{Route, delete, get};
use crate::http::problem::Code;
use crate::service::unique;

pub(super) fn all() -> Vec<Route> {
    let path = "/v1/unique/{type}/{key}";
    vec![
        get(path, "Get the tasks that stand for a key of unique tasks", unique::read).problems([
            Code::UnknownUnique,
            Code::BadField,
            Code::NotVisibleYet,
        ]),
        delete(path, "Forget a key of unique tasks; a kept task starts", unique::clear)
            .role(Role::Operate)
            .success([(200, "Forgotten; the body is the key as it was.")])
            .problems([Code::UnknownUnique, Code::BadField, Code::NotVisibleYet]),
    ]
}
