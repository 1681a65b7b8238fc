"""Schedules that are declared in code."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driver import Worker

from kafleet import App, DeclarationError, Params

TASKS = """
from datetime import timedelta
from kafleet import App

app = App()

@app.schedule("0 3 * * *", zone="Europe/Berlin")
@app.task
def report(kind: str = "daily") -> None: ...

@app.task
@app.schedule(every=timedelta(hours=1), id="often", params={"n": 5}, overlap="allow")
def count(n: int) -> None: ...

app.schedule({"cron": "@weekly", "id": "weekly", "task": report.using(tags=["x"], expires="1h").call("weekly")})
app.schedule("remote", {"every": "10m", "task": {"type": "elsewhere", "params": [1]}})
"""
REPORT = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task": {"type": "report", "params": {}}}
OFTEN = {"every": "3600000ms", "overlap": "allow", "task": {"type": "count", "params": {"n": 5}}}
WEEKLY = {"cron": "@weekly", "task": {"type": "report", "params": {"kind": "weekly"}, "tags": ["x"], "expires": "1h"}}
REMOTE = {"every": "10m", "task": {"type": "elsewhere", "params": [1]}}


@pytest.mark.parametrize(
    ("types", "schedules"),
    [
        (None, {"report": REPORT, "often": OFTEN, "weekly": WEEKLY, "remote": REMOTE}),
        (["count"], {"often": OFTEN, "remote": REMOTE}),
    ],
)
def test_schedules_are_declared_with_the_types_that_a_process_serves(types: Any, schedules: Any, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    with Worker("tasks.py", cwd=tmp_path) as worker:
        ready = worker.welcome(**({"types": types} if types else {}))
        assert ready["schedules"] == schedules


def test_app_without_schedules_declares_none() -> None:
    with Worker() as worker:
        assert "schedules" not in worker.welcome()


def test_fitting_schema_of_the_configuration() -> None:
    """The keys of the decorator are those of `[schedules.NAME]`."""
    from kafleet.schedules import ScheduleSpec

    schema = json.loads((Path(__file__).parents[3] / "schemas/openapi.json").read_text())
    assert ScheduleSpec.__annotations__.keys() - {"id"} == schema["components"]["schemas"]["ScheduleSpec"]["properties"].keys()


def test_name_and_form_of_a_bundled_task() -> None:
    app = App()
    small = app.bundle("small")

    @app.schedule("@daily", params=["a"])
    @small.task
    def clean(names: Params[list[str]]) -> None: ...

    task = {"type": "small", "params": {"task": "clean", "params": ["a"]}, "name": "clean", "tags": ["clean"]}
    assert app.schedule.resolve(app.tasks) == {"clean": {"cron": "@daily", "task": task}}


def task(app: App) -> Any:
    @app.task
    def report(kind: str) -> None: ...

    return report


def decorated(*given: Any, **named: Any) -> Any:
    return lambda app: app.schedule(*given, **named)(task(app))


def lost(app: App) -> None:
    @app.schedule("@daily")
    def function() -> None: ...


def twice(app: App) -> None:
    for _ in range(2):
        app.schedule("@daily", params={"kind": "a"})(task(app) if not app.tasks else app.tasks["report"])


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (decorated(), "needs either a cron expression or `every`"),
        (decorated("@daily", every="1h"), "needs either a cron expression or `every`"),
        (decorated("@daily", tz="UTC"), "`tz` is not a key of a schedule"),
        (decorated("@daily", catchup="1h"), "`catchup` is not a key of a schedule; hint: use `catch_up`"),
        (decorated(every=60), 'is not a duration; hint: write "30s"'),
        (decorated("@daily"), "missing a required argument: 'kind'; hint: use `params="),
        (decorated("@daily", params={"kind": 5}), "do not fit `report`: /kind: `5` is not a string"),
        (decorated("@daily", params={"kind": "a"}, id="a:b"), '`a:b` is not a name of a schedule: .*hint: use `id="…"`'),
        (decorated("@daily", params={"kind": "a"}, start_at=datetime(2026, 1, 1)), "has no time zone"),
        (lambda app: app.schedule(task(app)), "a schedule is a cron expression, or a dict"),
        (lambda app: app.schedule({"cron": "@daily"}), "the schedule has no `task`"),
        (
            lambda app: app.schedule("a", {"cron": "@daily", "task": task(app).using(delay="1s").call("a")}),
            "`delay` is not an option",
        ),
        (lost, "`function` has a schedule, but is no task of this app"),
        (twice, "the schedule `report` is declared twice, first in .*test_schedules.py"),
    ],
)
def test_wrong_schedule_is_refused_with_its_place(declare: Any, problem: str) -> None:
    app = App()

    def declare_and_serve() -> None:
        declare(app)
        app.schedule.resolve(app.tasks)

    with pytest.raises(DeclarationError, match=rf"test_schedules.py:\d+: .*{problem}"):
        declare_and_serve()


def test_times_and_durations_are_written_as_the_worker_reads_them() -> None:
    app = App()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    app.schedule({"cron": "@daily", "start_at": start, "jitter": timedelta(seconds=1), "task": task(app).call("a")})
    assert app.schedule.resolve(app.tasks)["report"]["jitter"] == "1000ms"


def test_wrong_schedule_is_the_reason_of_an_app_that_does_not_serve(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS + "app.schedule('@daily')(print)\n")
    with Worker("tasks.py", cwd=tmp_path) as worker:
        worker.send_welcome()
        message = worker.receive()
        assert (
            message
            and "`print` has a schedule, but is no task of this app; hint: use `@app.task` for" in message["unable"]["message"]
        )
