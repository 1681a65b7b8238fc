//! Permissions of the Redis user of trackers and APIs: `doctor` notices each one that is missing.

use kafleet::store::redis::commands::COMMANDS;
use kafleet::store::redis::{Redis, RedisOptions};
use kafleet::store::{Store, StoreError};
use kafleet_testkit::redis::{Server, patient};

/// Commands that only some deployments need.
const OPTIONAL: [&str; 3] = ["CLUSTER", "ASKING", "CONFIG"];

/// Probes as a user with these rules.
async fn probe(server: &Server, rules: &[&str]) -> Result<(), StoreError> {
    let words = [&["ACL", "SETUSER", "item", "reset", "on", ">secret"][..], rules].concat();
    let _: String = server.call(&words).unwrap();
    let (username, password) = (Some("item".to_owned()), Some("secret".to_owned()));
    let options = RedisOptions { username, password, prefix: "t".to_owned(), ..patient(server.url()) };
    Redis::connect(options).unwrap().probe(2).await
}

#[tokio::test]
async fn documented_permissions_suffice_and_leave_nothing_behind() {
    if kafleet_testkit::services::redis().is_none() {
        return;
    }
    let server = Server::start();
    let rules = ["~t:*", "&t:notices", "+@all", "-@dangerous", "-@admin", "+info"];
    assert_eq!(probe(&server, &rules).await, Ok(()));
    assert_eq!(server.call::<Vec<String>>(&["KEYS", "*"]).unwrap(), [""; 0]);
}

#[tokio::test]
async fn each_missing_permission_is_noticed() {
    if kafleet_testkit::services::redis().is_none() {
        return;
    }
    let server = Server::start();
    let needed = COMMANDS.iter().flat_map(|group| group.names).filter(|name| !OPTIONAL.contains(name));
    for name in needed {
        let without = format!("-{}", name.to_lowercase());
        let message = probe(&server, &["~*", "&*", "+@all", without.as_str()]).await.unwrap_err().to_string();
        assert!(message.to_lowercase().contains(&name.to_lowercase()), "{without}: {message}");
    }
    let message = probe(&server, &["~*", "resetchannels", "+@all"]).await.unwrap_err().to_string();
    assert!(message.contains("channel"), "{message}");
    let message = probe(&server, &["~other:*", "&*", "+@all"]).await.unwrap_err().to_string();
    assert!(message.contains("key"), "{message}");
}
