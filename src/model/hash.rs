//! The spawn hash: the same work gets the same id, in whatever order it is spawned.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Characters of the hash in an id.
pub const HASH_CHARS: usize = 12;

/// The first 12 characters of lower-case base32 of SHA-256 over the type, a zero byte, and the params as compact JSON
/// with object keys sorted by bytes at every level. Test vectors: `schemas/spawn-hash.json`. Never changed.
pub fn spawn_hash(task_type: &str, params: &Value) -> String {
    let mut text = Vec::with_capacity(128);
    write_canonical(params, &mut text);
    let mut sha = Sha256::new();
    sha.update(task_type.as_bytes());
    sha.update([0]);
    sha.update(&text);
    let digest = sha.finalize();
    let mut hash = data_encoding::BASE32_NOPAD.encode(&digest[..8]).to_ascii_lowercase();
    hash.truncate(HASH_CHARS);
    hash
}

fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            write_list(out, b'{', b'}', entries, |(key, value), out| {
                write_scalar(&Value::String(key.clone()), out);
                out.push(b':');
                write_canonical(value, out);
            });
        }
        Value::Array(items) => write_list(out, b'[', b']', items, write_canonical),
        scalar => write_scalar(scalar, out),
    }
}

fn write_list<T>(out: &mut Vec<u8>, open: u8, close: u8, items: impl IntoIterator<Item = T>, each: impl Fn(T, &mut Vec<u8>)) {
    out.push(open);
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        each(item, out);
    }
    out.push(close);
}

fn write_scalar(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(value.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published vectors: whoever spawns from another language checks against the same file.
    #[test]
    fn the_published_vectors_hold() {
        let vectors: Value = serde_json::from_str(include_str!("../../schemas/spawn-hash.json")).unwrap();
        for vector in vectors["vectors"].as_array().unwrap() {
            let params: Value = serde_json::from_str(vector["params"].as_str().unwrap()).unwrap();
            let hash = spawn_hash(vector["type"].as_str().unwrap(), &params);
            assert_eq!(hash, vector["hash"].as_str().unwrap(), "params {params}");
        }
    }
}
