"""The configurations mounted by compose and the chart validate against kafleet's generated schema."""

import json
import tomllib

import jsonschema
import pytest
from rendering import ROOT, VALUES, configs

SCHEMA = ROOT / "schemas/config.json"
pytestmark = pytest.mark.skipif(not SCHEMA.exists(), reason="schemas/config.json is not generated yet")


def check(text):
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(tomllib.loads(text))


@pytest.mark.parametrize("file", ["docker-compose.kafleet.toml", "examples/python/primes/kafleet.toml"])
def test_compose_configuration_is_valid(file):
    check((ROOT / file).read_text())


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_chart_configuration_is_valid(values):
    for config in configs(values):
        check(config["data"]["kafleet.toml"])
