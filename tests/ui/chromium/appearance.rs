//! Every page in four views: no accessibility violations, no sideways scroll, no errors of scripts, no violations of the
//! policy. Also in the narrowest window and at a zoom of 200 %.

use kafleet::config::Role;
use kafleet_testkit::services;
use serde_json::{Value, json};

use super::{ENTER, FITS, NARROW, PHONE_DARK, PHONE_LIGHT, Tab, View, WIDE, WIDE_DARK, WIDE_LIGHT, with_browser};
use crate::ui::browser::{guarded_fleet, token};
use crate::ui::shop::shop;
use crate::ui::visits::documents;

/// Width of a usual window at a zoom of 200 %.
const ZOOMED: u32 = WIDE / 2;

/// Rules of axe that are off by default: targets of WCAG 2.2 need 24 pixels, or as much room.
const RULES: &str = "{'target-size': {enabled: true}}";

#[tokio::test]
async fn pages_are_clean_in_a_wide_light_window() {
    assert_pages_are_clean(WIDE_LIGHT).await;
}

#[tokio::test]
async fn pages_are_clean_in_a_wide_dark_window() {
    assert_pages_are_clean(WIDE_DARK).await;
}

#[tokio::test]
async fn pages_are_clean_on_a_light_phone() {
    assert_pages_are_clean(PHONE_LIGHT).await;
}

#[tokio::test]
async fn pages_are_clean_on_a_dark_phone() {
    assert_pages_are_clean(PHONE_DARK).await;
}

async fn assert_pages_are_clean(view: View) {
    let Some(folder) = services::address("KAFLEET_TEST_BROWSER") else { return };
    let shop = shop().await;
    let pages = documents(&shop).await;
    with_browser(&shop.fleet, view.name, async |tab| {
        tab.show_as(view).await;
        let mut faults = Vec::new();
        for path in &pages {
            tab.open(path).await;
            let of_page = faults_of(tab).await;
            faults.extend(of_page.into_iter().map(|fault| format!("{path}: {fault}")));
        }
        // The checker is no script of the pages.
        tab.driver.devtools("Page.setBypassCSP", json!({"enabled": true})).await;
        let checker = std::fs::read_to_string(format!("{folder}/axe.min.js")).unwrap();
        for path in &pages {
            tab.open(path).await;
            tab.driver.run(&checker).await;
            let violations = violations_of(tab).await;
            faults.extend(violations.into_iter().map(|violation| format!("{path}: {violation}")));
        }
        assert!(faults.is_empty(), "{}: {faults:#?}", view.name);
    })
    .await;
}

/// Sideways scroll of the page, errors of scripts, and violations of the policy.
async fn faults_of(tab: &Tab) -> Vec<String> {
    let mut faults = tab.driver.console_errors().await;
    if !tab.is(FITS).await {
        faults.push("scrolls sideways".to_owned());
    }
    faults
}

async fn violations_of(tab: &Tab) -> Vec<String> {
    let script = "const done = arguments[arguments.length - 1];
        const text = (node) => `${node.target.join(' ')}: ${node.failureSummary}`;
        axe.run(document, {resultTypes: ['violations'], rules: RULES}).then(
            (result) => done(result.violations.map((it) => `${it.id}: ${it.nodes.map(text).join('; ')}`)),
            (error) => done([String(error)]));";
    let violations = tab.driver.run_async(&script.replace("RULES", RULES)).await;
    violations.as_array().unwrap().iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test]
async fn pages_fit_narrow_and_zoomed_windows() {
    let Some(_) = services::address("KAFLEET_TEST_BROWSER") else { return };
    let shop = shop().await;
    let pages = documents(&shop).await;
    with_browser(&shop.fleet, "narrow", async |tab| {
        let mut wide = Vec::new();
        for path in &pages {
            for width in [ZOOMED, NARROW] {
                tab.resize(width).await;
                tab.open(path).await;
                if !tab.is(FITS).await {
                    wide.push(format!("{path} at {width} px"));
                }
            }
        }
        assert!(wide.is_empty(), "these scroll sideways: {wide:#?}");
    })
    .await;
}

/// Fields of the form of limits that share a line with another one, are cut, or are outside of the form.
const MISPLACED_FIELDS: &str = "
    const form = document.querySelector('form:has(.sentence)');
    const box = (it) => it.getBoundingClientRect();
    const fields = [...form.querySelectorAll('input, select, button')].filter((it) => it.checkVisibility());
    const faults = [];
    for (const it of fields) {
        if (it.scrollWidth > it.clientWidth + 1) faults.push(`${it.name} is cut`);
        if (box(it).bottom > box(form).bottom || box(it).right > box(form).right) faults.push(`${it.name} is outside`);
    }
    const lines = fields.filter((it) => it.closest('.sentence'));
    if (lines.length < 7) faults.push(`${lines.length} fields`);
    lines.slice(1).forEach((it, n) => box(it).top < box(lines[n]).bottom && faults.push(`${it.name} shares a line`));
    return faults;";

#[tokio::test]
async fn limits_have_a_line_each_on_a_phone() {
    let shop = shop().await;
    with_browser(&shop.fleet, "limits-phone", async |tab| {
        tab.show_as(PHONE_LIGHT).await;
        for path in ["/types/echo/limits", "/types/echo"] {
            tab.open(path).await;
            assert_eq!(tab.driver.run(MISPLACED_FIELDS).await, json!([]), "{path}");
        }
    })
    .await;
}

#[tokio::test]
async fn login_page_fits_and_grants_the_role_of_the_token() {
    let fleet = guarded_fleet().await;
    with_browser(&fleet, "login", async |tab| {
        for view in [WIDE_LIGHT, WIDE_DARK, PHONE_LIGHT, PHONE_DARK] {
            tab.show_as(view).await;
            tab.go("/").await;
            assert!(tab.path().await.starts_with("/login"));
            assert!(tab.is(FITS).await);
            tab.screenshot(&format!("guarded-login-{}", view.name)).await;
        }
        tab.fill("input[name=token]", &token(Role::Read)).await;
        tab.press(ENTER).await;
        tab.wait("location.pathname == '/'").await;
        assert!(!tab.is("document.querySelector('header a[href=\"/new\"]')").await, "the role `read` submits nothing");
    })
    .await;
}
