//! Tokens that are replaced while the API serves.

use std::net::SocketAddr;

use kafleet::config::{ApiConfig, Role, TokenConfig};
use reqwest::{Method, StatusCode};

use crate::api::fixture::{Fleet, unfolded};

fn config(tokens: &[&str]) -> ApiConfig {
    let token = |token: &&str| TokenConfig { name: format!("of {token}"), token: (*token).into(), role: Role::Operate };
    ApiConfig { tokens: tokens.iter().map(token).collect(), ..ApiConfig::default() }
}

async fn status(fleet: &Fleet, token: &str) -> StatusCode {
    fleet.request(Method::GET, "/v1/workers").bearer_auth(token).send().await.unwrap().status()
}

#[tokio::test]
async fn withdrawn_token_is_refused_and_a_new_one_accepted() {
    let (old, new) = ("old-0123456789abcdef", "new-0123456789abcdef");
    let fleet = unfolded(config(&[old])).await;
    assert_eq!((status(&fleet, old).await, status(&fleet, new).await), (StatusCode::OK, StatusCode::UNAUTHORIZED));
    let address: SocketAddr = fleet.base.strip_prefix("http://").unwrap().parse().unwrap();
    fleet.access.replace(&config(&[new]), address).unwrap();
    assert_eq!((status(&fleet, old).await, status(&fleet, new).await), (StatusCode::UNAUTHORIZED, StatusCode::OK));
    fleet.access.replace(&config(&["short"]), address).unwrap_err();
    assert_eq!(status(&fleet, new).await, StatusCode::OK, "invalid tokens replace none");
}
