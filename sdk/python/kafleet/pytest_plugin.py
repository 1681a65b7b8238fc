"""Pytest fixture with a real fleet: `kafleet dev` in a process of its own."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import Fleet


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the fixture."""
    parser.addini("kafleet_target", "App that the fixture `kafleet_fleet` runs, such as `tasks.py`", default="")
    parser.addini("kafleet_in_process", "Run the handlers of this app in the process of the tests", type="bool", default=False)


@pytest.fixture(scope="session")
def kafleet_fleet(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    """A fleet in memory for all tests: with the app of the ini option `kafleet_target`, else those of kafleet.toml."""
    from .testing import fleet  # Not at the start of every run of pytest.

    target = str(pytestconfig.getini("kafleet_target"))
    if not target and not _has_apps(pytestconfig.rootpath):
        hint = f"hint: set {_setting(pytestconfig)}, or write `[apps.NAME]` in `{pytestconfig.rootpath / 'kafleet.toml'}`"
        pytest.fail(f"`kafleet_fleet` runs no app; {hint}", pytrace=False)
    in_process = bool(pytestconfig.getini("kafleet_in_process"))
    with fleet(target, cwd=pytestconfig.rootpath, in_process=in_process) as running:
        yield running


def _has_apps(folder: Path) -> bool:
    """Returns whether `kafleet dev` without a target runs apps in a folder. An invalid file is left to it."""
    file = folder / (os.environ.get("KAFLEET_CONFIG") or "kafleet.toml")
    try:
        return bool(tomllib.loads(file.read_text()).get("apps"))
    except ValueError:
        return True
    except OSError:
        return False


def _setting(config: pytest.Config) -> str:
    """Returns the missing line as the file with the settings of this run has to contain it."""
    path = config.inipath
    if path and path.suffix != ".toml":
        return f"`kafleet_target = tasks.py` in `{path}`"
    return f'`kafleet_target = "tasks.py"` in `[tool.pytest.ini_options]` of `{path or "pyproject.toml"}`'
