use super::*;

fn view(base: &str) -> View {
    View { base: base.into(), role: Role::Submit, read_only: false }
}

#[test]
fn urls_contain_the_base_path() {
    assert_eq!(view("").url("/"), "/");
    assert_eq!(view("/fleet").url("/"), "/fleet");
    assert_eq!(view("/fleet").task("a:b@c"), "/fleet/tasks/a:b@c");
    assert_eq!(view("").url_with("/tasks", &[("tag", "a b&c")]), "/tasks?tag=a+b%26c");
    assert_eq!(view("").task(".."), "/tasks?root=..");
    assert_eq!(encoded("a b/c?\u{e9}"), "a%20b%2Fc%3F%C3%A9");
}

#[test]
fn role_and_mode_permit_actions() {
    assert!(view("").may(Role::Submit) && !view("").may(Role::Operate));
    assert!(!View { read_only: true, ..view("") }.may(Role::Read));
}

#[test]
fn numbers_have_thousands_separators() {
    for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(count(number), text);
    }
}

#[test]
fn backticks_of_messages_become_code() {
    assert_eq!(prose("`a<b` failed").into_string(), "<code>a&lt;b</code> failed");
    assert_eq!(prose("one ` only").into_string(), "one ` only");
}

#[test]
fn escape_codes_and_direction_overrides_are_removed() {
    assert_eq!(visible("\u{1b}[1;31mred\u{1b}[0m \u{7}x\u{202e}evil"), "red xevil");
    assert_eq!(visible("\u{1b}[31"), "");
    assert_eq!(first_line("one\ntwo", 9), "one");
    assert_eq!(first_line("äöüß", 2), "äö…");
}
