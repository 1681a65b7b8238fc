//! Documents of the API: each has a published schema.

use super::api;

#[test]
fn each_api_document_is_published() {
    let published = api();
    let sources =
        [include_str!("../../crates/documents/src/lib.rs"), include_str!("../../crates/documents/src/operations.rs")]
            .concat();
    let mut renamed = None;
    for line in sources.lines() {
        if let Some(name) = line.strip_prefix("#[schemars(rename = \"") {
            renamed = name.split('"').next();
        }
        let Some(of_type) = line.strip_prefix("pub struct ").and_then(|rest| rest.split([' ', '<', '(']).next()) else {
            continue;
        };
        let name = renamed.take().unwrap_or(of_type);
        assert!(
            published["$defs"].get(name).is_some(),
            "`{name}`, the struct `{of_type}` of crates/documents, is not in schemas/api.json"
        );
    }
}
