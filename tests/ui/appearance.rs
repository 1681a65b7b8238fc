//! Contrast of the colours, and size of the first page.

use std::collections::BTreeMap;

use crate::ui::browser::Browser;
use crate::ui::pages::fleet_with_tree;

const STYLES: &str = include_str!("../../crates/ui/src/assets/app.css");
const TONES: [&str; 9] = ["text", "neutral", "blue", "planned", "running", "attention", "good", "expired", "bad"];

type Color = [f64; 3];

/// Colours of the rule with this selector.
fn colors(selector: &str) -> BTreeMap<String, String> {
    let rule = STYLES.split_once(&format!("{selector} {{")).unwrap().1.split_once('}').unwrap().0;
    let pairs = rule.split(';').filter_map(|pair| pair.trim().strip_prefix("--")?.split_once(": "));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn color(text: &str) -> Color {
    [1, 3, 5].map(|at| f64::from(u8::from_str_radix(&text[at..at + 2], 16).unwrap()) / 255.0)
}

fn luminance(color: Color) -> f64 {
    let linear = color.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

fn contrast(a: Color, b: Color) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

fn mixed(tone: Color, share: f64, over: Color) -> Color {
    std::array::from_fn(|n| tone[n] * share + over[n] * (1.0 - share))
}

#[test]
fn colors_have_enough_contrast() {
    for selector in [":root", ":root[data-theme=\"dark\"]"] {
        let known = colors(selector);
        let of = |name: &str| color(&known[name]);
        let tint = known["tint"].trim_end_matches('%').parse::<f64>().unwrap() / 100.0;
        for back in ["bg", "panel"] {
            for tone in TONES {
                for behind in [of(back), mixed(of(tone), tint, of(back))] {
                    let ratio = contrast(of(tone), behind);
                    assert!(ratio >= 4.8, "{selector}: {tone} on {back}: {ratio:.2}");
                }
            }
            let ratio = contrast(of("control"), of(back));
            assert!(ratio >= 3.4, "{selector}: borders of controls on {back}: {ratio:.2}");
        }
        for accent in ["blue", "bad"] {
            assert!(contrast(of("on-accent"), of(accent)) >= 4.5, "{selector}: buttons in {accent}");
        }
    }
    let danger = color(&colors(":root")["danger"]);
    assert!(contrast(color("#ffffff"), danger) >= 4.8, "buttons of actions that cannot be undone");
}

/// Selectors of links that are no text: the navigation, tabs, numbers of lines.
const NAVIGATION: [&str; 6] = ["nav.wide", "details.menu", ".tabs", ".ranges", ".log li a", ".brand"];

#[test]
fn links_in_texts_look_like_links() {
    let rules = STYLES.split('}').filter_map(|rule| rule.trim().rsplit_once('{'));
    let is_link = |selector: &str| selector.split([' ', '.', ':', '[', '>', ',', '(', ')']).any(|part| part == "a");
    for (selector, body) in rules {
        let selector = selector.rsplit('{').next().unwrap().rsplit("*/").next().unwrap().trim();
        let color = body.split(';').find_map(|rule| rule.trim().strip_prefix("color: "));
        let Some(color) = color.filter(|_| is_link(selector)) else { continue };
        let is_text = ["var(--text)", "var(--neutral)", "inherit"].contains(&color);
        let is_navigation = NAVIGATION.iter().any(|navigation| selector.starts_with(navigation));
        assert!(!is_text || is_navigation, "`{selector}` is a link that looks like text");
    }
}

#[test]
fn themes_of_the_system_and_of_the_cookie_are_the_same() {
    assert_eq!(colors(":root[data-theme=\"dark\"]"), colors(":root[data-theme=\"system\"]"));
}

#[tokio::test]
async fn first_page_is_small() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/tasks/order").await;
    let assets = page.text.split('"').filter(|url| url.ends_with(".css") || url.ends_with(".js"));
    let mut bytes = 0;
    for path in ["/tasks/order"].into_iter().chain(assets) {
        let packed = browser.send(reqwest::Method::GET, path, &[("accept-encoding", "gzip")], None).await;
        assert_eq!(packed.header("content-encoding"), "gzip", "{path}");
        bytes += packed.bytes;
    }
    assert!((8_000..20_000).contains(&bytes), "{bytes} bytes, compressed");
}

#[tokio::test]
async fn assets_are_cached_by_content() {
    let fleet = fleet_with_tree().await;
    let browser = Browser::new(&fleet);
    let page = browser.open("/help").await;
    for (before, text, media) in [
        ("rel=\"stylesheet\" href=\"", STYLES, "text/css; charset=utf-8"),
        ("<script type=\"module\" src=\"", "$main.run([", "text/javascript; charset=utf-8"),
    ] {
        let href = page.text.split(before).nth(1).unwrap().split('"').next().unwrap();
        let asset = browser.open(href).await;
        assert!(asset.header("cache-control").contains("immutable"), "{href}: {}", asset.header("cache-control"));
        asset.has(&[text]);
        assert_eq!(asset.header("content-type"), media, "{href}");
    }
}
