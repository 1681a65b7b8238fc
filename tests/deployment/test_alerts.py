"""The alerts are valid, and each of them fires when it should and not otherwise."""

import yaml
from rendering import CHART, HERE, named, one, run

RULES = CHART / "files/alerts.yaml"
CASES = HERE / "alerts.yaml"


def names():
    return [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]


def test_rules_are_valid():
    done = run("promtool", "check", "rules", "--lint=all", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should():
    done = run("promtool", "test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not():
    firing, silent = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for expected in case["alert_rule_test"]:
            (firing if expected.get("exp_alerts") else silent).add(expected["alertname"])
    assert sorted(firing) == sorted(silent) == sorted(names())


def test_chart_leaves_out_disabled_alerts_and_sets_limits_and_links():
    rules = {rule["alert"]: rule for rule in one(named("keda"), "PrometheusRule", "fleet")["spec"]["groups"][0]["rules"]}
    assert set(names()) - set(rules) == {"KafleetTargetDown"}
    assert rules["KafleetQueueWaitHigh"]["expr"].endswith("> 5")
    urls = {rule["annotations"]["runbook_url"] for rule in rules.values()}
    assert {url.split("#")[0] for url in urls} == {"https://wiki.example.org/kafleet"} and len(urls) == len(rules)


def test_dashboard_is_loaded_by_grafana():
    dashboard = one(named("keda"), "ConfigMap", "fleet-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert yaml.safe_load(dashboard["data"]["kafleet.json"])["uid"] == "kafleet"
