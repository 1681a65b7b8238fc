"""Attempts and submitted tasks in tests, without a fleet."""

import asyncio
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafleet import App, Cancelled, Context, Ended, Joined, Retry, Unavailable, Wait
from kafleet.testing import recorded, trial

app = App(api="http://127.0.0.1:1")


@dataclass
class Thumb:
    path: str
    width: int


class TooSmall(Exception):
    pass


@app.task(fail_on=[TooSmall, OSError], retry_on=[FileNotFoundError])
def thumbnail(cx: Context, path: str, width: int = 200) -> Thumb:
    print("opening", path)
    logging.getLogger("shop").info("unseen")
    logging.getLogger("shop").warning("seen")
    cx.progress({"width": width})
    if width < 1:
        raise TooSmall("too small")
    if path == "missing":
        raise FileNotFoundError(path)
    if path == "forbidden":
        raise PermissionError(path)
    if path == "busy":
        raise Retry("busy", after="2s", kind="busy")
    if path == "limited":
        raise Wait("limited", after="3s")
    return Thumb(path, width)


@app.task
async def album(cx: Context, folder: str) -> int:
    await asyncio.sleep(0)
    for name in ("a", "b"):
        cx.spawn(thumbnail.using(name=name, delay="5s"), f"{folder}/{name}.jpg")
    cx.then(contact_sheet, title=folder)
    cx.warn("two pictures")
    cx.attach("index.txt", "a\nb", media="text/plain")
    return len(await cx.aspawn_now([thumbnail.call("c.jpg")]))


@app.task
def contact_sheet(cx: Joined[Thumb], title: str) -> str:
    paths = [result.output.path if result.output else f"({result.state})" for result in cx.results]
    return f"{title} of {cx.task.output}: {', '.join(paths)}"


@app.task
def stoppable(cx: Context) -> str:
    cx.check()
    return "not stopped"


@app.task
def parent(cx: Context, value: int) -> list[str]:
    same = [thumbnail.submit("a.jpg").id for _ in range(2)]
    other = thumbnail.using(tags=["x"]).submit("b.jpg").id
    return [*same, other]


@app.task
def waits(cx: Context) -> Thumb:
    return thumbnail.submit("a.jpg").result()


def test_trial_returns_the_converted_result() -> None:
    run = trial(thumbnail, path="a.jpg")
    assert run.output == Thumb("a.jpg", 200)
    assert run.log == ["opening a.jpg", "WARNING shop: seen"]
    assert run.progress == [{"width": 200}]


def test_trial_reports_the_failure() -> None:
    failure = trial(thumbnail, "a.jpg", width=0).failure
    assert failure and (failure.outcome, failure.kind, failure.message) == ("fail", "TooSmall", "too small")
    assert failure.stack and "test_testing.py" in failure.stack and "kafleet/" not in failure.stack
    failure = trial(thumbnail, "busy").failure
    assert failure and (failure.outcome, failure.kind, failure.after_ms) == ("retry", "busy", 2000)
    failure = trial(thumbnail, "limited").failure
    assert failure and (failure.outcome, failure.kind, failure.after_ms) == ("wait", "error", 3000)
    with pytest.raises(AssertionError, match="the attempt failed: busy: busy"):
        _ = trial(thumbnail, "busy").output


def test_nearest_listed_class_of_an_exception_decides() -> None:
    failure = trial(thumbnail, "missing").failure
    assert failure and (failure.outcome, failure.kind) == ("retry", "FileNotFoundError")
    failure = trial(thumbnail, "forbidden").failure
    assert failure and (failure.outcome, failure.kind) == ("fail", "PermissionError")


def test_trial_checks_params_against_the_schema() -> None:
    failure = trial(thumbnail, path="a.jpg", width="wide").failure  # type: ignore[arg-type]
    assert failure and (failure.outcome, failure.kind) == ("dead", "bad_params")
    assert failure.message == "the params do not fit the type: /width: `'wide'` is not an integer"
    with pytest.raises(TypeError, match="`thumbnail`: missing a required argument: 'path'"):
        trial(thumbnail)  # type: ignore[call-arg]


def test_trial_of_an_asynchronous_handler_has_children() -> None:
    run = trial(album, "summer")
    assert run.output == 1
    assert [child["params"] for child in run.children] == [{"path": "c.jpg"}, {"path": "summer/a.jpg"}, {"path": "summer/b.jpg"}]
    assert run.children[1] == {"type": "thumbnail", "params": {"path": "summer/a.jpg"}, "name": "a", "delay": "5s"}
    assert run.then == [{"type": "contact-sheet", "params": {"title": "summer"}, "with_results": True}]
    assert (run.warnings, run.attachments) == (["two pictures"], {"index.txt": b"a\nb"})

    async def main() -> None:
        assert (await trial.atrial(album, "summer")).output == 1

    asyncio.run(main())


def test_trial_of_a_continuation_has_results() -> None:
    lost: Ended[None] = Ended("trial:b", "thumbnail", "failed", None, {"kind": "broken", "message": "broken"})
    run = trial.using(task=Ended("trial", "album", "succeeded", 2), results=[Thumb("a.jpg", 5), lost])(contact_sheet, "summer")
    assert run.output == "summer of 2: a.jpg, (failed)"
    failure = trial.using(results=[{"wrong": 1}])(contact_sheet, "summer").failure
    assert failure and failure.kind == "bad_params"
    with pytest.raises(TypeError, match=r"use `cx.then\(contact_sheet, …\)`"):
        contact_sheet.submit("summer")


def test_trial_can_be_cancelled() -> None:
    failure = trial.using(cancelled="timeout")(stoppable).failure
    assert failure and (failure.outcome, failure.message) == ("cancelled", "the attempt was cancelled: timeout of 60 s")
    assert not issubclass(Cancelled, Exception)
    assert trial(stoppable).output == "not stopped"


def test_recorded_tasks_are_not_created() -> None:
    with recorded() as submitted:
        handle = thumbnail.using(id="cover", tags=["shop"]).submit("a.jpg", width=64)
        app.submit_many(thumbnail.call(name) for name in "bc")
        with pytest.raises(RuntimeError, match="tasks are recorded here"):
            handle.result()
    assert submitted[0] == {"type": "thumbnail", "params": {"path": "a.jpg", "width": 64}, "id": "cover", "tags": ["shop"]}
    assert [task["params"]["path"] for task in submitted[1:]] == ["b", "c"]
    app.client.patience = 0
    with pytest.raises(Unavailable):
        thumbnail.submit("a.jpg")


def test_tasks_submitted_in_an_attempt_have_the_same_ids_in_every_attempt() -> None:
    with recorded():
        first, second = trial(parent, 1).output, trial.using(number=2)(parent, 1).output
        later = trial.using(run=2)(parent, 1).output
    assert first == second and len(set(first)) == 3
    assert not set(first) & set(later)
    with recorded() as submitted:
        ids = [thumbnail.submit("a.jpg").id for _ in range(2)]
    assert len(set(ids)) == 2 and submitted[0]["id"][14] == "7"


def test_attempt_does_not_wait_for_another_task() -> None:
    with recorded():
        failure = trial(waits).failure
    assert failure and "an attempt must not wait for another task" in failure.message and "cx.then" in failure.message


def test_task_without_required_params_needs_no_params() -> None:
    codec = stoppable.compiled
    assert codec.load(None) == codec.load({}) == {}
    assert codec.schema["type"] == ["object", "null"]
    with pytest.raises(ValueError, match="`None` is not an object"):
        thumbnail.compiled.load(None)


def test_task_of_another_program_has_no_trial() -> None:
    with pytest.raises(TypeError, match="`elsewhere` has no handler here"):
        trial(app.remote("elsewhere"))


def test_task_is_not_callable() -> None:
    with pytest.raises(TypeError, match=r"is not called; hint: `submit\(…\)` creates a task, `fn\(…\)` calls the function"):
        thumbnail("a.jpg")  # type: ignore[operator]


def test_progress_bar_leaves_its_last_state_in_the_log() -> None:
    @app.task
    def bar(cx: Context) -> None:
        for n in range(20_000):
            print(f"\r{n} of 20000 {'.' * 60}", end="")
        print("\rready")
        print("x" * 40_000, end="")

    log = trial(bar).log
    assert log[0] == "ready" and [len(line) for line in log[1:]] == [16 << 10]


@pytest.mark.parametrize("value", [5, ["a"], bytearray(b"a"), None])
def test_attachments_are_bytes_or_text(value: Any) -> None:
    @app.task(name=f"attaches-{type(value).__name__.lower()}")
    def attaches(cx: Context) -> None:
        cx.attach("bytes", b"a")
        cx.attach("value", value)

    run = trial(attaches)
    assert run.attachments == {"bytes": b"a"}
    assert run.failure is None
    assert run.log == ["the attachment `value` was dropped: attach takes bytes or str; hint: use json.dumps"]


@pytest.mark.parametrize(
    ("settings", "text", "hint"),
    [
        ("pyproject.toml", "[tool.pytest.ini_options]\n", '`kafleet_target = "tasks.py"` in `[tool.pytest.ini_options]` of `'),
        ("pytest.ini", "[pytest]\n", "`kafleet_target = tasks.py` in `"),
    ],
)
def test_fixture_without_an_app_names_the_missing_setting(settings: str, text: str, hint: str, tmp_path: Path) -> None:
    files = {settings: text, "test_fleet.py": "def test_it(kafleet_fleet): ...\n", "kafleet.toml": "[topics]\nprefix = 'a'\n"}
    code, output = run_pytest(tmp_path, files)
    assert code == 1 and f"hint: set {hint}{tmp_path / settings}`" in output, output
    assert f"or write `[apps.NAME]` in `{tmp_path / 'kafleet.toml'}`" in output


@pytest.mark.parametrize("named", ["target", "file"])
def test_fixture_runs_the_app_of_the_setting_or_of_the_file(named: str, tmp_path: Path) -> None:
    tasks = "from kafleet import App\napp = App()\n@app.task\ndef hello() -> str:\n    return 'hello'\n"
    test = "from tasks import hello\ndef test_it(kafleet_fleet): assert hello.submit().result(60) == 'hello'\n"
    settings = "[pytest]\npythonpath = .\n" + ("kafleet_target = tasks.py\n" if named == "target" else "")
    command = f"command = ['{sys.executable}', '-P', '-m', 'kafleet', 'tasks.py']"
    file = f"[apps.shop]\n{command}\nprocesses = 1\n" if named == "file" else ""
    files = {"pytest.ini": settings, "tasks.py": tasks, "test_fleet.py": test, "kafleet.toml": file}
    code, output = run_pytest(tmp_path, files)
    assert code == 0, output


def test_fixture_runs_the_handlers_in_the_process_of_the_tests(tmp_path: Path) -> None:
    tasks = "from kafleet import App\napp = App()\ndef name(): ...\n@app.task\ndef hello() -> str:\n    return name()\n"
    test = (
        "import pytest, tasks\n"
        "@pytest.fixture\n"
        "def handle(kafleet_fleet, monkeypatch):\n"
        "    monkeypatch.setattr(tasks, 'name', lambda: 'Ada')\n"
        "    return tasks.hello.submit()\n"
        "def test_it(handle): assert handle.result(60) == 'Ada'\n"
    )
    settings = "[pytest]\npythonpath = .\nkafleet_target = tasks.py\nkafleet_in_process = true\n"
    file = f"[apps.shop]\ncommand = ['{sys.executable}', '-P', '-m', 'kafleet', 'tasks.py']\nprocesses = 2\n"
    files = {"pytest.ini": settings, "tasks.py": tasks, "test_fleet.py": test, "kafleet.toml": file}
    code, output = run_pytest(tmp_path, files)
    assert code == 0, output


def run_pytest(folder: Path, files: dict[str, str], *options: str, stdin: str = "") -> tuple[int, str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, input=stdin)
    return done.returncode, done.stdout + done.stderr


def test_output_of_many_megabytes_is_sent_in_pieces() -> None:
    @app.task
    def prints(cx: Context) -> None:
        print("\n".join(["x" * 100] * 100_000))

    @app.task
    def continues(cx: Context) -> None:
        cx.then(thumbnail, "x" * (9 << 20))

    assert len(trial(prints).log) == 100_000
    failure = trial(continues).failure
    assert failure and failure.kind == "bad_child"


DEBUGGED = """
import asyncio
from kafleet import App
from kafleet.testing import trial

app = App()

def helper(n):
    breakpoint()
    return n

@app.task
def sync(n: int) -> int:
    print("before")
    m = helper(n + 1)
    print("after")
    return m

@app.task(name="async")
async def asynchronous(n: int) -> int:
    return sync.fn(n)

def test_it():
    run = RUN
    assert (run.output, run.log) == (2, ["before", "after"]), run.log

if __name__ == "__main__":
    test_it()
    print("passed")
"""
RUNS = ["trial(sync, 1)", "trial(asynchronous, 1)", "trial.tree(sync, 1)", "trial.tree(asynchronous, 1)"]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("how", ["python", "pytest", "pytest -s"])
def test_debugger_works_in_a_trial(run: str, how: str, tmp_path: Path) -> None:
    program = DEBUGGED.replace("RUN", run)
    commands = "p 'n is', n + 40\nup\np 'm in', 'm' in locals()\ncontinue\n"
    if how == "python":
        (tmp_path / "test_it.py").write_text(program)
        command = [sys.executable, "test_it.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, input=commands, timeout=60)
        code, output = done.returncode, done.stdout + done.stderr
        assert "passed" in output, output
    else:
        # With its own capture, pytest takes the streams away once the debugger has been used.
        program = program if how == "pytest -s" else program.replace('["before", "after"])', "run.log)")
        code, output = run_pytest(tmp_path, {"test_it.py": program}, *how.split()[1:], stdin=commands)
    assert code == 0 and "('n is', 42)" in output and "('m in', False)" in output, output


@pytest.mark.parametrize("run", RUNS)
def test_end_of_a_debugger_and_of_a_test_in_a_handler_is_that_of_the_test(run: str, tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, {"test_it.py": DEBUGGED.replace("RUN", run)}, "-s", stdin="quit\n")
    assert code == 2 and "Exit: Quitting debugger" in output, output
    failing = DEBUGGED.replace("RUN", run).replace("breakpoint()", "__import__('pytest').skip('not today')")
    code, output = run_pytest(tmp_path, {"test_it.py": failing})
    assert code == 0 and "1 skipped" in output, output


def test_output_of_a_trial_is_shown(tmp_path: Path) -> None:
    program = DEBUGGED.replace("RUN", "trial(sync, 1)").replace("breakpoint()", "pass")
    code, output = run_pytest(tmp_path, {"test_it.py": program}, "-s")
    assert code == 0 and "before\nafter\n" in output, output
    code, output = run_pytest(tmp_path, {"test_it.py": program.replace('(2, ["before"', '(3, ["before"')})
    assert code == 1 and "Captured stdout call" in output and "before\nafter\n" in output, output


def test_log_of_a_failed_trial_is_in_its_message() -> None:
    with pytest.raises(AssertionError, match=r"the attempt failed: TooSmall: [\s\S]*\n│ opening a.jpg\n│ WARNING shop: seen$"):
        _ = trial(thumbnail, "a.jpg", width=0).output
