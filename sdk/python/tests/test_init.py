"""The project of `kafleet init python`: its app serves, its tests pass, and it is clean under ruff and mypy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driver import PATIENCE

from kafleet.testing import fleet


def run(folder: Path, *command: str) -> str:
    """Runs a command in a folder and returns its output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def kafleet(folder: Path, *words: str) -> str:
    return run(folder, os.environ["KAFLEET_BINARY"], *words)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A new project with the packages of these tests in the place of its own virtual environment."""
    kafleet(tmp_path, "init", "python", "my-shop")
    folder = tmp_path / "my-shop"
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def test_app_of_a_new_project_runs_a_task(project: Path) -> None:
    types = [line.split()[:2] for line in kafleet(project, "app", "check").splitlines()[1:]]
    assert types == [["my-shop", name] for name in ("order", "pack", "receipt", "report")]
    with fleet(cwd=project):  # Starts what kafleet.toml names.
        order = kafleet(project, "submit", "order", '{"customer": "ada", "items": ["tea"]}', "--wait", "-o", "json")
    assert (json.loads(order)["state"], json.loads(order)["result"]) == ("succeeded", 1)


def test_tests_of_a_new_project_pass(project: Path) -> None:
    output = run(project, sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    assert "5 passed" in output, output


def test_code_of_a_new_project_is_clean(project: Path) -> None:
    sources = ["tasks.py", "tests"]
    run(project, sys.executable, "-m", "ruff", "format", "--isolated", "--check", *sources)
    run(project, sys.executable, "-m", "ruff", "check", "--isolated", "--extend-select", "I,B,UP,SIM,RET,PT", *sources)
    run(project, sys.executable, "-m", "mypy", "--strict", *sources)
