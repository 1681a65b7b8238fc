use std::path::Path;

use super::*;

mod groups;

/// Returns the problems of a file as text, without the folder's path.
fn problems(text: &str) -> Vec<String> {
    problems_with(text, &Overrides::default())
}

fn problems_with(text: &str, overrides: &Overrides) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    match load_text(folder.path(), text, overrides) {
        Ok(_) => Vec::new(),
        Err(Problems(list)) => {
            let within = format!("{}/", folder.path().display());
            list.iter().map(|problem| problem.to_string().replace(&within, "")).collect()
        }
    }
}

fn load_text(folder: &Path, text: &str, overrides: &Overrides) -> Result<Config, Problems> {
    let path = folder.join("kafleet.toml");
    std::fs::write(&path, text).unwrap();
    let env = |name: &str| (name == "SECRET").then(|| "s3cr3t-from-outside".to_owned());
    load_with(Some(&path), overrides, &env).map(|loaded| loaded.config)
}

/// Asserts that a file has exactly one problem, with all of these texts.
fn refused(text: &str, expected: &[&str]) {
    let reported = problems(text);
    assert_eq!(reported.len(), 1, "{text}\ngave {reported:#?}");
    for expected in expected {
        assert!(reported[0].contains(expected), "{text}\ngave {}\nwithout {expected}", reported[0]);
    }
}

#[test]
fn empty_file_has_all_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = load_text(folder.path(), "", &Overrides::default()).unwrap();
    assert_eq!(config.kafka.remove("bootstrap.servers"), Some(Scalar::Text(DEFAULT_BROKERS.into())));
    assert_eq!(config, Config::default());
}

#[test]
fn every_problem_is_reported_with_its_line() {
    let reported = problems(
        "[topics]\nprefx = \"x\"\nevents_partitions = 0\n\n[types.a]\nhandler = \"exek\"\ntimeout = \"soon\"\n",
    );
    let starts = ["kafleet.toml:2: ", "kafleet.toml:3: ", "kafleet.toml:6: ", "kafleet.toml:7: "];
    assert_eq!(reported.len(), starts.len(), "{reported:#?}");
    for (reported, start) in reported.iter().zip(starts) {
        assert!(reported.starts_with(start), "{reported} does not begin with {start}");
    }
}

#[test]
fn invalid_pointers_to_params_are_refused() {
    for (lines, expected) in [
        ("mask = [\"card\"]", "`card` in `mask` of `[types.a]` cannot be used: it must begin with `/`"),
        ("index = [\"/a b\"]", "`/a b` in `index` of `[types.a]` cannot be used: its names"),
        ("index = [\"/a\", \"/a\"]", "`/a` is twice in `index`"),
        ("mask = [\"/card\"]\nindex = [\"/card/number\"]", "`/card/number` is in both `index` and `mask`"),
        (
            "index = [\"/a\", \"/b\", \"/c\", \"/d\", \"/e\", \"/f\"]",
            "`types.a.index`: a list is not a list (`[…]`) of at most 5 values",
        ),
    ] {
        refused(&format!("[types.a]\n{lines}\n"), &[expected]);
    }
}

#[test]
fn invalid_schedules_are_reported_with_allowed_values() {
    let with = |line: &str| format!("[schedules.nightly]\n{line}\ntask = {{ type = \"echo\" }}");
    for (line, expected) in [
        ("cron = \"61 * * * *\"", "kafleet.toml:2: `schedules.nightly.cron`: `61 * * * *` is not a cron expression"),
        ("cron = \"61 * * * *\"", "five fields: minute hour day-of-month month day-of-week"),
        ("cron = \"0 3 * * *\"\ntimezone = \"Mars\"", ":3: `schedules.nightly.timezone`: `Mars` is not a time zone"),
        ("every = \"100ms\"", "`schedules.nightly.every`: `100ms` is not a number of whole seconds"),
        ("every = \"1h\"\noverlap = \"both\"", "`both` is not one of `skip`, `allow`, `buffer_one`, `replace`"),
        ("every = \"1h\"\ndelay = \"1s\"", "unknown key `delay` in `[schedules.nightly]`"),
    ] {
        refused(&with(line), &[expected]);
    }
    refused("[schedules.\"a:b\"]\nevery = \"1h\"\ntask = { type = \"echo\" }", &["`a:b` cannot name a schedule"]);
    refused("[schedules.a]\nevery = \"1h\"", &["`[schedules.a]` needs `task`"]);
    for number in ["0.1234567890123456789", "9007199254740993.0", "618970019642690137449562111", "1e400", "nan"] {
        let text =
            format!("[schedules.a]\nevery = \"1h\"\ntask = {{ type = \"echo\", params = {{ n = [{number}] }} }}");
        refused(&text, &["`schedules.a.task.params.n[0]`", number]);
    }
    assert_eq!(problems(&with("cron = \"0 3 * * *\"\ntimezone = \"Europe/Berlin\"")), [""; 0]);
}

#[test]
fn unknown_keys_are_reported_with_allowed_keys() {
    refused("[typs.echo]", &["kafleet.toml:1: unknown key `typs` in the file", "did you mean `types`?", "`kafka`"]);
    refused(
        "[worker]\nmemory_limt = 5",
        &[":2:", "`memory_limt` in `[worker]`", "did you mean `memory_limit`?", "`grace`"],
    );
    refused("[types.a]\nschedule = 1", &["unknown key `schedule` in `[types.a]`", "hint: allowed: ", "`concurrency`"]);
    refused(
        "[[api.tokens]]\nname = \"a\"\ntoken = \"0123456789abcdef\"\nrole = \"read\"\nrol = 1",
        &["`[api.tokens[0]]`"],
    );
}

#[test]
fn invalid_values_are_reported_with_allowed_values() {
    for (text, expected) in [
        ("[topics]\nevents_partitions = 0", "`topics.events_partitions`: `0` is not a whole number from 1 to 1024"),
        ("[topics]\nevents_partitions = \"9\"", "`topics.events_partitions`: `\"9\"` is not a whole number"),
        ("[topics]\nevents_partitions = 99999999999999999999", "whole number"),
        ("[types.a]\nhandler = \"exek\"", "`exek` is not one of `echo`, `foreach`, `exec`, `http`"),
        ("[types.a]\norder = 3", "`types.a.order`: `3` is not one of `none`, `key`, `partition`"),
        ("[types.a]\ntimeout = \"soon\"", "`soon` is not a duration with its unit: `1500ms`, `30s`"),
        ("[types.a]\ntimeout = 30", "`30` is not a duration with its unit"),
        ("[worker]\ngrace = \"30\"", "`30` is not a duration with its unit"),
        ("[types.a]\ntimeout = -1", "`-1` is not a duration"),
        ("[types.a]\ntimeout = \"99999999999999999999s\"", "is not a duration"),
        ("[worker]\nmemory_limit = \"1 TiB\"", "`1 TiB` is not a size: `128MiB`"),
        ("[topics]\nreply_to = [\"kafleet.replies\"]", "is not a topic outside of `kafleet.*`"),
        ("[types.a]\npublish_results = \"yes\"", "is not `true` or `false`"),
        ("[types.a]\nhandler = \"exec\"\ncommand = \"ls -l\"", "`types.a.command`: `ls -l` is not a list"),
        ("[worker]\ngrace = 1979-05-27", "`1979-05-27` is not a duration"),
        ("types = 3", "`types`: `3` is not a table"),
        ("[kafka]\n\"client.id\" = [1]", "`kafka.\"client.id\"`: a list is not"),
        ("[[api.tokens]]\nname = \"a\"\ntoken = \"0123456789abcdef\"", "needs `role`"),
    ] {
        refused(text, &["kafleet.toml:", expected]);
    }
}

#[test]
fn inconsistent_settings_of_types_are_refused() {
    for (text, expected) in [
        ("[types.\"A b\"]", "`A b` is not a type name: 1 to 64 characters"),
        ("[types.a]\nhandler = \"exec\"", "has the handler `exec` and no `command`"),
        ("[types.a]\nhandler = \"http\"", "has the handler `http` and no `url`"),
        ("[types.a]\nhandler = \"http\"\nurl = \"ftp://x\"", "`ftp://x` is not an address such as `https://host/path`"),
        ("[types.a]\nhandler = \"http\"\nurl = \"http://x\"\nmethod = \"GET\"", "`GET` is not one of `POST`"),
        (
            "[types.a]\nhandler = \"http\"\nurl = \"http://x\"\nheaders = { \"a b\" = \"1\" }",
            "`a b` is not a valid header name",
        ),
        ("[types.a]\nhandler = \"http\"\nurl = \"http://x\"\nheaders = { a = \"1\\r\\nb: 2\" }", "line break"),
        ("[types.a]\nurl = \"http://x\"", "`url` in `[types.a]` is only used by the handler `http`"),
        (
            "[types.a]\nhandler = \"echo\"\nmin_backoff = \"10s\"",
            "`min_backoff` 10s is longer than `max_backoff` 3s (the default)",
        ),
        (
            "[types.a]\nmin_backoff = \"2s\"\nmax_backoff = \"1s\"",
            "`min_backoff` 2s is longer than `max_backoff` 1s in",
        ),
        ("[types.a]\ntimeout = \"2m\"\ntotal_timeout = \"1m\"", "`timeout` 2m is longer than `total_timeout` 1m in"),
        ("[types.a]\nmax_wait = \"2m\"\ntotal_timeout = \"1m\"", "`max_wait` 2m is longer than `total_timeout` 1m in"),
        (
            "[types.a]\nhandler = \"echo\"\nstall_timeout = \"121s\"",
            "`stall_timeout` 121s is longer than `timeout` 2m (the default)",
        ),
        (
            "[types.a]\nhandler = \"echo\"\nmax_backoff = \"10ms\"",
            "`min_backoff` 1s (the default) is longer than `max_backoff` 10ms",
        ),
        ("[types.a]\ntotal_timeout = \"31d\"", "at most `topics.max_tree_age`, 30d"),
        ("[types.a]\ntimeout = 1795853855000", "is not a duration with its unit"),
        ("[types.a]\nbackoff_reset = \"2m\"\ntimeout = \"1m\"", "`backoff_reset` 2m is longer than `timeout` 1m in"),
        ("[types.a]\norder = \"partition\"\nconcurrency = 9", "cannot be reached"),
        ("[types.a]\ntimeout = 0", "`0` is not longer than zero"),
        ("[types.a]\nhandler = \"exec\"\ncommand = [\"x\"]\nretry_exit_codes = [75, 0]", "`0` is not an exit code"),
        (
            "[types.a]\nhandler = \"exec\"\ncommand = [\"x\"]\nretry_exit_codes = [75, 9]\nwait_exit_codes = [9]",
            "9 is in both `retry_exit_codes` and `wait_exit_codes`",
        ),
        ("[types.a]\nhandler = \"echo\"\nwait_exit_codes = [9]", "`wait_exit_codes` in `[types.a]` is only used by"),
        ("[types.a]\nschema = \"none.json\"", "the schema `none.json` cannot be read"),
        ("[types.a]\nschema = \"kafleet.toml\"", "the schema `kafleet.toml` is not JSON"),
    ] {
        refused(text, &["kafleet.toml:", expected]);
    }
}

#[test]
fn unsuitable_settings_of_roles_are_refused() {
    for (text, expected) in [
        ("[topics]\nprefix = \"a b\"", "`a b` is not a prefix"),
        ("[topics]\nmax_tree_age = 0", "`topics.max_tree_age`: `0` is not longer than zero"),
        ("[redis]\nurl = \"http://x\"", "`http://x` is not a Redis URL: one of `redis://`"),
        ("[redis]\nusername = \"me\"", "needs `redis.password`"),
        ("[outbox]\npostgres = \"http://x\"", "`http://x` is not a Postgres URL"),
        ("[outbox]\npostgres = \"postgres://x/y?password=z\"", "has its password in the query of the URL"),
        ("[api]\nlisten = \"8080\"", "`8080` is not an address to listen on"),
        ("[api.ui]\nbase_path = \"/fleet/\"", "`/fleet/` is not a path such as `/kafleet`, without a slash at its end"),
        ("[api.ui]\nsession = \"31d\"", "`31d` is not 1m to 30d"),
        (
            "[api.ui]\ntrace_url = \"https://traces.example.org/\"",
            "is not an `http://` or `https://` URL with `{trace_id}`",
        ),
        ("[api.ui]\ntrace_url = \"javascript:alert({trace_id})\"", "is not an `http://` or `https://` URL"),
        (
            "[api.ui]\ntrace_url = \"https://traces.example.org/{trace_id}/{span}\"",
            "is not an `http://` or `https://` URL",
        ),
        ("[api.ui]\nname = \"\"", "`` is not a name of 1 to 40 characters"),
        ("[api.ui]\ncolour = \"mauve\"", "`mauve` is not a colour: `blue`"),
        ("[api.ui]\ncolour = \"#ffff00\"", "`#ffff00` is not a colour with a contrast of 3 to 1"),
        ("[api.ui]\nzone = \"Mars/Base\"", "`Mars/Base` is not a time zone such as `Europe/Berlin`"),
        ("[ops]\nlisten = \"host:99999\"", "`host:99999` is not an address"),
        ("[worker]\nmemory_limit = \"1MiB\"", "`1MiB` is not at least `16MiB`"),
        ("[worker]\nmax_output = \"1GiB\"", "`1GiB` is not between `1B` and `3MiB`"),
        ("[kafka]\n\"bootstrap.servers\" = \"kafka-1\"", "`kafka-1` is not a list of brokers"),
        ("[kafka]\ngroup.id = \"mine\"", "`group.id` in `[kafka]` belongs to kafleet"),
        ("[kafka]\n\"enable.auto.commit\" = true", "when results are acknowledged"),
        ("[kafka]\n\"transactional.id\" = \"x\"", "belongs to kafleet"),
    ] {
        refused(text, &["kafleet.toml:", expected]);
    }
}

#[test]
fn schema_violation_hides_no_other_problem() {
    let reported = problems(
        "[worker]\ngrace = \"99999999999999999999s\"\nmax_output = \"1GiB\"\n[types.a]\nhandler = \"exec\"\ncommand = 5\n\
         [types.b]\nhandler = \"http\"\nspeed = 5",
    );
    let expected =
        ["not a duration", "`1GiB` is not between", "`types.a.command`: `5` is not a list", "no `url`", "`speed`"];
    assert_eq!(reported.len(), expected.len(), "{reported:#?}");
    for (reported, expected) in reported.iter().zip(expected) {
        assert!(reported.contains(expected), "{reported} does not contain {expected}");
    }
}

#[test]
fn problems_of_one_token_are_all_reported() {
    let reported = problems("[[api.tokens]]\nname = \"\"\ntoken = \"short\"\nrole = \"boss\"\n");
    assert_eq!(reported.len(), 3, "{reported:#?}");
    for expected in ["`api.tokens[0].role`: `boss` is not one of `read`", "has 5 characters", "a unique name"] {
        assert!(reported.iter().any(|reported| reported.contains(expected)), "{reported:#?}\nwithout {expected}");
    }
}

#[test]
fn tokens_must_be_long_and_unique() {
    let token =
        |name: &str, token: &str| format!("[[api.tokens]]\nname = \"{name}\"\ntoken = \"{token}\"\nrole = \"read\"\n");
    let long = "0123456789abcdef";
    assert!(problems(&token("a", long)).is_empty());
    refused(&token("a", "hunter2"), &[":3: the token `a` has 7 characters", "openssl rand"]);
    assert!(!problems(&token("a", "hunter2"))[0].contains("hunter2"));
    refused(&(token("a", long) + &token("a", "another-0123456789")), &[":6:", "a unique name"]);
    refused(&(token("a", long) + &token("b", long)), &[":7: the token `b` is the same as another token"]);
}

#[test]
fn syntax_errors_are_reported_with_their_line() {
    let reported = problems("[worker]\ngrace = \"5s\"\nmemory_limit =\n");
    assert!(reported[0].starts_with("kafleet.toml:3: not TOML: "), "{reported:?}");
    let reported = problems("[worker]\ngrace = 1\ngrace = 2\n");
    assert!(reported[0].contains("kafleet.toml:3: not TOML: "), "{reported:?}");
}

#[test]
fn named_file_must_exist() {
    let Problems(list) = load(Some(Path::new("/no/such/kafleet.toml")), &Overrides::default()).unwrap_err();
    assert!(list[0].to_string().starts_with("/no/such/kafleet.toml: cannot be read: No such file"), "{}", list[0]);
}

#[test]
fn variables_are_read_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[redis]\npassword = \"${SECRET}\"\nusername = \"a$${b}\"";
    let config = load_text(folder.path(), text, &Overrides::default()).unwrap();
    assert_eq!(config.redis.password.as_deref(), Some("s3cr3t-from-outside"));
    assert_eq!(config.redis.username.as_deref(), Some("a${b}"));
    let reported = problems("[redis]\npassword = \"${NO_SUCH}\"\nurl = \"redis://${NEITHER}/${NOR}\"");
    assert_eq!(reported.len(), 3, "{reported:#?}");
    assert!(reported[0].contains("kafleet.toml:2: the environment variable `NO_SUCH` is not set"), "{reported:?}");
}

#[test]
fn variables_of_unused_sections_may_be_unset() {
    let text = "[api]\nlisten = \"${ADDRESS}\"\n[[api.tokens]]\nname = \"a\"\ntoken = \"${T}\"\nrole = \"read\"";
    assert_eq!(problems(text).len(), 2);
    let reported = problems_with(text, &Overrides { unused: &["api"], ..Overrides::default() });
    assert!(reported.is_empty(), "{reported:?}");
}

#[test]
fn variables_of_other_types_may_be_unset() {
    let text = "[types.a]\nhandler = \"http\"\nurl = \"http://${A}\"\n[types.b]\nhandler = \"echo\"\n\
        [apps.c]\ncommand = [\"c\"]\ntypes = [\"d\"]\nenv = { C = \"${C}\" }";
    assert_eq!(problems(text).len(), 2);
    let of = |name: &str| problems_with(text, &Overrides { types: vec![name.to_owned()], ..Overrides::default() });
    assert_eq!([of("a").len(), of("b").len(), of("d").len()], [1, 0, 1]);
}

#[test]
fn expanded_variables_are_named_also_in_unused_sections() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kafleet.toml");
    let text = "[redis]\npassword = \"${A}-${B}\"\nusername = \"$${C}\"\n[api]\nlisten = \"${UNSET}\"";
    std::fs::write(&path, text).unwrap();
    let env = |name: &str| (name != "UNSET").then(|| "x".to_owned());
    let overrides = Overrides { unused: &["api"], ..Overrides::default() };
    let named = load_with(Some(&path), &overrides, &env).unwrap().variables;
    assert_eq!(Vec::from_iter(named), ["A", "B", "UNSET"]);
}

#[test]
fn certificates_of_redis_must_fit_its_url() {
    let tls = "[redis]\nurl = \"rediss://r\"\n";
    assert!(problems(&format!("{tls}ca = \"ca.pem\"")).is_empty());
    refused(&format!("{tls}certificate = \"c.pem\""), &["`redis.key` belong together", "set both"]);
    refused("[redis]\nca = \"ca.pem\"", &["`redis.ca` has no effect", "`rediss://`"]);
    refused("[redis]\nurl = \"rediss-sentinel://r/m\"\nca = \"ca.pem\"", &["with sentinels", "`SSL_CERT_FILE`"]);
}

#[test]
fn secrets_are_never_shown() {
    let text = "[redis]\nurl = \"http://me:hunter2@host\"\npassword = 5\n[kafka]\n\"sasl.password\" = [\"hunter2\"]\n\
        \"ssl.key.pem\" = { a = [\"hunter2\"] }\n[types.a]\nhandler = \"http\"\nurl = \"ftp://me:hunter2@x\"\n\
        headers = { authorization = [\"hunter2\"] }\nenv = { X = [\"hunter2\"] }\n[api]\nlisten = \"${SECRET}\"\n";
    let reported = problems(text).join("\n");
    assert_eq!(reported.lines().filter(|line| line.starts_with("kafleet")).count(), 8, "{reported}");
    assert!(!reported.contains("hunter2") && !reported.contains("s3cr3t"), "{reported}");

    let folder = tempfile::tempdir().unwrap();
    let text = "[redis]\nurl = \"redis://me:hunter2@host\"\npassword = \"hunter2\"\n[kafka]\n\"sasl.password\" = \"hunter2\"\n\
        [types.a]\nhandler = \"exec\"\ncommand = [\"x\"]\nenv = { X = \"hunter2\" }\n\
        [[api.tokens]]\nname = \"a\"\ntoken = \"hunter2-hunter2-hunter2\"\nrole = \"read\"";
    let config = load_text(folder.path(), text, &Overrides::default()).unwrap();
    let shown =
        format!("{config:?} {:?} {:?} {:?} {:?}", config.redis, config.api, config.api.tokens[0], config.types["a"]);
    assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    let postgres = Some("postgres://me:hunter2@host/shop".into());
    let overrides = Overrides { redis: Some("redis://:hunter2@host".into()), postgres, ..Overrides::default() };
    assert!(!format!("{overrides:?}").contains("hunter2"));
}

#[test]
fn credentials_of_an_overriding_url_replace_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[redis]\nurl = \"redis://a\"\nusername = \"me\"\npassword = \"of the file\"";
    let overridden = |url: &str| {
        let overrides = Overrides { redis: Some(url.into()), ..Overrides::default() };
        let redis = load_text(folder.path(), text, &overrides).unwrap().redis;
        (redis.username, redis.password)
    };
    assert_eq!(overridden("redis://you:other@b"), (None, None));
    assert_eq!(overridden("redis://b"), (Some("me".into()), Some("of the file".into())));
}

#[test]
fn command_line_overrides_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let overrides = Overrides {
        brokers: Some("kafka:9092".into()),
        redis: Some("rediss://r".into()),
        postgres: Some("postgres://p/shop".into()),
        api_listen: Some("[::]:80".into()),
        ops_listen: Some("localhost:81".into()),
        prefix: Some("mine".into()),
        unused: &[],
        types: Vec::new(),
    };
    let config =
        load_text(folder.path(), "[kafka]\nbootstrap.servers = \"x:1\"\n[topics]\nprefix = \"a\"", &overrides).unwrap();
    assert_eq!(config.kafka["bootstrap.servers"], Scalar::Text("kafka:9092".into()));
    let given = (&*config.redis.url, &*config.api.listen, &*config.ops.listen, &*config.topics.prefix);
    assert_eq!(given, ("rediss://r", "[::]:80", "localhost:81", "mine"));
    assert_eq!(config.outbox.and_then(|outbox| outbox.postgres).as_deref(), Some("postgres://p/shop"));
    let reported = problems_with("", &Overrides { redis: Some("nonsense".into()), ..Overrides::default() });
    assert!(
        reported[0].starts_with("--redis or KAFLEET_REDIS: `redis.url`: `nonsense` is not a Redis URL"),
        "{reported:?}"
    );
}

#[test]
fn paths_are_relative_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), "{\"type\": \"object\"}").unwrap();
    let text = "[types.a]\nhandler = \"exec\"\nschema = \"a.json\"\ncwd = \"work\"\ncommand = [\"./run.sh\", \"./x\"]\n\
        [types.b]\nhandler = \"exec\"\ncommand = [\"sh\"]\n";
    let config = load_text(folder.path(), text, &Overrides::default()).unwrap();
    let kind = &config.types["a"];
    assert_eq!(kind.schema.as_deref(), Some(&*folder.path().join("a.json")));
    assert_eq!(kind.cwd.as_deref(), Some(&*folder.path().join("work")));
    assert_eq!(kind.command, [folder.path().join("./run.sh").to_str().unwrap(), "./x"]);
    assert_eq!(config.types["b"].command, ["sh"]);
    std::fs::write(folder.path().join("a.json"), "{\"type\": \"objekt\"}").unwrap();
    let Problems(reported) = load_text(folder.path(), text, &Overrides::default()).unwrap_err();
    assert!(reported[0].message.contains("is not a JSON Schema"), "{reported:?}");
}

#[test]
fn error_kinds_are_words_in_one_list_only() {
    assert_eq!(
        problems("[types.a]\nhandler = \"echo\"\nretry_on = [\"timeout\"]\nfail_on = [\"*\", \"exit_code\"]"),
        [""; 0]
    );
    let with = |keys: &str| format!("[types.a]\nhandler = \"echo\"\n{keys}");
    refused(&with("fail_on = [\"Not found\"]"), &[":3:", "`Not found`", "hint: use a word such as `timeout`"]);
    refused(
        &with("retry_on = [\"busy\"]\nfail_on = [\"busy\"]"),
        &[":4:", "`busy` is in both `retry_on` and `fail_on`"],
    );
    refused(&with("retry_on = [\"cancelled\"]"), &["a cancelled task is neither retried nor failed"]);
}

#[test]
fn kinds_that_open_a_circuit_are_words() {
    let with = |kinds: &str| format!("[types.a]\nhandler = \"echo\"\ntrip_on = {kinds}");
    assert_eq!(problems(&with("[\"unreachable\", \"busy\"]")), [""; 0]);
    assert_eq!(problems(&with("[]")), [""; 0]);
    refused(
        &with("[\"*\"]"),
        &[":3:", "`*` in `trip_on` of `[types.a]`", "hint: use words such as `unreachable`", "`[]`"],
    );
    refused(&with("[\"no answer\"]"), &["`no answer` in `trip_on`"]);
    refused(&with("[\"cancelled\"]"), &["`cancelled` cannot be in `trip_on`"]);
    refused(&with("\"off\""), &["`types.a.trip_on`: `off` is not a list"]);
}

#[test]
fn limits_of_a_type_are_checked() {
    let with = |keys: &str| format!("[types.a]\nhandler = \"echo\"\n{keys}");
    assert_eq!(problems(&with("isolation = \"process\"\nisolation_memory = \"64MiB\"\nmax_failures = 3")), [""; 0]);
    refused(&with("isolation = \"thread\""), &["`types.a.isolation`", "`process`"]);
    refused(&with("isolation_memory = \"1MiB\""), &["`types.a.isolation_memory`", "at least `16MiB`"]);
    refused(&with("total_timeout = 0"), &["`types.a.total_timeout`", "longer than zero"]);
    refused(&with("stall_timeout = \"0s\""), &["`types.a.stall_timeout`", "longer than zero"]);
    refused(&with("max_failures = 0"), &["`types.a.max_failures`"]);
    let program = "[types.a]\nhandler = \"exec\"\ncommand = [\"true\"]\nisolation = \"process\"";
    refused(program, &["`isolation` in `[types.a]` has no effect"]);
}

#[test]
fn batches_need_a_handler_that_takes_several_tasks() {
    let with = |keys: &str| format!("[types.a]\nhandler = \"exec\"\ncommand = [\"true\"]\n{keys}");
    assert_eq!(problems(&with("batch = {}")), [""; 0]);
    assert_eq!(problems("[types.a]\nbatch = { max = 5, by = \"/tenant\" }"), [""; 0]);
    refused(
        "[types.a]\nhandler = \"echo\"\nbatch = {}",
        &[":3:", "the handler `echo` takes one task a call", "remove it"],
    );
    refused(&with("batch = { max = 1 }"), &[":4:", "`types.a.batch.max`: `1` is not a whole number from 2 to 10000"]);
    refused(&with("batch = { maxx = 5 }"), &[":4:", "unknown key `maxx` in `[types.a.batch]`", "did you mean `max`?"]);
    refused(&with("unique = { mode = \"lates\" }"), &[":4:", "`types.a.unique.mode`: `lates` is not one of `skip`"]);
    refused(&with("adaptive = { min = \"few\" }"), &[":4:", "`types.a.adaptive.min`", "is not a whole number"]);
    refused(&with("batch = { by = \"tenant\" }"), &["`by` is `tenant`", "such as `/tenant`"]);
    refused(&with("batch = {}\norder = \"partition\""), &["`batch` and `order`", "hint: remove `batch` or `order`"]);
    refused("[types.a]\nbatch = {}\nisolation = \"process\"", &["`batch` and `isolation` in `[types.a]`"]);
}

#[test]
fn reserved_type_names_are_refused() {
    refused(
        "[types.kafleet-cleanup]\nhandler = \"echo\"",
        &[":1:", "`kafleet-cleanup` is reserved", "hint: choose another name"],
    );
    let reported =
        ["sets the policy of a built-in type, which needs `[callbacks]`", "hint: add `[callbacks]`, or remove it"];
    refused("[types.kafleet-callback]\nhandler = \"echo\"", &reported);
    refused("[types.kafleet-email]\nconcurrency = 3", &["which needs `[email]`"]);
    refused(
        "[callbacks]\n[types.kafleet-callback]\nhandler = \"echo\"",
        &[":3:", "`handler` in", "the type is built in"],
    );
    assert_eq!(problems("[callbacks]\n[types.kafleet-callback]\nconcurrency = 3"), [""; 0]);
}
