//! An operator at a tab, whose actions are counted: a click, a filled field and a key are one each. Reading and scrolling
//! are none, and what is pasted into the search and sent with Enter is one.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use serde_json::json;

use super::{ENTER, Tab};

/// Functions of the page that find controls by what they are called, as a person does. An open dialog hides the rest.
const FIND: &str = r"
  const top = document.querySelector('dialog[open]') ?? document.body;
  const words = (text) => (text ?? '').replace(/\s+/g, ' ').trim().toLowerCase();
  const called = (it) => words(it.innerText) || words(it.getAttribute('aria-label')) || words(it.closest('label')?.innerText);
  const among = (css) => [...top.querySelectorAll(css)].filter((it) => it.checkVisibility() && !it.disabled);
  const row = (it) => words(it.closest('tr, li')?.innerText);
  const control = (name, within) => {
    const all = among('a[href], button, summary, label').filter((it) => row(it).includes(words(within)));
    // The contents of the page come before its frame.
    all.sort((a, b) => Number(b.matches('main *')) - Number(a.matches('main *')));
    return all.find((it) => called(it) === words(name)) ?? all.find((it) => called(it).startsWith(words(name)));
  };
  const field = (name) => {
    const label = among('label').find((it) => it.control && called(it).startsWith(words(name)));
    const all = among('input, textarea, select');
    return label?.control ?? all.find((it) => words(it.getAttribute('aria-label')).startsWith(words(name)));
  };
";

/// An operator, with the number of actions so far.
pub struct Operator<'a> {
    pub tab: &'a Tab,
    actions: AtomicU32,
}

impl<'a> Operator<'a> {
    /// Sits down at the overview.
    pub async fn at_overview(tab: &'a Tab) -> Self {
        tab.open("/").await;
        Self { tab, actions: AtomicU32::new(0) }
    }

    /// Number of actions so far.
    pub fn actions(&self) -> u32 {
        self.actions.load(SeqCst)
    }

    fn count(&self) {
        self.actions.fetch_add(1, SeqCst);
    }

    async fn until(&self, script: &str) {
        self.tab.wait(&format!("(() => {{ {FIND} {script} }})()")).await;
    }

    /// Clicks a link, a button or a label that is called so, or whose name begins so.
    pub async fn click(&self, name: &str) {
        self.click_in("", name).await;
    }

    /// Clicks what is called so in the row or item with this text.
    pub async fn click_in(&self, row: &str, name: &str) {
        let (row, name) = (json!(row), json!(name));
        // In one step: an update of the page would remove a mark.
        self.until(&format!("const it = control({name}, {row}); it?.click(); return Boolean(it);")).await;
        self.count();
    }

    /// Whether the page has a control of this name now, in a row with this text.
    pub async fn is_offered_in(&self, row: &str, name: &str) -> bool {
        self.tab.is(&format!("(() => {{ {FIND} return control({}, {}); }})()", json!(name), json!(row))).await
    }

    /// Whether the page has a field of this name now.
    pub async fn has_field(&self, name: &str) -> bool {
        self.tab.is(&format!("(() => {{ {FIND} return field({}); }})()", json!(name))).await
    }

    /// Replaces the contents of the field with this label.
    pub async fn fill(&self, name: &str, text: &str) {
        let focus = format!("const it = field({}); it?.focus(); it?.select?.();", json!(name));
        self.until(&format!("{focus} return Boolean(it) && document.activeElement === it;")).await;
        self.insert(text).await;
        self.count();
    }

    /// Pastes into the search of the header, and sends it.
    pub async fn search(&self, text: &str) {
        self.until("const it = document.querySelector('header [role=search] input'); it?.focus(); return Boolean(it);")
            .await;
        self.insert(text).await;
        self.tab.press(ENTER).await;
        self.count();
    }

    /// Inserts text into the field with the focus, as a paste does.
    async fn insert(&self, text: &str) {
        self.tab.driver.devtools("Input.insertText", json!({"text": text})).await;
    }

    /// Reads the page until all texts are there, of which the first ones may come with an update.
    pub async fn reads(&self, texts: &[&str]) {
        for text in texts {
            self.tab.see(text).await;
        }
    }
}
