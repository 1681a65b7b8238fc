"""docker-compose.yml: valid, with the right start order and least privileges."""

import json
import re
import shutil
import subprocess
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rendering import ROOT, run

ROLES = ["topics", "tracker", "worker", "api"]


@pytest.fixture(scope="module")
def services():
    done = run("compose-spec", "--no-interpolation", "--no-path-resolution", "--format", "json", ROOT / "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def test_services_are_the_roles_and_their_dependencies(services):
    assert sorted(services) == sorted(["kafka", "redis", *ROLES])
    assert [services[name]["command"] for name in ROLES] == [["topics", "apply"], ["tracker"], ["worker"], ["api"]]


def test_services_start_after_their_dependencies(services):
    def conditions(name):
        return {needed: rule["condition"] for needed, rule in services[name]["depends_on"].items()}

    assert conditions("topics") == {"kafka": "service_healthy"}
    for name in ROLES[1:]:
        assert conditions(name) == {"redis": "service_healthy", "topics": "service_completed_successfully"}
    for name in ["kafka", "redis", *ROLES[1:]]:
        assert services[name]["healthcheck"]["test"], name
    assert "restart" not in services["topics"]


def test_workers_can_be_scaled(services):
    assert "container_name" not in services["worker"] and "ports" not in services["worker"]


def test_ports_are_bound_to_loopback(services):
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert sorted(port["target"] for port in ports) == [8080, 9094]
    assert all(port["host_ip"] == "127.0.0.1" for port in ports)


def test_redis_is_persistent_and_never_evicts(services):
    assert " ".join(services["redis"]["command"]) == "redis-server --appendonly yes --maxmemory-policy noeviction"
    assert services["redis"]["volumes"][0]["target"] == "/data"


def test_containers_have_least_privileges(services):
    for name in ROLES:
        service = services[name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["tmpfs"] == ["/tmp"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(volume["read_only"] for volume in service["volumes"]), name


def test_token_is_required_and_given_to_the_api_only(services):
    assert services["api"]["environment"]["KAFLEET_API_TOKEN"].startswith("${KAFLEET_API_TOKEN:?")
    assert not any("KAFLEET_API_TOKEN" in services[name]["environment"] for name in ["topics", "tracker", "worker"])


def test_mounted_configuration_exists_and_matches(services):
    volume = services["worker"]["volumes"][0]
    source = re.fullmatch(r"\$\{KAFLEET_FILE:-(.+)\}", volume["source"]).group(1)
    config = tomllib.loads((ROOT / source).read_text())
    assert volume["target"] == "/etc/kafleet/kafleet.toml"
    assert [token["token"] for token in config["api"]["tokens"]] == ["${KAFLEET_API_TOKEN}"]
    assert seconds(services["worker"]["stop_grace_period"]) >= seconds(config["worker"]["drain_timeout"]) + 10


def test_containers_listen_on_all_interfaces(services):
    for name in ROLES:
        environment = services[name]["environment"]
        assert environment["KAFLEET_API_LISTEN"] == "0.0.0.0:8080" and environment["KAFLEET_OPS_LISTEN"] == "0.0.0.0:9464"


@pytest.mark.parametrize("service, port", [("worker", 9464), ("tracker", 9464), ("api", 8080)])
@pytest.mark.parametrize("status, healthy", [(200, True), (503, False), (None, False)])
def test_health_check_follows_readiness(services, service, port, status, healthy):
    command = [part.replace("$$", "$") for part in services[service]["healthcheck"]["test"]]
    assert command[:3] == ["CMD", "bash", "-c"] and f"/{port}" in command[3]
    with ReadyzServer(status) as free_port:
        script = command[3].replace(f"/{port}", f"/{free_port}")
        assert (subprocess.run(["bash", "-c", script], capture_output=True, timeout=120).returncode == 0) is healthy


@pytest.mark.skipif(
    not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="docker compose is not installed; the file has been checked by compose-spec",
)
def test_docker_compose_accepts_the_file(monkeypatch):
    monkeypatch.setenv("KAFLEET_API_TOKEN", "0123456789abcdef")
    done = run("docker", "compose", "--file", ROOT / "docker-compose.yml", "config", "--quiet")
    assert done.returncode == 0, done.stderr


class ReadyzServer:
    """A server that answers /readyz with a status; without a status, a closed port."""

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
