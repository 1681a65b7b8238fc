"""Targets, and the messages about apps that cannot be loaded."""

import os
import sys
from pathlib import Path

import pytest
from driver import Worker

from kafleet import App, DeclarationError

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


PROJECT = {
    "shop__app": "from kafleet import App\napp = App(include=['shop.mail'])\n",
    "shop__mail": "from shop.app import app\n@app.task(aliases=['mail'])\ndef send(to: str = '') -> str:\n    return __name__\n",
}


def write_project(folder: Path, **files: str) -> None:
    write(folder, PROJECT | files)
    (folder / "shop/__init__.py").touch()


@pytest.mark.parametrize("target", ["shop/app.py", "shop.app", "shop.app:app"])
def test_included_modules_are_imported_when_the_app_is_served(target: str, tmp_path: Path) -> None:
    write_project(tmp_path)
    with Worker(target, cwd=tmp_path) as worker:
        assert [type["name"] for type in worker.welcome()["types"]] == ["send", "mail"]
        assert worker.run("send")["ok"]["output"] == "shop.mail"
        worker.end()
        assert worker.exit_code() == 0 and worker.output() == ""


def test_module_that_cannot_be_included_is_named_with_the_app(tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "shop/mail.py").unlink()
    message = unable(tmp_path, "shop.app")
    assert f"`shop.mail` in `include` of the app in {tmp_path}/shop/app.py:2: ModuleNotFoundError: No module named" in message
    message = unable(tmp_path, "shop.app", shop__mail="import missing_package\n")
    assert "`shop.mail` in `include`" in message and "-m pip install" in message
    with pytest.raises(TypeError, match=r"hint: write `include=\['shop.mail'\]`"):
        App(include="shop.mail")


def test_second_app_in_a_served_program_is_warned_of(tmp_path: Path) -> None:
    other = "from kafleet import App\nother = App()\n@other.task\ndef lost() -> None: ...\nclient = App()\n"
    write_project(tmp_path, shop__mail=PROJECT["shop__mail"] + "import shop.other\n", shop__other=other)
    with Worker("shop.app", cwd=tmp_path) as worker:
        assert [type["name"] for type in worker.welcome()["types"]] == ["send", "mail"]
        worker.end()
        assert worker.exit_code() == 0
        assert worker.output() == (
            f"warning: tasks of a second `App` do not run: `lost`, in {tmp_path}/shop/other.py:2; served is the app in "
            f"{tmp_path}/shop/app.py:2; hint: use that one: `from shop.app import …`\n"
        )


def test_file_that_is_imported_under_two_names_is_explained(tmp_path: Path) -> None:
    main = "from kafleet import App\napp = App(include=['mail'])\n@app.task\ndef t_a() -> None: ...\n"
    main += "if __name__ == '__main__':\n    app.main()\n"
    write(tmp_path, {"main": main, "mail": "from main import app\n@app.task\ndef send() -> None: ...\n"})
    with Worker("main.py", cwd=tmp_path, module=False, PYTHONPATH=f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}") as worker:
        worker.welcome()
        worker.end()
        assert worker.exit_code() == 0
        output = worker.output()
        assert "do not run: `t-a`, `send`, in " in output
        assert "hint: one file is imported as `__main__` and as `main`: start and import it by one name" in output


def test_earlier_names_of_a_task_run_until_their_backlog_is_gone(tmp_path: Path) -> None:
    tasks = APP + "@app.task(retries=2, aliases=['old', 'older'])\ndef new(n: int) -> list[int]:\n    'Adds.'\n    return [n]\n"
    tasks += "small = app.bundle('small')\n@small.task(aliases=['first'])\ndef second(n: int) -> int:\n    return n\n"
    write(tmp_path, {"tasks": tasks})
    with Worker("tasks.py", cwd=tmp_path) as worker:
        types = {type.pop("name"): type for type in worker.welcome()["types"]}
        assert types["new"] == types["old"] == types["older"] and types["old"]["policy"] == {"retries": 2}
        assert worker.run("older", {"n": 5})["ok"]["output"] == [5]
        assert worker.run("small", {"task": "first", "params": {"n": 6}})["ok"]["output"] == 6


@pytest.mark.parametrize(
    ("aliases", "problem"),
    [("old", r"hint: use `aliases=\['old'\]`"), (["Old"], "`Old` is not a name of a type"), (["new"], "`new` is declared twice")],
)
def test_wrong_alias_is_refused(aliases: list[str], problem: str) -> None:
    def new() -> None: ...

    with pytest.raises(DeclarationError, match=problem):
        App().task(aliases=aliases)(new)
