//! Named views: `/v1/views`.

use kafleet::config::Role;
use kafleet::documents::{TaskColumn, TaskSort, ViewDocument, Views};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::fixture::fleet;
use crate::ui::browser::{guarded_fleet, token};

#[tokio::test]
async fn view_is_saved_read_replaced_and_deleted() {
    let fleet = fleet().await;
    let body = json!({"q": " state:failed  from:24h", "sort": "oldest", "columns": ["id", "error"], "description": "failed today"});
    let saved = fleet.request(Method::PUT, "/v1/views/failed-today").json(&body).send().await.unwrap();
    assert_eq!(saved.status(), StatusCode::OK);
    let view: ViewDocument = fleet.get("/v1/views/failed-today").await;
    assert_eq!((view.q.as_str(), view.sort), ("state:failed from:1d", TaskSort::Oldest));
    assert_eq!(view.columns, [TaskColumn::Id, TaskColumn::Error]);
    assert_eq!((view.role, view.by), (Role::Read, None));
    let record = fleet.control("view/failed-today").unwrap();
    assert_eq!(record["q"], json!("state:failed from:1d"));
    fleet.request(Method::PUT, "/v1/views/failed-today").json(&json!({})).send().await.unwrap();
    let replaced: ViewDocument = fleet.get("/v1/views/failed-today").await;
    assert_eq!((replaced.q.as_str(), replaced.sort, replaced.columns.len()), ("", TaskSort::Newest, 0));
    assert_eq!(fleet.get::<Views>("/v1/views").await.views.len(), 1);
    let deleted = fleet.request(Method::DELETE, "/v1/views/failed-today").send().await.unwrap();
    assert_eq!(deleted.status(), StatusCode::OK);
    assert_eq!((fleet.get::<Views>("/v1/views").await.views, fleet.control("view/failed-today")), (vec![], None));
}

#[tokio::test]
async fn invalid_views_are_refused() {
    let fleet = fleet().await;
    for (name, body, code, pointer) in [
        ("A", json!({}), "bad_view", None),
        ("a", json!({"q": "stat:failed"}), "bad_field", Some("/q")),
        ("a", json!({"q": "tag:x", "sort": "oldest"}), "bad_field", Some("/sort")),
        ("a", json!({"columns": ["id", "nothing"]}), "bad_field", None),
        ("a", json!({"description": "x".repeat(401)}), "bad_field", Some("/description")),
        ("a", json!({"query": "tag:x"}), "unknown_field", None),
    ] {
        let response = fleet.request(Method::PUT, &format!("/v1/views/{name}")).json(&body).send().await.unwrap();
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], json!(code), "{body}");
        if let Some(pointer) = pointer {
            assert_eq!(problem["pointer"], json!(pointer), "{body}");
        }
    }
    for method in [Method::GET, Method::DELETE] {
        let problem: Value = fleet.request(method, "/v1/views/none").send().await.unwrap().json().await.unwrap();
        assert_eq!(problem["code"], json!("unknown_view"));
    }
}

#[tokio::test]
async fn views_are_visible_from_their_role_up() {
    let fleet = guarded_fleet().await;
    let as_role = |method: Method, path: &str, role: Role| fleet.request(method, path).bearer_auth(token(role));
    for (name, role) in [("for-all", "read"), ("for-operators", "operate")] {
        let path = format!("/v1/views/{name}");
        let body = json!({"q": "state:failed", "role": role});
        let refused = as_role(Method::PUT, &path, Role::Submit).json(&body).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        let saved = as_role(Method::PUT, &path, Role::Operate).json(&body).send().await.unwrap();
        assert_eq!(saved.json::<ViewDocument>().await.unwrap().by.as_deref(), Some("operate"));
    }
    for (role, expected) in [(Role::Read, vec!["for-all"]), (Role::Operate, vec!["for-all", "for-operators"])] {
        let views: Views = as_role(Method::GET, "/v1/views", role).send().await.unwrap().json().await.unwrap();
        assert_eq!(views.views.iter().map(|view| view.name.as_str()).collect::<Vec<_>>(), expected, "{role:?}");
    }
    let hidden = as_role(Method::GET, "/v1/views/for-operators", Role::Submit).send().await.unwrap();
    let problem: Value = hidden.json().await.unwrap();
    assert_eq!(problem["code"], json!("unknown_view"));
    assert!(!problem.to_string().contains("did you mean `for-operators`"), "{problem}");
}
