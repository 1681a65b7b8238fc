//! Signatures of callbacks according to <https://www.standardwebhooks.com>, whose libraries can verify them.

use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Header with the id of the delivery, the same for every attempt.
pub const ID: &str = "webhook-id";
/// Header with the time of the attempt, in seconds since 1970.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// Header with the signature: `v1,` and the base64 of HMAC-SHA256 over `<id>.<timestamp>.<body>`.
pub const SIGNATURE: &str = "webhook-signature";

/// Prefix of a key in base64; any other text is the key itself.
const ENCODED: &str = "whsec_";

/// Returns the value of [`SIGNATURE`].
pub fn signature(secret: &str, id: &str, timestamp: &str, body: &str) -> Result<String, String> {
    let key = match secret.strip_prefix(ENCODED) {
        Some(encoded) => BASE64
            .decode(encoded.as_bytes())
            .map_err(|_| format!("the secret begins with `{ENCODED}`, but the rest is not base64"))?,
        None => secret.as_bytes().to_vec(),
    };
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|why| why.to_string())?;
    for part in [id, ".", timestamp, ".", body] {
        mac.update(part.as_bytes());
    }
    Ok(format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vector of the standard's own libraries.
    #[test]
    fn signature_matches_the_standard_vector() {
        let signed = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed.as_deref(), Ok("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn signature_covers_id_timestamp_and_body() {
        let first = signature("key", "a", "1", "{}").unwrap();
        for (secret, id, timestamp, body) in
            [("kez", "a", "1", "{}"), ("key", "b", "1", "{}"), ("key", "a", "2", "{}"), ("key", "a", "1", "{ }")]
        {
            assert_ne!(signature(secret, id, timestamp, body).unwrap(), first);
        }
        assert!(signature("whsec_not base64", "a", "1", "{}").unwrap_err().contains("base64"));
    }
}
