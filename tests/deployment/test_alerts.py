"""The alerts are valid, and each of them fires when it should and not otherwise."""

import re

import pytest
import yaml
from rendering import CHART, HERE, matches, named, of_kind, one, run

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


@pytest.mark.parametrize("naming", [{}, {"fullnameOverride": "fleet"}, {"nameOverride": "tasks"}], ids=str)
def test_alert_of_targets_matches_the_job_of_each_target_in_any_release(naming, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"serviceMonitor": {"enabled": True}, "alerts": {"enabled": True}} | naming))
    (group,) = [rules["spec"]["groups"][0] for rules in of_kind(values, "PrometheusRule")]
    (expr,) = [rule["expr"] for rule in group["rules"] if rule["alert"] == "KafleetTargetDown"]
    (pattern,) = re.findall(r'job=~"([^"]+)"', expr)
    found = jobs(values)
    assert len(found) == 2 and all(re.fullmatch(pattern, job) for job in found.values()), found


def test_dashboard_is_loaded_by_grafana():
    dashboard = one(named("keda"), "ConfigMap", "fleet-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert yaml.safe_load(dashboard["data"]["kafleet.json"])["uid"] == "kafleet"


def jobs(values):
    """Returns the `job` of the targets of each ServiceMonitor, as the Prometheus operator sets it."""
    found = {}
    for monitor in of_kind(values, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        for service in of_kind(values, "Service"):
            labels = service["metadata"]["labels"]
            if matches(wanted, labels):
                # The label that the ServiceMonitor names; without it the name of the Service.
                job = labels.get(monitor["spec"].get("jobLabel")) or service["metadata"]["name"]
                found[service["metadata"]["name"]] = job
    return found
