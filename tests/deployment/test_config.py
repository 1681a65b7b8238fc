"""What compose and the chart mount is a configuration that kafleet reads: it fits the schema generated from its types."""

import json
import tomllib

import jsonschema
import pytest
from rendering import ROOT, VALUES, of_kind

SCHEMA = ROOT / "schemas/config.json"
pytestmark = pytest.mark.skipif(not SCHEMA.exists(), reason="schemas/config.json is not generated yet")


def check(text):
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(tomllib.loads(text))


def test_of_compose():
    check((ROOT / "docker-compose.kafleet.toml").read_text())


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_of_the_chart(values):
    for config in of_kind(values, "ConfigMap"):
        check(config["data"]["kafleet.toml"])
