//! The table of Kafka permissions in `docs/production.md` is that of this build.

use std::path::Path;

use kafleet::topics::acls::markdown;

const BEGIN: &str = "<!-- Generated: KAFLEET_UPDATE=1 cargo test --test standalone schemas -->\n";
const END: &str = "<!-- End of the generated table -->";

#[test]
fn table_of_permissions_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/production.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the beginning of the table");
    let (_, after) = rest.split_once(END).expect("the end of the table");
    let expected = format!("{before}{BEGIN}{}{END}{after}", markdown());
    if std::env::var_os("KAFLEET_UPDATE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page == expected, "{} is out of date: run the test with KAFLEET_UPDATE=1", path.display());
}
