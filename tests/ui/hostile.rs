//! Hostile text in every field shows as text.

use kafleet::api::documents::Status;
use reqwest::Method;
use serde_json::json;

use crate::api::fixture::fleet;
use crate::ui::browser::Browser;
use crate::ui::pages::OF_TASK;

const MARKUP: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";

#[tokio::test]
async fn markup_in_every_field_is_escaped() {
    let fleet = fleet().await;
    let task = json!({
        "type": "echo", "id": "order", "name": MARKUP, "creator": MARKUP, "link": "javascript:alert(1)",
        "tags": ["<script>tag</script>"], "params": {"html": MARKUP}, "options": {"html": MARKUP}
    });
    fleet.create(task).await;
    let browser = Browser::new(&fleet);
    let markup: String = url::form_urlencoded::byte_serialize(MARKUP.as_bytes()).collect();
    browser.submit("/tasks/order/append", &format!("lines={markup}%0A%1B%5B31mred%1B%5B0m")).await;
    browser.submit("/types/echo/pause", &format!("reason={markup}")).await;
    browser.submit("/kill-switches/new", &format!("name=other&reason={markup}")).await;
    fleet.succeed("order", json!({"html": MARKUP})).await;
    fleet.echo("order:child").await;
    fleet.fail("order:child", MARKUP).await;
    fleet.folded().await;
    assert_eq!(fleet.get::<Status>("/v1/tasks/order").await.fields.name.as_deref(), Some(MARKUP));
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    let others = ["/", "/tasks", "/tasks/order:child", "/types", "/types/echo", "/kill-switches", "/new?like=order"];
    let with_markup = ["/tasks?name=X", "/tasks?tag=X", "/tasks/X", "/types/X", "/workers/X", "/new?name=X&params=X"];
    let with_markup = with_markup.map(|path| path.replace('X', &markup.replace('+', "%20")));
    for path in of_task.chain(others.map(str::to_owned)).chain(with_markup) {
        let page = browser.get(&path).await;
        page.lacks(&["<script>", "<img", "onerror=alert(1)>", "href=\"javascript:", "\u{1b}"]);
    }
    let post =
        browser.send(Method::POST, "/new", &[("sec-fetch-site", "same-origin")], Some(&format!("type={markup}"))).await;
    post.lacks(&["<script>", "<img"]);
}
