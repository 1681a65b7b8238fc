//! Protection of forms: only the UI's own pages may submit them, with the required role.

use axum::http::{HeaderMap, header};
use kafleet_api::http::problem::{ApiError, Code};

use super::Page;
use super::parts::View;

/// Rejects a form that another site has submitted.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_own = match text("sec-fetch-site") {
        Some(site) => site == "same-origin",
        // Browsers send it to HTTPS and loopback addresses only.
        None => {
            let origin = text("origin").and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
            origin.is_some() && origin == text(header::HOST.as_str())
        }
    };
    if is_own {
        return Ok(());
    }
    Err(ApiError::new(Code::ForbiddenOrigin, "the form was not submitted from a page of this UI")
        .hint("open the form here and submit it again; programs use the API at `/v1`"))
}

/// Rejects an action that the caller may not perform.
pub(super) fn check_role(page: &Page, view: &View) -> Result<(), ApiError> {
    if page.submit.is_some() && view.read_only {
        return Err(ApiError::new(Code::ReadOnly, "this UI has no actions: `api.ui.mode` is `read_only`")
            .hint("use the command line or the API"));
    }
    if view.role < page.role {
        let (has, needs) = (view.role.name(), page.role.name());
        return Err(ApiError::new(Code::Forbidden, format!("your role is `{has}`, but this page needs `{needs}`"))
            .hint("log in with a token of that role"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_other_sites_are_refused() {
        for (pairs, is_own) in [
            (&[("sec-fetch-site", "same-origin")] as &[(&'static str, &str)], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://fleet.example")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("origin", "http://fleet.example")], true),
            (&[("origin", "http://fleet.example.evil")], false),
            (&[("origin", "null")], false),
            (&[], false),
        ] {
            let all = pairs.iter().chain(&[("host", "fleet.example")]);
            let headers = all.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            assert_eq!(check_origin(&headers).is_ok(), is_own, "{pairs:?}");
        }
    }
}
