"""The compose file of the web app in `examples/python/primes`: the fleet of docker-compose.yml with an app, and one more service."""

import json
import re
import tomllib

import pytest
from rendering import ROOT, run

FOLDER = ROOT / "examples/python/primes"
OWN = "kafleet.toml"


def loaded(file):
    # The program takes paths in the file as relative to its folder.
    done = run("compose-spec", "--no-interpolation", "--format", "json", file, cwd=file.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def services():
    return loaded(FOLDER / "compose.yml")["services"]


@pytest.fixture(scope="module")
def dockerfile():
    return (FOLDER / "Dockerfile").read_text()


def test_services_are_those_of_the_fleet_and_the_web_app(services):
    fleet = loaded(ROOT / "docker-compose.yml")["services"]
    assert sorted(services) == sorted([*fleet, "web"])
    for name, service in fleet.items():
        for key in ["command", "healthcheck", "depends_on", "ports", "read_only", "cap_drop", "security_opt"]:
            assert services[name].get(key) == service.get(key), f"{name}: {key}"


def test_services_that_start_the_app_have_its_image(services):
    images = {name: service["image"] for name, service in services.items() if "kafleet" in service["image"] or "primes" in service["image"]}
    kafleet = "kafleet:${KAFLEET_VERSION:-latest}"
    assert images == {"topics": "primes", "worker": "primes", "web": "primes", "tracker": kafleet, "api": kafleet}


def test_image_is_built_from_the_files_of_the_example_and_the_sdk(services, dockerfile):
    build = services["topics"]["build"]
    assert build["context"] == str(FOLDER) and build["additional_contexts"] == {"sdk": str(ROOT / "sdk/python")}
    assert [name for name, service in services.items() if "build" in service] == ["topics"]
    (copied,) = re.findall(r"^COPY (.*)$", dockerfile, re.M)
    *files, target = copied.split()
    assert all((FOLDER / name).is_file() for name in files) and target == "/srv/primes/"
    assert re.findall(r"^USER (.*)$", dockerfile, re.M)[-1] == "65532:65532"


def test_commands_name_the_files_of_the_image(services, dockerfile):
    app = tomllib.loads((FOLDER / OWN).read_text())["apps"]["primes"]
    python = "/srv/.venv/bin/python"
    assert f"{python[:-7]}/pip install" in dockerfile
    assert app == {"command": [python, "-P", "-m", "kafleet", "primes.tasks"], "cwd": "/srv"}
    assert services["web"]["entrypoint"] == [python, "-m", "primes.web"] and services["web"]["working_dir"] == "/srv"


def test_all_roles_read_the_configuration_of_the_example(services):
    for name in ["topics", "tracker", "worker", "api"]:
        (mounted,) = services[name]["volumes"]
        assert (mounted["source"], mounted["target"]) == (str(FOLDER / OWN), "/etc/kafleet/kafleet.toml"), name
        assert mounted["read_only"], name


def test_tokens_reach_only_the_services_that_need_them(services):
    holders = {}
    for name, service in services.items():
        # A list where an extended service adds variables, otherwise a mapping.
        variables = [variable.partition("=")[0] for variable in service.get("environment", [])]
        holders |= {name: tokens} if (tokens := sorted(key for key in variables if "TOKEN" in key)) else {}
    assert holders == {"api": ["KAFLEET_API_TOKEN", "KAFLEET_WEB_TOKEN"], "web": ["KAFLEET_TOKEN"]}
    assert services["web"]["environment"]["KAFLEET_TOKEN"].startswith("${KAFLEET_WEB_TOKEN:?")


def test_web_app_is_published_on_loopback_and_has_least_privileges(services):
    web = services["web"]
    assert [(port["host_ip"], port["target"], port["published"]) for port in web["ports"]] == [("127.0.0.1", 8000, "8000")]
    assert web["environment"]["LISTEN"] == "0.0.0.0:8000" and web["environment"]["KAFLEET_API"] == "http://api:8080"
    assert web["read_only"] and web["cap_drop"] == ["ALL"] and web["security_opt"] == ["no-new-privileges:true"]
    assert web["depends_on"]["api"]["condition"] == "service_healthy"
