//! Hostile text in every field, in a browser: it runs nothing, makes no element, and does not widen the page.

use kafleet_testkit::services;

use super::{FITS, PHONE_LIGHT, WIDE_LIGHT, with_browser};
use crate::ui::hostile::hostile_shop;
use crate::ui::visits::documents;

/// Condition that hostile text has become an element.
const ELEMENTS: &str = "[...document.querySelectorAll('*')].some((it) => it.localName.startsWith('x-') || \
                        it.matches('img, [onerror], body script'))";

#[tokio::test]
async fn hostile_text_runs_nothing_and_fits_on_every_page() {
    let Some(_) = services::address("KAFLEET_TEST_BROWSER") else { return };
    let shop = hostile_shop().await;
    let pages = documents(&shop).await;
    with_browser(&shop.fleet, "hostile", async |tab| {
        let mut faults = Vec::new();
        for view in [WIDE_LIGHT, PHONE_LIGHT] {
            tab.show_as(view).await;
            for path in &pages {
                tab.open(path).await;
                if tab.is(ELEMENTS).await {
                    faults.push(format!("{path}: text has become an element"));
                }
                if !tab.is(FITS).await {
                    faults.push(format!("{path} scrolls sideways in {}", view.name));
                }
                let errors = tab.driver.console_errors().await;
                faults.extend(errors.into_iter().map(|error| format!("{path}: {error}")));
            }
        }
        assert!(faults.is_empty(), "{faults:#?}");
    })
    .await;
}
