//! Spawn hash: the same work gets the same id, whatever the order of spawning.

use sha2::{Digest, Sha256};

use crate::json::{JsonDefect, RawJson};

/// Length of the hash in an id, in characters.
pub const HASH_CHARS: usize = 12;

/// First 12 characters of the lower-case base32 of SHA-256 over the type, a zero byte, and the canonical text of the
/// params. Test vectors: `schemas/spawn-hash.json`. Must never change.
///
/// # Errors
/// The params have no canonical text.
pub fn spawn_hash(task_type: &str, params: &RawJson) -> Result<String, JsonDefect> {
    let text = params.slice().canonical()?;
    let mut sha = Sha256::new();
    sha.update(task_type.as_bytes());
    sha.update([0]);
    sha.update(&text);
    let digest = sha.finalize();
    let mut hash = data_encoding::BASE32_NOPAD.encode(&digest[..8]).to_ascii_lowercase();
    hash.truncate(HASH_CHARS);
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Vectors {
        vectors: Vec<Vector>,
    }

    #[derive(serde::Deserialize)]
    struct Vector {
        #[serde(rename = "type")]
        task_type: String,
        params: String,
        canonical: String,
        hash: String,
    }

    /// Checks the published vectors, which implementations in other languages are tested against too.
    #[test]
    fn published_vectors_hold() {
        let Vectors { vectors } = serde_json::from_str(include_str!("../../../../schemas/spawn-hash.json")).unwrap();
        for Vector { task_type, params, canonical, hash } in vectors {
            let text = RawJson::parse(params.as_bytes()).unwrap();
            assert_eq!(text.slice().canonical().unwrap(), canonical, "params {params}");
            assert_eq!(spawn_hash(&task_type, &text).unwrap(), hash, "params {params}");
        }
    }

    #[test]
    fn equal_params_have_one_hash() {
        let hash = |text: &str| spawn_hash("echo", &RawJson::parse(text.as_bytes()).unwrap()).unwrap();
        for equal in [
            &["1", "1.0", "1e0"][..],
            &["100", "1e2"],
            &["0", "-0"],
            &[r#"{"a":1,"b":"é"}"#, r#"{"b":"\u00e9","a":1}"#],
        ] {
            assert!(equal.iter().all(|text| hash(text) == hash(equal[0])), "{equal:?}");
        }
        assert_ne!(hash("618970019642690137449562111"), hash("618970019642690137449562112"));
        assert_ne!(hash("9007199254740993"), hash("9007199254740992"));
        assert_ne!(hash("0.1234567890123456789"), hash("0.12345678901234568"));
    }
}
