use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::units::time::MAX_TIME_MS;

fn parsed(text: &str) -> TaskQuery {
    TaskQuery::parse(text).unwrap_or_else(|mistake| panic!("{text}: {mistake}"))
}

fn mistake(text: &str) -> Mistake {
    TaskQuery::parse(text).err().unwrap_or_else(|| panic!("`{text}` is accepted"))
}

fn text(qualifier: Qualifier, values: &[&str]) -> Term {
    Term { negated: false, test: Test::Text(qualifier, values.iter().map(|value| (*value).to_owned()).collect()) }
}

fn word(word: &str) -> Term {
    Term { negated: false, test: Test::Word(word.into()) }
}

#[test]
fn query_has_terms_with_values() {
    let query =
        parsed(r#" type:resize,thumb  state:failed -tag:test error:"no answer from 10.0.0.7" from:2h "build main""#);
    let expected = [
        text(Qualifier::Type, &["resize", "thumb"]),
        Term { negated: false, test: Test::State(vec![State::Failed]) },
        Term { negated: true, ..text(Qualifier::Tag, &["test"]) },
        text(Qualifier::Error, &["no answer from 10.0.0.7"]),
        Term { negated: false, test: Test::From(QueryTime::Ago(Millis::secs(7_200))) },
        word("build main"),
    ];
    assert_eq!(query.terms, expected);
    assert_eq!(
        query.to_string(),
        r#"type:resize,thumb state:failed -tag:test error:"no answer from 10.0.0.7" from:2h "build main""#
    );
    assert_eq!(parsed(" \t\n"), TaskQuery::default());
}

#[test]
fn ids_and_quoted_texts_are_words() {
    for (given, expected) in [
        ("order-42:fetch", "order-42:fetch"),
        ("\"order:fetch\"", "order:fetch"),
        ("a,b", "a,b"),
        ("12:30", "12:30"),
        ("\"-x\"", "-x"),
        (r#""the \"end\" \d \\""#, r#"the "end" \d \"#),
        ("größe", "größe"),
    ] {
        assert_eq!(parsed(given).terms, [word(expected)], "{given}");
    }
    assert_eq!(parsed(r#"tag:"a,b",c"#).terms, [text(Qualifier::Tag, &["a,b", "c"])]);
    assert_eq!(parsed("tag:a tag:b").terms, [text(Qualifier::Tag, &["a"]), text(Qualifier::Tag, &["b"])]);
    assert_eq!(parsed("-type:a -type:b").terms.len(), 2, "neither of the two");
}

#[test]
fn declared_params_are_searched_as_tags() {
    for (given, tags, printed) in [
        ("params.customer:Ada", vec!["params.customer=Ada"], "params.customer:Ada"),
        ("params.order.id:42,43", vec!["params.order.id=42", "params.order.id=43"], "params.order.id:42,43"),
        (r#"params.customer:"Ada, L""#, vec!["params.customer=Ada%2C L"], r#"params.customer:"Ada, L""#),
        ("tag:params.customer=Ada", vec!["params.customer=Ada"], "params.customer:Ada"),
        (r#"tag:"params.customer= Ada""#, vec!["params.customer= Ada"], r#"tag:"params.customer= Ada""#),
        ("tag:params.a=1,ci", vec!["params.a=1", "ci"], "tag:params.a=1,ci"),
    ] {
        let query = parsed(given);
        assert_eq!(query.terms, [text(Qualifier::Tag, &tags)], "{given}");
        assert_eq!(query.to_string(), printed);
        assert_eq!(parsed(printed), query);
    }
    assert_eq!(parsed("-params.a:1").to_string(), "-params.a:1");
    assert_eq!(parsed("params.a:1 params.b:2").terms.len(), 2, "both of them");
    assert_eq!(parsed("params.customer params.:x").terms, [word("params.customer"), word("params.:x")]);
    let long = format!("params.a:{}", "x".repeat(65));
    assert!(mistake(&long).message.contains("more than 64 characters"), "{}", mistake(&long));
    assert!(mistake("params.a:").message.contains("`params.a` has an empty value"));
}

#[test]
fn mistake_names_the_wrong_part_and_a_correction() {
    for (given, wrong, message, hint) in [
        ("type:echo stat:failed", "stat", "`stat` is not a qualifier", "did you mean `state`?"),
        ("State:failed", "State", "`State` is not a qualifier", "did you mean `state`?"),
        ("status:failed", "status", "`status` is not a qualifier", "did you mean `state`?"),
        ("priority:high", "priority", "use one of type, state", "write \"priority:high\" with quotes"),
        ("order:fetch x", "order", "is not a qualifier", "write \"order:fetch\" with quotes"),
        ("state:running,faild", "faild", "`faild` is not a state", "did you mean `failed`?"),
        ("is:opne", "opne", "use `open`, `ended`, `failed` or `root`", "did you mean `open`?"),
        ("type:Echo", "Echo", "is not a type name", ""),
        ("id:a,b/c", "b/c", "has the character `/`", ""),
        ("tag:a,,b", "", "`tag` has an empty value", ""),
        ("tag: x", "", "`tag` has an empty value", ""),
        ("tag:\"\"", "\"\"", "`tag` has an empty value", ""),
        ("x -", "-", "the term is empty", "exclude"),
        ("größe \"a b", "\"a b", "the quote is not closed", "end the text"),
        ("\"a\"b", "b", "text follows the closing quote", "write a space"),
        ("from:yesterday", "yesterday", "is not a time", "an age, such as 2h"),
        ("-from:2h", "-", "`from` cannot be negated", "omit"),
        ("level:any,roots", "roots", "only one value", ""),
        ("level:any level:any", "level:any", "`level` is given twice", ""),
        ("type:a tag:x type:b,c", "type:b,c", "`type` is given twice", "write `type:a,b,c`"),
        ("name_like:(", "(", "unclosed group", "docs.rs/regex"),
    ] {
        let reported = mistake(given);
        assert_eq!(&given[reported.span.clone()], wrong, "{given}: {reported}");
        assert!(reported.message.contains(message), "{given}: {reported}");
        let has = reported.hint.as_deref().unwrap_or_default();
        assert!(if hint.is_empty() { has.is_empty() } else { has.contains(hint) }, "{given}: {has}");
    }
}

#[test]
fn caret_is_below_the_wrong_part() {
    let query = "größe state:faild";
    assert_eq!(mistake(query).underlined(query), "größe state:faild\n            ^^^^^");
    assert_eq!(mistake(query).chars(query), 12..17);
    assert_eq!(mistake("tag:").underlined("tag:"), "tag:\n    ^");
}

#[test]
fn size_of_a_query_is_bounded() {
    let many = |n: usize, text: &str| vec![text; n].join(" ");
    assert_eq!(parsed(&many(MAX_TERMS, "tag:x")).terms.len(), MAX_TERMS);
    assert!(mistake(&many(MAX_TERMS + 1, "tag:x")).message.contains("more than 32 terms"));
    let values = |n: usize| format!("tag:{}", vec!["x"; n].join(","));
    assert_eq!(parsed(&values(MAX_VALUES)).terms.len(), 1);
    assert!(mistake(&values(MAX_VALUES + 1)).message.contains("more than 100 values"));
    let long = mistake(&"ö".repeat(MAX_QUERY_BYTES));
    assert!(long.message.contains("16384 bytes; the maximum is 8192"), "{long}");
}

#[test]
fn invalid_patterns_are_rejected_with_an_explanation() {
    assert!(pattern(r"^nightly (build|test) \d+$").unwrap().is_match("nightly test 12"));
    for (bad, error) in [
        ("(", "unclosed group"),
        ("a{1000}{1000}{1000}", "compiled pattern is too large"),
        (&"x".repeat(513), "513 bytes"),
        (&"(".repeat(40), "not a regular expression"),
    ] {
        let fault = pattern(bad).unwrap_err();
        assert!(fault.message.contains(error), "{bad}: {}", fault.message);
    }
}

fn texts(of: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<String>> {
    vec(of, 1..4)
}

fn one_of<T: Copy + fmt::Debug + 'static>(all: Vec<T>) -> impl Strategy<Value = Vec<T>> {
    vec(proptest::sample::select(all), 1..4)
}

fn ids() -> impl Strategy<Value = Vec<TaskId>> {
    texts("[a-zA-Z0-9_~@-][a-zA-Z0-9._~@-]{0,7}(:[a-z0-9-]{1,4}){0,3}".boxed())
        .prop_map(|ids| ids.iter().map(|id| TaskId::parse(id).unwrap()).collect())
}

fn time() -> impl Strategy<Value = QueryTime> {
    prop_oneof![
        (-MAX_TIME_MS..=MAX_TIME_MS).prop_map(QueryTime::At),
        (-100_000_000_000_000i64..200_000_000_000_000).prop_map(QueryTime::At),
        (0..=i64::MAX as u64).prop_map(|ms| QueryTime::Ago(Millis(ms))),
        (0u64..100_000).prop_map(|s| QueryTime::Ago(Millis::secs(s))),
    ]
}

fn test() -> impl Strategy<Value = Test> {
    use Qualifier::{Creator, Error, Name, NameLike, Schedule, Tag, Type, Worker};
    let free = proptest::sample::select(vec![Tag, Creator, Name, Error, Worker, Schedule]);
    let any_text = prop_oneof!["[^\u{0}]{1,12}", "[ a-z,:\"\\\\-]{1,12}"];
    prop_oneof![
        (free, texts(any_text.clone())).prop_map(|(qualifier, values)| Test::Text(qualifier, values)),
        texts("[a-z0-9-]{1,8}".boxed()).prop_map(|values| Test::Text(Type, values)),
        texts(any_text.clone())
            .prop_map(|values| Test::Text(NameLike, values.iter().map(|value| regex::escape(value)).collect())),
        one_of(State::ALL.to_vec()).prop_map(Test::State),
        one_of(State::ALL.to_vec()).prop_map(Test::Own),
        one_of(Condition::ALL.map(|(condition, _)| condition).to_vec()).prop_map(Test::Is),
        ids().prop_map(Test::Id),
        ids().prop_map(Test::Under),
        any_text.prop_map(Test::Word),
        proptest::sample::select(TreeLevel::ALL.map(|(level, _)| level).to_vec()).prop_map(Test::Level),
        time().prop_map(Test::From),
        time().prop_map(Test::To),
    ]
}

/// Queries that the parser accepts: no repetition of a qualifier that may not be repeated.
fn query() -> impl Strategy<Value = TaskQuery> {
    vec((any::<bool>(), test()), 0..8).prop_map(|tests| {
        let mut query = TaskQuery::default();
        for (negated, test) in tests {
            let qualifier = test.parts().0;
            let negated = negated && qualifier.is_none_or(|qualifier| !qualifier.is_single());
            let is_known = query.terms.iter().any(|term| term.test.parts().0 == qualifier);
            if qualifier.is_none_or(|qualifier| qualifier.may_repeat() || !is_known) {
                query.terms.push(Term { negated, test });
            }
        }
        query
    })
}

#[test]
fn query_about_types_errors_workers_ids_and_trees_concerns_all_levels() {
    for (text, level) in [
        ("", TreeLevel::Roots),
        ("state:failed", TreeLevel::Roots),
        ("tag:ci name:build word", TreeLevel::Roots),
        ("-type:resize", TreeLevel::Roots),
        ("is:root", TreeLevel::Roots),
        ("type:resize", TreeLevel::Any),
        ("tag:ci error:timeout", TreeLevel::Any),
        ("worker:w-1", TreeLevel::Any),
        ("id:a", TreeLevel::Any),
        ("under:a own:failed", TreeLevel::Any),
        ("-is:root", TreeLevel::Any),
        ("type:resize level:roots", TreeLevel::Roots),
        ("state:failed level:any", TreeLevel::Any),
    ] {
        assert_eq!(parsed(text).level(), level, "{text}");
    }
}

#[test]
fn query_names_its_level_only_where_that_is_not_its_default() {
    for (text, level, expected) in [
        ("state:failed", TreeLevel::Any, "state:failed level:any"),
        ("state:failed level:any", TreeLevel::Roots, "state:failed"),
        ("level:roots type:resize", TreeLevel::Any, "type:resize"),
        ("type:resize", TreeLevel::Roots, "type:resize level:roots"),
    ] {
        let query = parsed(text).at_level(level);
        assert_eq!((query.to_string().as_str(), query.level()), (expected, level), "{text}");
    }
}

proptest! {
    #[test]
    fn printed_query_parses_to_the_same_value(query in query()) {
        prop_assert_eq!(TaskQuery::parse(&query.to_string()), Ok(query));
    }

    #[test]
    fn parser_accepts_or_marks_any_text(text in "\\PC{0,60}|[a-z_:,\"\\\\ -]{0,40}|((-?(tag|state|is|from|id|type):)?[a-z\",: ]{0,9}){0,9}") {
        match TaskQuery::parse(&text) {
            Ok(query) => prop_assert_eq!(TaskQuery::parse(&query.to_string()), Ok(query)),
            Err(mistake) => {
                prop_assert!(text.get(mistake.span.clone()).is_some(), "{:?} in {:?}", mistake.span, text);
                prop_assert!(!mistake.underlined(&text).is_empty());
            }
        }
    }
}
