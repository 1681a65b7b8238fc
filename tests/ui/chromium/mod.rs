//! Tests with a real Chromium, which `tests/tools browser` installs. Without it they are skipped.

use std::panic::AssertUnwindSafe;
use std::path::Path;

use futures::FutureExt;
use kafleet::documents::Status;
use kafleet_testkit::services;
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::api::fixture::{Fleet, eventually};
use driver::Driver;

mod actions;
mod appearance;
mod driver;
mod hostile;
mod jobs;
mod large;
mod live;
mod morph;
mod operator;
mod outages;
mod pictures;
mod tabs;

/// Browsers at a time: each uses about a core while a page loads.
static TURNS: Semaphore = Semaphore::const_new(2);
/// Folder of the screenshots.
const SCREENSHOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/screenshots");

/// Keys as the driver encodes them.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";

/// Width of the narrowest supported screen, and that of a usual window.
pub const NARROW: u32 = 360;
pub const WIDE: u32 = 1280;

/// Condition that the script of the page runs.
pub const STARTED: &str = "document.documentElement.hasAttribute('data-app')";
/// Condition that the page is complete, with its script if it has one.
pub const COMPLETE: &str = "document.readyState == 'complete' && (document.documentElement.hasAttribute('data-app') || \
                            !document.querySelector('#live'))";
/// Condition that the page is not wider than its window.
pub const FITS: &str = "document.documentElement.scrollWidth <= innerWidth";

/// Window and theme in which pages are looked at.
#[derive(Clone, Copy)]
pub struct View {
    pub name: &'static str,
    pub width: u32,
    pub theme: &'static str,
}

/// Views in which every page has to be right.
pub const WIDE_LIGHT: View = View { name: "wide-light", width: 1440, theme: "light" };
pub const WIDE_DARK: View = View { name: "wide-dark", width: 1440, theme: "dark" };
pub const PHONE_LIGHT: View = View { name: "phone-light", width: 390, theme: "light" };
pub const PHONE_DARK: View = View { name: "phone-dark", width: 390, theme: "dark" };

/// Tab of a browser.
pub struct Tab {
    pub driver: Driver,
    base: String,
}

/// Runs a case in a browser of its own, if there is one. Fails on errors of scripts and violations of the policy; a
/// failure leaves a screenshot.
pub async fn with_browser(fleet: &Fleet, name: &str, case: impl AsyncFnOnce(&Tab)) {
    with_browser_at(&fleet.base, name, case).await;
}

/// Runs a case on the API at an address.
pub async fn with_browser_at(base: &str, name: &str, case: impl AsyncFnOnce(&Tab)) {
    if let Some(turn) = Turn::take().await {
        turn.run(base, name, case).await;
    }
}

/// Permit for one of the browsers that may run at a time. A fleet whose tasks must not grow old is set up after the wait.
pub struct Turn {
    folder: String,
    _permit: SemaphorePermit<'static>,
}

impl Turn {
    /// Waits for a browser, if there is one.
    pub async fn take() -> Option<Self> {
        let folder = services::address("KAFLEET_TEST_BROWSER")?;
        Some(Self { folder, _permit: TURNS.acquire().await.unwrap() })
    }

    /// Runs a case, like [`with_browser`].
    pub async fn run(&self, base: &str, name: &str, case: impl AsyncFnOnce(&Tab)) {
        let tab = Tab { driver: Driver::start(Path::new(&self.folder)).await, base: base.to_owned() };
        tab.resize(WIDE).await;
        let outcome = AssertUnwindSafe(case(&tab)).catch_unwind().await;
        let errors = tab.driver.console_errors().await;
        if outcome.is_err() {
            tab.screenshot(&format!("failed-{name}")).await;
        }
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

impl Tab {
    pub async fn go(&self, path: &str) {
        self.go_to(&self.base, path).await;
    }

    /// Opens a page of another API.
    pub async fn go_to(&self, base: &str, path: &str) {
        self.driver.command("/url", json!({"url": format!("{base}{path}")})).await;
    }

    /// Opens a page and waits until it is complete.
    pub async fn open(&self, path: &str) {
        self.go(path).await;
        self.wait(COMPLETE).await;
    }

    pub async fn show_as(&self, view: View) {
        self.resize(view.width).await;
        self.set_theme(view.theme).await;
    }

    /// Text of the page as a reader sees it.
    pub async fn text(&self) -> String {
        self.driver.run("return document.body.innerText").await.as_str().unwrap().to_owned()
    }

    pub async fn resize(&self, width: u32) {
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        self.driver.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    pub async fn set_theme(&self, name: &str) {
        // Without transitions, whose first moments have colours of the other theme.
        let features = json!({"features": [
            {"name": "prefers-color-scheme", "value": name}, {"name": "prefers-reduced-motion", "value": "reduce"},
        ]});
        self.driver.devtools("Emulation.setEmulatedMedia", features).await;
    }

    pub async fn is(&self, condition: &str) -> bool {
        self.driver.run(&format!("return Boolean({condition})")).await == true
    }

    /// Waits for a condition in the page.
    pub async fn wait(&self, condition: &str) {
        eventually(condition, async || self.is(condition).await).await;
    }

    /// Waits until the page shows a text.
    pub async fn see(&self, text: &str) {
        self.wait(&format!("document.body.innerText.includes({})", json!(text))).await;
    }

    /// Clicks an element, once it is there.
    pub async fn click(&self, css: &str) {
        self.wait(&format!("document.querySelector({})", json!(css))).await;
        self.driver.click(css).await;
    }

    /// Types into an element, once it is there.
    pub async fn fill(&self, css: &str, text: &str) {
        self.wait(&format!("document.querySelector({})", json!(css))).await;
        self.driver.fill(css, text).await;
    }

    /// Presses keys in the element with the focus.
    pub async fn press(&self, keys: &str) {
        self.driver.press(keys).await;
    }

    pub async fn path(&self) -> String {
        self.driver.run("return location.pathname + location.search").await.as_str().unwrap().to_owned()
    }

    /// Stores the whole page as a picture.
    pub async fn screenshot(&self, name: &str) {
        let height = self.driver.run("return Math.min(document.documentElement.scrollHeight, 4000)").await;
        let clip =
            json!({"x": 0, "y": 0, "width": self.driver.run("return innerWidth").await, "height": height, "scale": 1});
        let taken =
            self.driver.devtools("Page.captureScreenshot", json!({"captureBeyondViewport": true, "clip": clip})).await;
        let picture = data_encoding::BASE64.decode(taken["data"].as_str().unwrap().as_bytes()).unwrap();
        std::fs::create_dir_all(SCREENSHOTS).unwrap();
        std::fs::write(Path::new(SCREENSHOTS).join(format!("{name}.png")), picture).unwrap();
    }
}

/// Waits until a task is in a run.
pub async fn is_in_run(fleet: &Fleet, id: &str, run: u32) {
    eventually("the run of the task", async || fleet.get::<Status>(&format!("/v1/tasks/{id}")).await.run == run).await;
}
