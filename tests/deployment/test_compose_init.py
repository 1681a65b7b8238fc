"""The compose file of `kafleet init`: Kafka and Redis, whose ports only the machine itself reaches."""

import json

import pytest
from rendering import ROOT, run

TEMPLATE = ROOT / "src/cli/init/templates/shared/compose.yml"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    file = tmp_path_factory.mktemp("project") / "compose.yml"
    file.write_text(TEMPLATE.read_text().replace("{{name}}", "my-shop"))
    done = run("compose-spec", "--format", "json", file)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_images_are_those_of_the_fleet(project):
    done = run("compose-spec", "--no-interpolation", "--no-path-resolution", "--format", "json", ROOT / "docker-compose.yml")
    fleet = json.loads(done.stdout)["services"]
    for name in ["kafka", "redis"]:
        assert project["services"][name]["image"] == fleet[name]["image"]
    assert project["services"]["redis"]["command"] == fleet["redis"]["command"]


def test_roles_on_this_machine_find_kafka_and_redis_without_settings(project):
    assert project["name"] == "my-shop" and sorted(project["services"]) == ["kafka", "redis"]
    variables = project["services"]["kafka"]["environment"]
    assert variables["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://127.0.0.1:9092"


def test_ports_are_published_on_loopback_alone(project):
    ports = [port for service in project["services"].values() for port in service["ports"]]
    assert sorted(port["published"] for port in ports) == ["6379", "9092"]
    assert all(port["host_ip"] == "127.0.0.1" for port in ports)
