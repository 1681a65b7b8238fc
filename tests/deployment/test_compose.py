"""docker-compose.yml: it fits the specification, starts in the right order, and gives its containers no more than they need."""

import json
import re
import shutil
import subprocess
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rendering import ROOT, run

OURS = ["topics", "tracker", "worker", "api"]


@pytest.fixture(scope="module")
def services():
    done = run("compose-spec", "--no-interpolation", "--no-path-resolution", "--format", "json", ROOT / "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def test_the_services_are_the_roles_and_what_they_need(services):
    assert sorted(services) == sorted(["kafka", "redis", *OURS])
    assert [services[name]["command"] for name in OURS] == [["topics", "apply"], ["tracker"], ["worker"], ["api"]]


def test_what_a_service_needs_is_healthy_or_done_before_it_starts(services):
    def conditions(name):
        return {needed: rule["condition"] for needed, rule in services[name]["depends_on"].items()}

    assert conditions("topics") == {"kafka": "service_healthy"}
    for name in OURS[1:]:
        assert conditions(name) == {"redis": "service_healthy", "topics": "service_completed_successfully"}
    for name in ["kafka", "redis", *OURS[1:]]:
        assert services[name]["healthcheck"]["test"], name
    assert "restart" not in services["topics"]


def test_workers_can_be_scaled(services):
    assert "container_name" not in services["worker"] and "ports" not in services["worker"]


def test_ports_are_open_on_this_machine_only(services):
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert sorted(port["target"] for port in ports) == [8080, 9094]
    assert all(port["host_ip"] == "127.0.0.1" for port in ports)


def test_redis_keeps_everything(services):
    assert " ".join(services["redis"]["command"]) == "redis-server --appendonly yes --maxmemory-policy noeviction"
    assert services["redis"]["volumes"][0]["target"] == "/data"


def test_our_containers_have_no_rights_to_spare(services):
    for name in OURS:
        service = services[name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["tmpfs"] == ["/tmp"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(volume["read_only"] for volume in service["volumes"]), name


def test_the_token_has_to_be_given_and_only_the_api_has_it(services):
    assert services["api"]["environment"]["KAFLEET_API_TOKEN"].startswith("${KAFLEET_API_TOKEN:?")
    assert not any("KAFLEET_API_TOKEN" in services[name]["environment"] for name in ["topics", "tracker", "worker"])


def test_the_mounted_configuration_is_there_and_fits(services):
    volume = services["worker"]["volumes"][0]
    source = re.fullmatch(r"\$\{KAFLEET_FILE:-(.+)\}", volume["source"]).group(1)
    config = tomllib.loads((ROOT / source).read_text())
    assert volume["target"] == "/etc/kafleet/kafleet.toml"
    assert [token["token"] for token in config["api"]["tokens"]] == ["${KAFLEET_API_TOKEN}"]
    assert seconds(services["worker"]["stop_grace_period"]) >= seconds(config["worker"]["drain_timeout"]) + 10


def test_containers_listen_where_others_reach_them(services):
    for name in OURS:
        environment = services[name]["environment"]
        assert environment["KAFLEET_API_LISTEN"] == "0.0.0.0:8080" and environment["KAFLEET_OPS_LISTEN"] == "0.0.0.0:9464"


@pytest.mark.parametrize("service, port", [("worker", 9464), ("tracker", 9464), ("api", 8080)])
@pytest.mark.parametrize("status, healthy", [(200, True), (503, False), (None, False)])
def test_the_health_check_tells_ready_from_not_ready(services, service, port, status, healthy):
    command = [part.replace("$$", "$") for part in services[service]["healthcheck"]["test"]]
    assert command[:3] == ["CMD", "bash", "-c"] and f"/{port}" in command[3]
    with answering(status) as here:
        script = command[3].replace(f"/{port}", f"/{here}")
        assert (subprocess.run(["bash", "-c", script], capture_output=True, timeout=120).returncode == 0) is healthy


@pytest.mark.skipif(
    not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="docker compose is not on this machine; the specification's own checker has read the file",
)
def test_docker_compose_agrees(monkeypatch):
    monkeypatch.setenv("KAFLEET_API_TOKEN", "0123456789abcdef")
    done = run("docker", "compose", "--file", ROOT / "docker-compose.yml", "config", "--quiet")
    assert done.returncode == 0, done.stderr


class answering:
    """A server on a free port that answers /readyz with a status; without one, a port where nobody listens."""

    def __init__(self, status):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status if self.path == "/readyz" else 404)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server.server_bind()
        self.listens = status is not None

    def __enter__(self):
        port = self.server.server_address[1]
        if self.listens:
            self.server.server_activate()
            threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return port

    def __exit__(self, *_):
        if self.listens:
            self.server.shutdown()
        self.server.server_close()


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)(?:0s)?", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]
