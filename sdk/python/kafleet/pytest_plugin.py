"""Pytest fixture with a real fleet: `kafleet dev` in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import Fleet


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for the target."""
    parser.addini("kafleet_target", "App that the fixture `kafleet_fleet` runs, such as `tasks.py`", default="")


@pytest.fixture(scope="session")
def kafleet_fleet(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    """A fleet in memory for all tests, with the app of the ini option `kafleet_target`."""
    from .testing import fleet  # Not at the start of every run of pytest.

    target = str(pytestconfig.getini("kafleet_target"))
    if not target:
        pytest.fail(f"`kafleet_fleet` runs no app; hint: set {_setting(pytestconfig)}", pytrace=False)
    with fleet(target, cwd=pytestconfig.rootpath) as running:
        yield running


def _setting(config: pytest.Config) -> str:
    """Returns the missing line as the file with the settings of this run has to contain it."""
    path = config.inipath
    if path and path.suffix != ".toml":
        return f"`kafleet_target = tasks.py` in `{path}`"
    return f'`kafleet_target = "tasks.py"` in `[tool.pytest.ini_options]` of `{path or "pyproject.toml"}`'
