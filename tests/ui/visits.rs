//! A visit of every page and form: the addresses that tests over all pages open.

use crate::ui::browser::Browser;
use crate::ui::shop::{Shop, longest_id, lowest_id};

/// Subjects of pages with parameters: the beginning of their path in the table of pages, and that of their address in the
/// shop. The first one that fits counts. A page with another parameter needs a line.
const SUBJECTS: &[(&str, &str)] = &[
    ("/tasks/{id}/attachments/{name}", "/tasks/order/attachments/notes.txt"),
    ("/tasks/{id}", "/tasks/order"),
    ("/dead-letters/{letter}", "/dead-letters/echo:0:0"),
    ("/types/{type}", "/types/echo"),
    ("/workers/{id}", "/workers/node-7"),
    ("/schedules/{id}", "/schedules/nightly"),
    ("/kill-switches/{name}", "/kill-switches/batch-7"),
    ("/bulk/{id}", "/bulk/BULK"),
    ("/v/{name}", "/v/open-orders"),
];

/// Further states of pages: searches, mistakes, previews, ranges, and other tasks.
const VARIANTS: &[&str] = &[
    "/tasks?q=type:echo+state:failed+level:any",
    "/tasks?q=is:open+level:any",
    "/tasks?q=stat:failed",
    "/tasks?q=tag:nothing",
    "/tasks/nothing",
    "/nothing",
    "/bulk/new?action=retry&q=own:failed+level:any",
    "/bulk/new?action=cancel&q=is:open+level:any",
    "/new?like=order",
    "/new?type=resize",
    "/failures?since=1h",
    "/failures?by=root",
    "/failures?type=charge",
    "/?range=24h&compare=yesterday",
    "/types/charge",
    "/types/mail",
    "/tasks/ada",
    "/tasks/ada/tree",
    "/tasks/ken",
    "/tasks/ken/timeline",
    "/tasks/ken:charge",
    "/tasks/alan",
    "/tasks/alan/timeline",
    "/tasks/alan:charge",
    "/tasks/import",
    "/tasks/thumb",
    "/tasks/approval",
    "/workers/unknown",
];

/// Returns the address of a path of the table of pages, or `None` if it has a subject without a line.
fn address(path: &str) -> Option<String> {
    let subject = SUBJECTS.iter().find(|(beginning, _)| path.starts_with(beginning));
    let address = subject.map_or_else(|| path.to_owned(), |(beginning, is)| path.replacen(beginning, is, 1));
    (!address.contains('{')).then_some(address)
}

/// Returns the addresses of all pages and forms in the shop.
pub fn visits(shop: &Shop) -> Vec<String> {
    let pages = kafleet::ui::paths().filter_map(address).map(|path| path.replace("BULK", &shop.bulk));
    let of_ids = |id: String| ["", "/tree", "/timeline"].map(|page| format!("/tasks/{id}{page}"));
    let of_ids = [longest_id(), lowest_id()].into_iter().flat_map(of_ids);
    pages.chain(VARIANTS.iter().map(|path| (*path).to_owned())).chain(of_ids).collect()
}

/// Returns the addresses of those pages that are documents for people, and not files.
pub async fn documents(shop: &Shop) -> Vec<String> {
    let browser = Browser::new(&shop.fleet);
    let mut documents = Vec::new();
    for path in visits(shop) {
        let is_document = browser.get(&path).await.is_document();
        documents.extend(is_document.then_some(path));
    }
    documents
}

#[test]
fn every_page_has_a_visit() {
    let missing: Vec<&str> = kafleet::ui::paths().filter(|path| address(path).is_none()).collect();
    assert!(missing.is_empty(), "these need a line in `SUBJECTS`: {missing:?}");
}

#[tokio::test]
async fn visited_pages_exist() {
    let shop = crate::ui::shop::shop().await;
    let browser = Browser::new(&shop.fleet);
    for path in visits(&shop) {
        let page = browser.get(&path).await;
        let is_missing = ["/tasks/nothing", "/nothing", "/workers/unknown"].contains(&path.as_str());
        let is_answered = page.status.is_success() || page.status.is_redirection();
        assert_eq!(is_answered, !is_missing, "{path}: {} {}", page.status, page.text);
    }
}
