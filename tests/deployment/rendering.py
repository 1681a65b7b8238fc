"""Rendering of the chart, and queries on the rendered objects."""

import subprocess
from functools import cache
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CHART = ROOT / "helm/kafleet"
# The oldest version that the chart supports, and the newest one with schemas in kubernetes_validate.
KUBERNETES = ["1.30", "1.37"]
VALUES = sorted((HERE / "values").glob("*.yaml"))
REFUSED = sorted((HERE / "refused").glob("*.yaml"))


class StrictLoader(yaml.SafeLoader):
    """Rejects duplicate keys, of which YAML would silently drop one."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        duplicates = {key for key in keys if keys.count(key) > 1}
        assert not duplicates, f"duplicate keys at line {node.start_mark.line + 1}: {duplicates}"
        return super().construct_mapping(node, deep)


def run(*command, cwd=ROOT):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, cwd=cwd)


def template(values, version=KUBERNETES[-1]):
    return run("helm", "template", "demo", CHART, "--namespace", "jobs", "--kube-version", version, "--values", values)


@cache
def objects(values, version=KUBERNETES[-1]):
    done = template(values, version)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, StrictLoader) if document]


def named(name):
    return HERE / "values" / f"{name}.yaml"


def of_kind(values, *kinds):
    return [document for document in objects(values) if document["kind"] in kinds]


def configs(values):
    """The ConfigMaps with the configuration of roles."""
    return [config for config in of_kind(values, "ConfigMap") if "kafleet.toml" in config["data"]]


def one(values, kind, name):
    found = [document for document in of_kind(values, kind) if document["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def pod_specs(values):
    """Yields (name, labels, spec) of each pod template and pod."""
    for document in of_kind(values, "Deployment", "Job"):
        template = document["spec"]["template"]
        yield document["metadata"]["name"], template["metadata"]["labels"], template["spec"]
    for document in of_kind(values, "Pod"):
        yield document["metadata"]["name"], document["metadata"]["labels"], document["spec"]


def matches(selector, labels):
    return selector.items() <= labels.items()
