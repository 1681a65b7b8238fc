//! Masked values: no page contains one for a role that does not see them, also not from a rendering that another role has caused, and
//! forms keep what they do not show.

use kafleet::config::{Role, UiConfig};
use kafleet::documents::Params;
use kafleet::model::json::MASKED;
use reqwest::Method;
use serde_json::json;

use crate::api::fixture::eventually;
use crate::api::masking::{SECRET, declare_mask, masked_fleet, masked_redrive, params, send};
use crate::ui::browser::{Browser, guarded_fleet};
use crate::ui::roles::{PAGES, url_of};

/// Paths of pages that show a masked value to the highest role.
fn with_value(letter: &str, redrive: &str) -> Vec<String> {
    let fixed = [
        "/tasks/order",
        "/tasks/order/params",
        "/tasks/order/result",
        "/new?like=order",
        "/schedules/nightly",
        "/schedules/nightly/edit",
    ];
    let named = [format!("/dead-letters/{letter}"), format!("/tasks/{redrive}"), format!("/bulk/{redrive}")];
    fixed.into_iter().map(str::to_owned).chain(named).collect()
}

fn form(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

#[tokio::test]
async fn no_page_shows_a_masked_value_to_a_lower_role() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let redrive = masked_redrive(&fleet).await;
    for role in [Role::Read, Role::Submit, Role::Operate] {
        let browser = Browser::of_role(&fleet, role);
        for page in PAGES {
            for subject in ["order", "bad", redrive.as_str()] {
                let page = browser.get(&url_of(page.path, subject, &letter)).await;
                page.lacks(&[SECRET]);
            }
        }
        browser.get("/new?like=order").await.lacks(&[SECRET]);
        browser.get("/tasks?q=level:any").await.lacks(&[SECRET]);
    }
    let browser = Browser::of_role(&fleet, Role::Operate);
    for path in with_value(&letter, &redrive) {
        browser.open(&path).await.has(&[MASKED]).lacks(&[SECRET]);
        Browser::of_role(&fleet, Role::Admin).open(&path).await.has(&[SECRET]);
    }
}

#[tokio::test]
async fn shared_renderings_do_not_pass_masked_values_on() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let redrive = masked_redrive(&fleet).await;
    let part = [("kafleet-part", "main")];
    for roles in [[Role::Admin, Role::Read], [Role::Read, Role::Admin]] {
        for path in with_value(&letter, &redrive) {
            for role in roles {
                let page = Browser::of_role(&fleet, role).send(Method::GET, &path, &part, None).await;
                let shows = page.text.contains(SECRET);
                assert_eq!(shows, role == Role::Admin, "{path} as {role:?}: {}", page.text);
            }
        }
    }
}

#[tokio::test]
async fn params_that_were_shown_before_are_hidden_by_a_new_mask() {
    let fleet = guarded_fleet().await;
    let task = json!({"type": "echo", "id": "order", "params": params()});
    let (status, text) = send(&fleet, Role::Submit, Method::POST, "/v1/tasks", Some(task)).await;
    assert_eq!(status, 201, "{text}");
    fleet.folded().await;
    let browser = Browser::of_role(&fleet, Role::Read);
    browser.open("/tasks/order").await.has(&[SECRET]);
    declare_mask(&fleet).await;
    eventually("the mask", async || !browser.open("/tasks/order/params").await.text.contains(SECRET)).await;
    browser.open("/tasks/order").await.has(&[MASKED]).lacks(&[SECRET]);
}

#[tokio::test]
async fn copy_of_a_task_keeps_the_hidden_value() {
    let (fleet, _) = masked_fleet(UiConfig::default()).await;
    let browser = Browser::of_role(&fleet, Role::Submit);
    browser.open("/new?like=order").await.has(&["name=\"like\"", MASKED]).lacks(&[SECRET]);
    let edited = json!({"card": {"number": MASKED}, "n": 1}).to_string();
    let fields = [("like", "order"), ("type", "echo"), ("params", edited.as_str()), ("id", "copy")];
    browser.submit("/new", &form(&fields)).await.lacks(&[SECRET]);
    fleet.folded().await;
    let (_, text) = send(&fleet, Role::Admin, Method::GET, "/v1/tasks/copy/params", None).await;
    let copy: Params = serde_json::from_str(&text).unwrap();
    assert_eq!(copy.params, params());

    let page = browser.post("/new", &form(&[("type", "echo"), ("params", edited.as_str()), ("id", "other")])).await;
    page.has(&["stands for a masked value", "/params/card/number"]);
    let fields = [("like", "order"), ("type", "resize"), ("params", edited.as_str()), ("id", "other")];
    browser.post("/new", &form(&fields)).await.lacks(&[SECRET]);
}

#[tokio::test]
async fn edited_dead_letter_and_schedule_keep_hidden_values() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let browser = Browser::of_role(&fleet, Role::Operate);
    let edit = format!("/dead-letters/{letter}/edit");
    browser.open(&edit).await.has(&[MASKED]).lacks(&[SECRET]);
    let edited = json!({"card": {"number": MASKED}, "n": 2}).to_string();
    let page = browser.post(&edit, &form(&[("params", edited.as_str())])).await;
    assert_eq!(page.status, 303, "{}", page.text);
    let spec =
        json!({"every": "2h", "task": {"type": "echo", "params": {"card": {"number": MASKED}, "n": 1}}}).to_string();
    let page = browser.post("/schedules/nightly/edit", &form(&[("spec", spec.as_str())])).await;
    assert_eq!(page.status, 303, "{}", page.text);
    Browser::of_role(&fleet, Role::Admin).open("/schedules/nightly").await.has(&[SECRET, "2h"]);
}
