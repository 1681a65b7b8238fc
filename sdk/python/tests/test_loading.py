"""Targets, and the messages about apps that cannot be loaded."""

import sys
from pathlib import Path

import pytest
from driver import Worker

POSTPONED = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
"""Makes annotations lazy, as they are since Python 3.14."""
APP = "from kafleet import App\napp = App()\n"
TASK = "@app.task\ndef t_a() -> str:\n    return __name__\n"


def unable(folder: Path, target: str = "tasks.py", **files: str) -> str:
    write(folder, files)
    with Worker(target, cwd=folder) as worker:
        worker.send_welcome()
        message = worker.receive()
        assert message and message.keys() == {"unable"}, message
        assert worker.exit_code() == 0
        return str(message["unable"]["message"])


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("tasks.py", "tasks"),
        ("shop/jobs.py", "shop.jobs"),
        ("shop.jobs", "shop.jobs"),
        ("shop.jobs:app", "shop.jobs"),
        ("./tasks.py", "tasks"),
    ],
)
def test_target_is_a_file_or_a_module(target: str, name: str, tmp_path: Path) -> None:
    write(tmp_path, {"tasks": APP + TASK, "shop__jobs": APP + TASK})
    (tmp_path / "shop/__init__.py").touch()
    with Worker(target, cwd=tmp_path) as worker:
        worker.welcome()
        assert worker.run("t-a")["ok"]["output"] == name


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert unable(tmp_path) == f"`tasks.py` is not a file; hint: the app was started in `{tmp_path}`; set `cwd`"
    assert "No module named 'shop'" in unable(tmp_path, "shop.tasks")


def test_missing_package_is_named_with_the_python(tmp_path: Path) -> None:
    message = unable(tmp_path, tasks="import flask_nowhere\n")
    assert "No module named 'flask_nowhere'" in message and "-m pip install" in message
    assert 'File "' in message and "importlib" not in message


def test_syntax_error_is_shown_with_its_line(tmp_path: Path) -> None:
    message = unable(tmp_path, tasks="app = App(\n\ndef f(:\n")
    assert "SyntaxError" in message and "tasks.py" in message and "line " in message


def test_error_at_import_is_shown_without_frames_of_the_sdk(tmp_path: Path) -> None:
    message = unable(tmp_path, tasks="def load():\n    raise KeyError('DATABASE')\nload()\n")
    assert message.endswith("KeyError: 'DATABASE'") and "line 3" in message and "kafleet/loading.py" not in message
    assert "SystemExit: 3" in unable(tmp_path, tasks="import sys\nsys.exit(3)\n")


def test_app_is_found_or_the_remedy_is_named(tmp_path: Path) -> None:
    assert "has no `App`; hint: write `app = App()`" in unable(tmp_path, tasks="x = 1\n")
    assert "declares no task types" in unable(tmp_path, tasks=APP)
    two = "from kafleet import App\none, two = App(), App()\n"
    assert "several apps (`one`, `two`); hint: name one: `tasks:one`" in unable(tmp_path, tasks=two)
    assert "`three` in `tasks` is not an `App`" in unable(tmp_path, "tasks:three", tasks=two)


def test_file_with_the_name_of_another_module_is_refused(tmp_path: Path) -> None:
    assert "has the name of the module" in unable(tmp_path, "json.py", json=APP + TASK)
    (tmp_path / "my-tasks.py").write_text(APP)
    assert "`my-tasks` is not a module name; hint: rename the file" in unable(tmp_path, "my-tasks.py")


def test_file_with_the_name_of_a_standard_module_does_no_harm(tmp_path: Path) -> None:
    harm = "raise ImportError('not the standard module')"
    tasks = "import calendar, queue, textwrap, helper, pytest\n" + APP
    tasks += "@app.task\ndef t_a() -> list[str]:\n    return [helper.NAME, pytest.NAME, calendar.day_name[0]]\n"
    own = {"helper": "NAME = 'helper'", "pytest": "NAME = 'own pytest'"}
    write(tmp_path, {"tasks": tasks, "calendar": harm, "queue": harm, "textwrap": harm, **own})
    for target in ("tasks.py", "tasks"):
        with Worker(target, cwd=tmp_path) as worker:
            worker.welcome()
            assert worker.run("t-a")["ok"]["output"] == ["helper", "own pytest", "Monday"]


def test_wrong_declaration_is_shown(tmp_path: Path) -> None:
    message = unable(tmp_path, tasks=APP + "@app.task\ndef f(path) -> None: ...\n")
    assert "tasks.py:3: the parameter `path` of `f` has no annotation" in message
    message = unable(tmp_path, tasks=POSTPONED + APP + "@app.task\ndef f(path: Missing) -> None: ...\n")
    assert "an annotation of `f` cannot be resolved: name 'Missing' is not defined" in message


def test_annotation_may_name_a_class_that_is_defined_further_down(tmp_path: Path) -> None:
    tasks = POSTPONED + "from dataclasses import dataclass\nfrom kafleet import Context\n" + APP
    tasks += "@app.task\ndef t_a(cx: Context, size: Size | None) -> Size | None:\n    return size\n"
    tasks += "@dataclass\nclass Size:\n    width: int\n"
    write(tmp_path, {"tasks": tasks})
    with Worker("tasks.py", cwd=tmp_path) as worker:
        (declared,) = worker.welcome()["types"]
        assert declared["params"]["$defs"]["Size"]["properties"] == {"width": {"type": "integer"}}
        assert worker.run("t-a", {"size": {"width": 3}})["ok"]["output"] == {"width": 3}


def test_worker_that_speaks_no_known_version_is_refused() -> None:
    with Worker() as worker:
        worker.send_welcome(protocol=0)
        message = worker.receive()
        assert message and "version 0 of the app protocol" in message["unable"]["message"]
