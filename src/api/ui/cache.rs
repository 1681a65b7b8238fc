//! Assets under names that contain a hash of their contents, and entity tags of pages.

use std::sync::LazyLock;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

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
        Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")),
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

pub(super) fn icon() -> &'static str {
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

/// Entity tag of a page: that of its `<main>`, which depends on the URL, the role and the data alone.
pub(super) fn entity_tag(main: &str) -> String {
    format!("W/\"{}\"", hash(main))
}

fn hash(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text.as_bytes())[..8])
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
        assert!(serve_asset("other.css").is_none() && serve_asset("").is_none());
    }
}
