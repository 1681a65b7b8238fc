//! Roles: each page for each role and without a login, as a page and as the shared rendering of open tabs.

use kafleet::config::{Role, UiConfig};
use reqwest::Method;

use crate::api::masking::masked_fleet;
use crate::ui::browser::Browser;

/// Page with the role that it needs.
pub struct PageOfRole {
    pub path: &'static str,
    pub role: Role,
}

const fn page(path: &'static str, role: Role) -> PageOfRole {
    PageOfRole { path, role }
}

/// All pages of the UI. A new one has to be added here.
#[rustfmt::skip]
pub const PAGES: &[PageOfRole] = &[
    page("/", Role::Read),
    page("/tasks", Role::Read),
    page("/search", Role::Read),
    page("/tasks/{id}", Role::Read),
    page("/tasks/{id}/tree", Role::Read),
    page("/tasks/{id}/tree/mermaid", Role::Read),
    page("/tasks/{id}/timeline", Role::Read),
    page("/tasks/{id}/log", Role::Read),
    page("/tasks/{id}/log/raw", Role::Read),
    page("/tasks/{id}/params", Role::Read),
    page("/tasks/{id}/result", Role::Read),
    page("/tasks/{id}/attachments/{name}", Role::Read),
    page("/tasks/{id}/cancel", Role::Operate),
    page("/tasks/{id}/retry", Role::Operate),
    page("/tasks/{id}/retry-failed", Role::Operate),
    page("/tasks/{id}/forget-key", Role::Operate),
    page("/tasks/{id}/start-now", Role::Submit),
    page("/tasks/{id}/edit", Role::Submit),
    page("/tasks/{id}/append", Role::Submit),
    page("/tasks/{id}/attach", Role::Submit),
    page("/new", Role::Submit),
    page("/new/many", Role::Submit),
    page("/dead-letters", Role::Read),
    page("/dead-letters/drop", Role::Operate),
    page("/dead-letters/{letter}", Role::Read),
    page("/dead-letters/{letter}/redrive", Role::Operate),
    page("/dead-letters/{letter}/edit", Role::Operate),
    page("/dead-letters/{letter}/drop", Role::Operate),
    page("/failures", Role::Read),
    page("/types", Role::Read),
    page("/types/{type}", Role::Read),
    page("/types/{type}/pause", Role::Operate),
    page("/types/{type}/resume", Role::Operate),
    page("/types/{type}/limits", Role::Operate),
    page("/types/{type}/circuit", Role::Operate),
    page("/export", Role::Read),
    page("/v", Role::Read),
    page("/v/{name}", Role::Read),
    page("/v/{name}/edit", Role::Operate),
    page("/v/{name}/delete", Role::Operate),
    page("/new-view", Role::Operate),
    page("/workers", Role::Read),
    page("/workers/{id}", Role::Read),
    page("/schedules", Role::Read),
    page("/schedules/{id}", Role::Read),
    page("/new-schedule", Role::Operate),
    page("/schedules/{id}/edit", Role::Operate),
    page("/schedules/{id}/pause", Role::Operate),
    page("/schedules/{id}/resume", Role::Operate),
    page("/schedules/{id}/trigger", Role::Operate),
    page("/schedules/{id}/backfill", Role::Operate),
    page("/schedules/{id}/delete", Role::Operate),
    page("/kill-switches", Role::Read),
    page("/kill-switches/new", Role::Operate),
    page("/kill-switches/{name}/off", Role::Operate),
    page("/bulk", Role::Read),
    page("/bulk/{id}", Role::Read),
    page("/bulk/new", Role::Operate),
    page("/audit", Role::Read),
    page("/system", Role::Read),
    page("/help", Role::Read),
];

/// URL of a page about a subject: a task, a dead letter, or the schedule `nightly`.
pub fn url_of(path: &str, task: &str, letter: &str) -> String {
    let id = if path.starts_with("/schedules") { "nightly" } else { task };
    path.replace("{id}", id).replace("{letter}", letter).replace("{type}", "echo").replace("{name}", "notes")
}

/// Whether a path is one of a page, whose path has parameters.
fn is_of(page: &str, path: &str) -> bool {
    let (page, path): (Vec<&str>, Vec<&str>) = (page.split('/').collect(), path.split('/').collect());
    page.len() == path.len()
        && page.iter().zip(&path).all(|(of_page, part)| of_page.starts_with('{') || of_page == part)
}

/// Role that a path of this UI needs: that of the page with the fewest parameters.
fn needed(path: &str) -> Option<Role> {
    let pages = PAGES.iter().filter(|page| is_of(page.path, path));
    pages.min_by_key(|page| page.path.matches('{').count()).map(|page| page.role)
}

/// Paths that the links and the forms of a page lead to.
fn targets(text: &str) -> Vec<String> {
    let after = |name: &str| {
        let parts = text.split(name).skip(1);
        parts.filter_map(|part| part.split(['"', '?', '#']).next()).map(str::to_owned).collect::<Vec<_>>()
    };
    after("href=\"").into_iter().chain(after("action=\"")).filter(|path| path.starts_with('/')).collect()
}

#[test]
fn table_names_all_pages() {
    let source = include_str!("../../crates/ui/src/lib.rs");
    let begins = ["    page(\"", "    form(\""];
    let lines = source.lines().filter_map(|line| begins.iter().find_map(|begin| line.strip_prefix(begin)));
    let mut of_source: Vec<&str> = lines.filter_map(|rest| rest.split('"').next()).collect();
    let mut of_table: Vec<&str> = PAGES.iter().map(|page| page.path).collect();
    of_source.sort_unstable();
    of_table.sort_unstable();
    assert_eq!(of_table, of_source);
}

#[tokio::test]
async fn each_role_gets_its_pages_and_no_others() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    for role in Role::ALL {
        let browser = Browser::of_role(&fleet, role);
        for page in PAGES {
            let url = url_of(page.path, "order", &letter);
            let answer = browser.get(&url).await;
            let status = answer.status.as_u16();
            assert_eq!(status == 403, role < page.role, "{url} as {role:?}: {status}");
            assert!(status < 500, "{url} as {role:?}: {}", answer.text);
            if status == 403 {
                let next: String = url::form_urlencoded::byte_serialize(url.as_bytes()).collect();
                let login = format!("/login?again=1&amp;next={next}");
                answer.has(&[page.role.name(), role.name(), &login, "Log in with another token"]);
            }
        }
    }
}

#[tokio::test]
async fn pages_offer_no_action_that_the_role_may_not_do() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    for role in Role::ALL {
        let browser = Browser::of_role(&fleet, role);
        for page in PAGES.iter().filter(|page| page.role <= role) {
            for task in ["order", "bad"] {
                let url = url_of(page.path, task, &letter);
                let answer = browser.get(&url).await;
                for target in targets(&answer.text) {
                    let refused = needed(&target).is_some_and(|needed| needed > role);
                    assert!(!refused, "{url} offers {target} to {role:?}");
                }
            }
        }
    }
    let operator = Browser::of_role(&fleet, Role::Operate);
    assert!(targets(&operator.open("/tasks/bad").await.text).iter().any(|path| path == "/tasks/bad/retry"));
}

#[tokio::test]
async fn login_is_offered_without_a_session() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let browser = Browser::new(&fleet);
    for page in PAGES {
        let url = url_of(page.path, "order", &letter);
        let answer = browser.get(&url).await;
        assert_eq!(answer.status, 303, "{url}");
        assert!(answer.header("location").starts_with("/login?next="), "{url}");
        let part = browser.send(Method::GET, &url, &[("kafleet-part", "main")], None).await;
        assert_eq!(part.status, 401, "{url}");
    }
    let reader = Browser::of_role(&fleet, Role::Read);
    reader.get("/login?again=1&next=%2Ftypes").await.has(&["name=\"token\"", "value=\"/types\""]);
    assert_eq!(reader.get("/login?next=%2Ftypes").await.header("location"), "/types", "who is logged in continues");
}

/// Open tabs of one URL share a rendering: each role has its own, whichever asks first.
#[tokio::test]
async fn shared_renderings_offer_each_role_its_own_actions() {
    let (fleet, letter) = masked_fleet(UiConfig::default()).await;
    let part = [("kafleet-part", "main")];
    let mut upwards = Role::ALL.to_vec();
    let downwards: Vec<Role> = upwards.iter().rev().copied().collect();
    upwards.extend(downwards);
    for page in PAGES {
        let url = url_of(page.path, "bad", &letter);
        for role in &upwards {
            let answer = Browser::of_role(&fleet, *role).send(Method::GET, &url, &part, None).await;
            assert_eq!(answer.status == 403, *role < page.role, "{url} as {role:?}");
            if answer.status == 403 {
                continue;
            }
            for target in targets(&answer.text) {
                assert!(needed(&target).is_none_or(|needed| needed <= *role), "{url} offers {target} to {role:?}");
            }
        }
    }
}
