//! HTTP client of the tests.

/// Client without proxies and certificates: to read those of the system takes 50 ms.
pub fn client() -> reqwest::Client {
    builder().build().unwrap()
}

/// As [`client`], for further settings.
pub fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().tls_certs_only([])
}
