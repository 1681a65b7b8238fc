//! HTTP clients of the tests.

use std::sync::LazyLock;

use reqwest::{Client, ClientBuilder};

use super::wait::DEADLINE;

/// Client without proxies. All tests share it, because to read the certificates of the system takes 100 ms.
pub fn client() -> Client {
    static CLIENT: LazyLock<Client> = LazyLock::new(|| builder().build().unwrap());
    CLIENT.clone()
}

/// Client that returns redirects instead of following them.
pub fn client_without_redirects() -> Client {
    static CLIENT: LazyLock<Client> =
        LazyLock::new(|| builder().redirect(reqwest::redirect::Policy::none()).build().unwrap());
    CLIENT.clone()
}

/// Settings of all clients. They keep no connections, which would belong to the runtime of another test.
pub fn builder() -> ClientBuilder {
    Client::builder().no_proxy().timeout(DEADLINE).pool_max_idle_per_host(0)
}
