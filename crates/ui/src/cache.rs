//! Assets under names that contain a hash of their contents, entity tags of pages, and renderings shared by refreshes.

use std::io::Write;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::write::GzEncoder;
use kafleet_model::record::state::State;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::bundle::SCRIPT;
use super::parts::clock::CLOCK_MARK;

/// Time for which a rendering is shared, and minimum time between two renderings of a page.
const SHARED_FOR: Duration = Duration::from_millis(250);
/// Maximum size of all shared renderings; more are not shared.
const MAX_SHARED: usize = 16 << 20;

/// Media type of pages.
pub(super) const HTML: &str = "text/html; charset=utf-8";

/// File that pages refer to.
pub(super) struct Asset {
    /// Name with the hash: `app.0123456789abcdef.css`.
    pub name: String,
    media: &'static str,
    text: &'static str,
}

static ASSETS: LazyLock<[Asset; 2]> = LazyLock::new(|| {
    [
        Asset::new("app", "css", "text/css; charset=utf-8", include_str!("assets/app.css")),
        Asset::new("app", "js", "text/javascript; charset=utf-8", SCRIPT.as_str()),
    ]
});

/// Hash of all assets, by which a tab notices an update.
static BUILD: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = ASSETS.iter().map(|asset| asset.name.as_str()).collect();
    hash(&names.concat())
});

impl Asset {
    fn new(stem: &str, ending: &str, media: &'static str, text: &'static str) -> Self {
        Self { name: format!("{stem}.{}.{ending}", hash(text)), media, text }
    }
}

pub(super) fn stylesheet() -> &'static str {
    &ASSETS[0].name
}

pub(super) fn script() -> &'static str {
    &ASSETS[1].name
}

pub(super) fn build() -> &'static str {
    &BUILD
}

/// Answers a request for an asset. In a rolling update, a page and its assets may come from two builds: an unknown hash
/// is answered with the file of this build, which is then not cached.
pub(super) fn serve_asset(name: &str) -> Option<Response> {
    let ends = |name: &str| Some((name.split('.').next()?.to_owned(), name.rsplit('.').next()?.to_owned()));
    let asset = ASSETS.iter().find(|asset| asset.name == name);
    let caching = if asset.is_some() { "public, max-age=31536000, immutable" } else { "no-store" };
    let asset = asset.or_else(|| ASSETS.iter().find(|asset| ends(&asset.name) == ends(name)))?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.media)),
        (header::CACHE_CONTROL, HeaderValue::from_static(caching)),
    ];
    Some((StatusCode::OK, headers, asset.text).into_response())
}

/// Entity tag of a page: that of its `<main>`, which depends on the URL, the role, the zone and the data alone. Texts of a clock are left
/// out: the script keeps them current, and they would make every look at a page another version of it.
pub(super) fn entity_tag(title: &str, state: Option<State>, main: &str) -> String {
    let state = state.map_or("", State::name);
    let digest = Sha256::new().chain_update(title).chain_update([0]).chain_update(state).chain_update([0]);
    let digest = without_clocks(main).fold(digest, |digest, part| digest.chain_update(part));
    format!("W/\"{}\"", short_hex(&digest.finalize()))
}

/// Parts of a `<main>` without the texts of its clocks. The mark is no text of a user: quotes in those are escaped.
fn without_clocks(main: &str) -> impl Iterator<Item = &str> {
    let mut parts = main.split(CLOCK_MARK);
    let first = parts.next().into_iter();
    first.chain(parts.map(|part| part.find('<').map_or(part, |end| &part[end..])))
}

/// Rendered `<main>` of a page.
pub(super) struct RenderedPage {
    pub status: u16,
    pub title: String,
    /// State of the task shown.
    pub state: Option<State>,
    pub main: String,
    /// Entity tag.
    pub tag: String,
    /// Response to a refresh, made once for all tabs.
    pub part: OnceLock<SharedPart>,
}

/// The `<main>` element as it is sent to open tabs.
pub(super) struct SharedPart {
    text: Bytes,
    compressed: OnceLock<Bytes>,
}

impl SharedPart {
    pub(super) fn new(text: String) -> Self {
        Self { text: text.into(), compressed: OnceLock::new() }
    }

    pub(super) fn response(&self, status: StatusCode, accepts_gzip: bool) -> Response {
        let headers = [(header::CONTENT_TYPE, HTML), (header::VARY, "accept-encoding")];
        if accepts_gzip {
            (status, headers, [(header::CONTENT_ENCODING, "gzip")], self.compressed()).into_response()
        } else {
            (status, headers, self.text.clone()).into_response()
        }
    }

    fn compressed(&self) -> Bytes {
        let compress = || {
            let mut encoder = GzEncoder::new(Vec::with_capacity(self.text.len() / 4), Compression::default());
            // Writing to memory does not fail.
            let written = encoder.write_all(&self.text).and_then(|()| encoder.finish());
            written.map_or_else(|_| Bytes::new(), Bytes::from)
        };
        self.compressed.get_or_init(compress).clone()
    }
}

/// Renderings shared by the refreshes of many tabs.
#[derive(Default)]
pub(super) struct SharedMains {
    /// By role, zone and URL.
    entries: Mutex<FxHashMap<String, SharedMain>>,
}

/// Rendering that is shared.
#[derive(Clone)]
pub(super) struct SharedMain {
    main: Arc<OnceCell<Arc<RenderedPage>>>,
    /// Start of the rendering, which may lie in the future.
    begins: Instant,
}

impl SharedMains {
    /// Returns a rendering that began after the last change of the page's topic: a running or recent one, or a new one,
    /// which begins at its turn. The renderings of a page begin at least [`SHARED_FOR`] apart. `turn`: returns the wait
    /// until the turn of a new rendering, or `None` if there are too many.
    pub(super) fn find_or_add(
        &self,
        key: String,
        changed: Instant,
        turn: impl FnOnce(Instant) -> Option<Duration>,
    ) -> Option<SharedMain> {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| now < entry.begins + SHARED_FOR);
        let earliest = match entries.get(&key) {
            Some(entry) if changed <= entry.begins => return Some(entry.clone()),
            Some(entry) => entry.begins + SHARED_FOR,
            None => now,
        };
        let added = SharedMain { main: Arc::default(), begins: earliest.max(now + turn(now)?) };
        let size: usize = entries.values().filter_map(|entry| entry.main.get()).map(|main| main.size()).sum();
        if size < MAX_SHARED {
            entries.insert(key, added.clone());
        }
        Some(added)
    }
}

impl SharedMain {
    /// Time until the rendering begins.
    pub(super) fn wait(&self) -> Duration {
        self.begins.saturating_duration_since(Instant::now())
    }

    /// Returns the rendering, or that of `render` if it is the first request for it. What is not a page is not shared.
    pub(super) async fn get(
        &self,
        render: impl Future<Output = Result<RenderedPage, Box<Response>>>,
    ) -> Result<Arc<RenderedPage>, Box<Response>> {
        tokio::time::sleep_until(self.begins).await;
        // If the request that renders is dropped, another one that waits renders instead.
        self.main.get_or_try_init(|| async { render.await.map(Arc::new) }).await.cloned()
    }
}

impl RenderedPage {
    /// Size in bytes, with that of the response that is made of it.
    fn size(&self) -> usize {
        3 * self.main.len()
    }
}

fn hash(text: &str) -> String {
    short_hex(&Sha256::digest(text.as_bytes()))
}

fn short_hex(digest: &[u8]) -> String {
    HEXLOWER.encode(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asset_of_another_build_is_answered_uncached() {
        let caching = |name: &str| {
            let response = serve_asset(name).unwrap();
            response.headers()[header::CACHE_CONTROL].to_str().unwrap().to_owned()
        };
        assert!(caching(stylesheet()).contains("immutable"));
        assert_eq!(caching("app.0000000000000000.css"), "no-store");
        assert_eq!(caching("app.0000000000000000.js"), "no-store");
        assert!(serve_asset("other.css").is_none() && serve_asset("").is_none());
    }

    fn rendered(main: &str) -> Result<RenderedPage, Box<Response>> {
        let (title, tag, part) = (String::new(), String::new(), OnceLock::new());
        Ok(RenderedPage { status: 200, title, state: None, main: main.into(), tag, part })
    }

    fn add(shared: &SharedMains, changed: Instant) -> SharedMain {
        shared.find_or_add("read /".into(), changed, |_| Some(Duration::ZERO)).unwrap()
    }

    /// Contents of the answer to a refresh whose own rendering has these contents.
    async fn refresh(shared: &SharedMains, changed: Instant, main: &str) -> String {
        let rendering = add(shared, changed).get(async { rendered(main) }).await;
        rendering.map(|rendering| rendering.main.clone()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn refreshes_share_a_rendering_until_the_page_changes() {
        let shared = SharedMains::default();
        let begun = Instant::now();
        assert_eq!(refresh(&shared, begun, "first").await, "first");
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(refresh(&shared, begun, "second").await, "first");
        let no_turn = |key: &str, changed| shared.find_or_add(key.into(), changed, |_| None).is_none();
        assert!(!no_turn("read /", begun) && no_turn("read /other", begun), "a shared rendering needs no turn");
        assert!(no_turn("read /", Instant::now()), "the page has changed since");
        let changed = Instant::now();
        let (second, third) = tokio::join!(refresh(&shared, changed, "second"), refresh(&shared, changed, "third"));
        assert!(second == third && second != "first", "{second} {third}");
        assert!(begun.elapsed() >= SHARED_FOR, "renderings begin at least 250 ms apart");
        tokio::time::advance(SHARED_FOR).await;
        assert_eq!(refresh(&shared, begun, "fourth").await, "fourth");
    }

    #[test]
    fn entity_tag_leaves_out_the_texts_of_clocks() {
        let tag = |main: &str| entity_tag("a", None, main);
        let running = |seconds: u32| format!("running <time {CLOCK_MARK}1\">{seconds} s</time>, <b>2</b>");
        assert_eq!(tag(&running(1)), tag(&running(2)));
        assert_ne!(tag(&running(1)), tag(&running(1).replace("<b>2", "<b>3")));
        assert_ne!(tag("data-clock= 1"), tag("data-clock= 2"), "a text is no mark");
    }

    #[test]
    fn part_is_compressed_for_clients_that_accept_it() {
        let part = SharedPart::new("text ".repeat(1_000));
        let plain = part.response(StatusCode::OK, false);
        assert!(plain.headers().get(header::CONTENT_ENCODING).is_none() && part.compressed.get().is_none());
        let response = part.response(StatusCode::OK, true);
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        let mut text = String::new();
        let compressed = part.compressed();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&*compressed), &mut text).unwrap();
        assert!(text.as_bytes() == &*part.text && compressed.len() < text.len() / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn answer_other_than_a_page_is_not_shared() {
        let shared = SharedMains::default();
        let redirect = async { Err(Box::new(StatusCode::SEE_OTHER.into_response())) };
        assert!(add(&shared, Instant::now()).get(redirect).await.is_err());
        assert_eq!(refresh(&shared, Instant::now(), "page").await, "page");
    }
}
