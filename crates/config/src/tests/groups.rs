//! Consumer groups of types.

use super::*;

#[test]
fn types_share_the_groups_that_they_or_the_worker_name() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[worker]\ngroup = \"small\"\n[types.mail]\n[types.resize]\ngroup = \"media\"\n[types.report]\ngroup = \"report\"";
    let names = Names::of(&load_text(folder.path(), text, &Overrides::default()).unwrap());
    let group = |task_type| (names.group_name(task_type).to_owned(), names.group(task_type));
    assert_eq!(group("mail"), ("small".into(), "kafleet.group.small".into()));
    assert_eq!(group("resize"), ("media".into(), "kafleet.group.media".into()));
    assert_eq!(group("report"), ("report".into(), "kafleet.tasks.report".into()), "a group of its own");
    assert_eq!(group("registered-in-rust"), ("small".into(), "kafleet.group.small".into()));
    assert_eq!(Names::new("kafleet").group("mail"), "kafleet.tasks.mail");
}

#[test]
fn type_without_a_group_may_be_in_that_of_an_app() {
    let group = |task_type: &str, group: &str| {
        let groups = [("resize".to_owned(), "media".to_owned())].into();
        let names = Names::new("kafleet").with_groups(TypeGroups { by_type: groups, default: None });
        names.with_app_group(task_type, group).group(task_type)
    };
    assert_eq!(group("mail", &app_group("Shop_1")), "kafleet.group.app-shop-1");
    assert_eq!(group("mail", "shop"), "kafleet.tasks.mail", "no group of an app");
    assert_eq!(group("resize", "app-shop"), "kafleet.group.media", "the configuration has precedence");
}

#[test]
fn invalid_groups_are_reported_with_key_value_and_hint() {
    refused(
        "[types.mail]\ngroup = \"resize\"\n[types.resize]",
        &[
            "kafleet.toml:2: ",
            "`types.mail.group`",
            "`resize` is the name of another type",
            "choose a name that no type has",
        ],
    );
    refused(
        "[worker]\ngroup = \"mail\"\n[types.mail]",
        &["kafleet.toml:2: ", "`worker.group`", "`mail` is the name of a type", "choose a name that no type has"],
    );
    refused(
        "[types.mail]\ngroup = \"Small Types\"",
        &["kafleet.toml:2: ", "`types.mail.group`", "`Small Types`", "groups are named like types"],
    );
    refused(
        "[worker]\ngroup = \"\"\n[types.mail]",
        &["kafleet.toml:2: ", "`worker.group`", "groups are named like types"],
    );
}
