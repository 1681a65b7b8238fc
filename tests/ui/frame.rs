//! Frame of all pages: the zone and the format of times, the name, colour and icon of the fleet, keys, and links that lead on.

use kafleet::config::{ApiConfig, Colour, HEADER_COLOURS, Role, UiConfig};
use kafleet::documents::Status;
use regex::Regex;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::api::fixture::{Fleet, eventually, fleet, unfolded};
use crate::ui::browser::{Browser, Page, guarded_fleet, with_tokens};
use crate::ui::pages::{OF_TASK, PLAIN, fleet_with_tree};

const STYLES: &str = include_str!("../../crates/ui/src/assets/app.css");

/// Beginning of the hint of a field that takes a time.
const EXAMPLE: &str = "2026-01-31 07:00 or ";

/// Browser that has chosen a zone.
fn in_zone<'a>(fleet: &'a Fleet, zone: &str) -> Browser<'a> {
    let mut browser = Browser::new(fleet);
    browser.headers.push(("cookie", format!("kafleet-zone={zone}")));
    browser
}

async fn fleet_with(ui: UiConfig) -> Fleet {
    let fleet = unfolded(ApiConfig { ui, ..ApiConfig::default() }).await;
    fleet.track();
    fleet
}

/// Texts of `<time>` elements that have no known format, and dates in other texts.
fn unknown_times(page: &Page) -> Vec<String> {
    let body = page.text.split_once("<body>").unwrap().1;
    let quoted = Regex::new(r"(?s)<(pre|code|textarea|datalist)\b.*?</(pre|code|textarea|datalist)>").unwrap();
    let body = quoted.replace_all(body, "");
    let element = Regex::new(r"(?s)<time\b[^>]*>(.*?)</time>").unwrap();
    let tag = Regex::new(r"<[^>]*>").unwrap();
    let known = Regex::new(
        r"^((\d{1,2} [A-Z][a-z]{2} (\d{4} )?)?\d\d:\d\d:\d\d(\.\d{3})?( · (in )?\d+ (s|min|h|d)( ago)?)?|(in )?\d+ (s|min|h|d)( \d+ (s|min|h))?( ago)?)$",
    )
    .unwrap();
    let texts = element.captures_iter(&body).map(|found| tag.replace_all(&found[1], "").into_owned());
    let mut unknown: Vec<String> = texts.filter(|text| !known.is_match(text)).collect();
    let date = Regex::new(r"\d{4}-\d\d-\d\d").unwrap();
    let rest = element.replace_all(&body, "");
    unknown
        .extend(tag.split(&rest).filter(|text| date.is_match(text) && !text.starts_with(EXAMPLE)).map(str::to_owned));
    unknown
}

#[tokio::test]
async fn times_of_all_pages_have_one_format() {
    let fleet = fleet_with_tree().await;
    fleet.post("/v1/tasks/order/log", json!({"lines": ["a line"]})).await;
    fleet.create(json!({"type": "echo", "id": "later", "delay": "10d"})).await;
    let browser = in_zone(&fleet, "Europe/Berlin");
    browser.submit("/types/echo/pause", "reason=disk+full").await;
    browser.submit("/kill-switches/new", "tag=ci&reason=x").await;
    fleet.folded().await;
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    for path in PLAIN.iter().chain(&["/tasks/later"]).map(|path| (*path).to_owned()).chain(of_task) {
        let page = browser.get(&path).await;
        let unknown = unknown_times(&page);
        assert!(unknown.is_empty(), "{path}: {unknown:?}");
        page.has(&["times in <strong>Europe/Berlin</strong>"]);
    }
}

/// Headings of times that have another word: created, waited, ran, total, time, due.
const FORMER_HEADINGS: [&str; 5] = ["At", "Took", "Took in all", "Decided", "Age"];

#[tokio::test]
async fn headings_have_one_word_for_a_time() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let heading = Regex::new(r"<(?:th|dt)\b[^>]*>([^<]*)</(?:th|dt)>").unwrap();
    let of_task = OF_TASK.iter().map(|page| format!("/tasks/order{page}"));
    for path in PLAIN.iter().map(|path| (*path).to_owned()).chain(of_task) {
        let page = browser.get(&path).await;
        for found in heading.captures_iter(&page.text) {
            assert!(!FORMER_HEADINGS.contains(&&found[1]), "{path}: {}", &found[1]);
        }
    }
}

#[tokio::test]
async fn times_are_in_the_zone_that_the_reader_has_chosen() {
    let fleet = fleet_with_tree().await;
    fleet.create(json!({"type": "echo", "id": "later", "delay": "10d"})).await;
    fleet.folded().await;
    let status: Status = fleet.get("/v1/tasks/later").await;
    let due = status.due_at.unwrap();
    for (zone, shown) in [
        ("UTC", "UTC"),
        ("Asia/Kathmandu", "Asia/Kathmandu"),
        ("local:America/New_York", "America/New_York"),
        ("Mars/Base", "UTC"),
    ] {
        let at = due.parse::<jiff::Timestamp>().unwrap().in_tz(shown).unwrap();
        let expected = at.strftime("%H:%M:%S%.3f</time>").to_string();
        let browser = in_zone(&fleet, zone);
        browser.open("/tasks/later").await.has(&[&expected, &format!("datetime=\"{due}\"")]);
        // The second one is a rendering that tabs of one zone share.
        for _ in 0..2 {
            let part = browser.send(Method::GET, "/tasks/later", &[("kafleet-part", "main")], None).await;
            part.has(&[&expected]);
        }
    }
}

#[tokio::test]
async fn zone_is_kept_in_a_cookie() {
    let fleet = fleet_with(UiConfig { zone: "Europe/Berlin".into(), ..UiConfig::default() }).await;
    let browser = Browser::new(&fleet);
    browser.open("/help").await.has(&[
        "times in <strong>Europe/Berlin</strong>",
        "value=\"fleet\" aria-pressed=\"true\"",
        "Asia/Tokyo",
    ]);
    for (zone, kept) in [
        ("fleet", "kafleet-zone=fleet;"),
        ("UTC", "kafleet-zone=UTC;"),
        ("asia%2Ftokyo", "kafleet-zone=Asia/Tokyo;"),
        ("local%3AAsia%2FTokyo", "kafleet-zone=local:Asia/Tokyo;"),
    ] {
        let page = browser.post("/zone", &format!("zone={zone}&next=%2Ftypes")).await;
        assert_eq!((page.status, page.header("location")), (StatusCode::SEE_OTHER, "/types"), "{zone}");
        assert!(page.header("set-cookie").starts_with(kept), "{zone}: {}", page.header("set-cookie"));
    }
    let wrong = browser.post("/zone", "zone=Mars%2FBase%0D%0Aset-cookie:a=b").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    wrong.has(&["is not a time zone"]);
    assert_eq!(
        browser.send(Method::POST, "/zone", &[("sec-fetch-site", "cross-site")], Some("zone=UTC")).await.status,
        403
    );
}

#[tokio::test]
async fn entered_times_are_in_the_zone_of_the_reader() {
    let fleet = fleet_with_tree().await;
    let browser = in_zone(&fleet, "Asia/Tokyo");
    browser.open("/?from=00:00").await.has(&["2026-01-31 07:00 or 07:00 (Asia/Tokyo)"]);
    browser.get("/?from=soon").await.has(&["is not a time", "in Asia/Tokyo"]);
}

#[tokio::test]
async fn fleet_has_a_name_and_a_colour() {
    let shop = |ui: UiConfig| UiConfig { name: Some("shop <live>".into()), colour: Some("red".into()), ..ui };
    let fleet = fleet_with(shop(UiConfig::default())).await;
    let page = Browser::new(&fleet).open("/types").await;
    page.has(&[
        "shop &lt;live&gt;</span>",
        "<title>Types · shop &lt;live&gt;</title>",
        "fill=\"#d13438\"",
        "/ui/icon-d13438.svg",
    ]);
    let guarded = unfolded(with_tokens(shop(UiConfig::default()))).await;
    Browser::new(&guarded).open("/login").await.has(&["Log in to shop &lt;live&gt;"]);
    let plain = Browser::new(&guarded).open("/ui/icon-d13438.svg").await;
    assert_eq!(plain.header("content-type"), "image/svg+xml");
    for (colour, selector) in HEADER_COLOURS.into_iter().zip([":root", ":root[data-theme=\"dark\"]"]) {
        let rule = STYLES.split_once(&format!("{selector} {{")).unwrap().1;
        let panel = rule.split_once("--panel: ").unwrap().1.split_once(';').unwrap().0;
        assert_eq!(Colour::to_string(&colour), panel, "the contrast is that with the header");
    }
}

#[tokio::test]
async fn icon_shows_that_something_needs_attention() {
    let calm = fleet().await;
    let browser = Browser::new(&calm);
    browser.open("/types").await.has(&["/ui/icon-0b57b8.svg"]).lacks(&["-attention.svg"]);
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let icon = "/ui/icon-0b57b8-attention.svg";
    eventually("the error in the navigation", async || browser.open("/types").await.text.contains(icon)).await;
    browser.open(icon).await.has(&["<circle"]);
    let part = browser.send(Method::GET, "/types", &[("kafleet-part", "main")], None).await;
    assert_eq!((part.header("kafleet-icon"), part.header("kafleet-time").len()), (icon, 8));
}

#[tokio::test]
async fn problems_lead_to_the_list_of_what_is_missing() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    for (path, link) in [
        ("/tasks/nothing", "<a href=\"/tasks\">All tasks</a>"),
        ("/types/nothing", "<a href=\"/types\">All types</a>"),
        ("/workers/nothing", "<a href=\"/workers\">All workers</a>"),
        ("/schedules/nothing", "<a href=\"/schedules\">All schedules</a>"),
        ("/dead-letters/echo:0:7", "<a href=\"/dead-letters\">All dead letters</a>"),
        ("/bulk/nothing", "<a href=\"/bulk\">All bulk actions</a>"),
    ] {
        browser.get(path).await.has(&[link]);
    }
    browser.get("/taks").await.has(&["aria-label=\"main\"", "href=\"/tasks\"", "times in <strong>UTC</strong>"]);
}

#[tokio::test]
async fn refused_page_leads_to_the_login() {
    let fleet = guarded_fleet().await;
    let reader = Browser::of_role(&fleet, Role::Read);
    reader
        .get("/types/echo/pause")
        .await
        .has(&["<a href=\"/login?again=1&amp;next=%2Ftypes%2Fecho%2Fpause\">Log in with another token</a>"]);
    reader.open("/login?again=1").await.has(&["name=\"token\""]);
    Browser::new(&fleet).get("/taks").await.lacks(&["aria-label=\"main\""]);
}

#[tokio::test]
async fn keys_and_words_are_explained_without_the_script() {
    let fleet = fleet().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/help").await;
    page.has(&["<kbd>g o, g t, g f, g y</kbd>", "href=\"/help#keys\"", "href=\"/tasks?q=state%3Afailed+from%3A1h\""]);
    let words = page.text.split_once("id=\"words\"").unwrap().1;
    for word in ["lag", "oldest", "held back", "slot", "attempt", "run", "circuit"] {
        assert!(words.contains(&format!("<dt>{word}</dt>")), "{word}");
    }
    let new_task = "kafleet submit echo &#39;{&quot;hello&quot;: &quot;world&quot;}&#39;</code></pre><a class=\"button primary\" href=\"/new\">";
    let empty = browser.open("/tasks").await;
    let unquoted = new_task.replace("&#39;", "'");
    assert!(empty.text.contains(&unquoted) || empty.text.contains(new_task), "{}", empty.text);
}

#[tokio::test]
async fn texts_can_be_copied() {
    let fleet = fleet_with_tree().await;
    fleet.post("/v1/tasks/order/log", json!({"lines": ["a line"]})).await;
    fleet.folded().await;
    let browser = Browser::new(&fleet);
    browser
        .open("/tasks/order:fetch")
        .await
        .has(&["no answer from `10.0.0.7`</pre><button class=\"app\" type=\"button\" data-copy>"]);
    browser.open("/tasks/order/log").await.has(&["data-copy=\"ol.log code\">Copy lines"]);
}

#[tokio::test]
async fn long_name_does_not_fill_the_page() {
    let fleet = fleet().await;
    let name = "x".repeat(512);
    fleet.create(json!({"type": "echo", "id": "order", "name": name})).await;
    fleet.folded().await;
    let page = Browser::new(&fleet).open("/tasks/order").await;
    page.has(&[&format!("{}…</h1>", "x".repeat(96)), "Whole name"]);
    let title = page.text.split_once("<title>").unwrap().1.split_once("</title>").unwrap().0;
    assert!(title.chars().count() <= 80 + "○\u{fe0e} … · kafleet".chars().count(), "{title}");
}
