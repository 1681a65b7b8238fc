"""Schedules that are declared in code."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driver import Worker

from kafleet import App, DeclarationError, Params, Unavailable
from kafleet.schedules import KINDS

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
        (decorated("@daily", catchup="1h"), "`catchup` is not a key of a schedule; hint: did you mean `catch_up`"),
        (decorated(every=60), 'is not a duration; hint: write "30s"'),
        (decorated("@daily"), "missing a required argument: 'kind'; hint: use `params="),
        (decorated("@daily", params={"kind": 5}), "`report` does not take these params: /kind: `5` is not a string"),
        (decorated("@daily", params={"kind": "a"}, id="a:b"), '`a:b` is not a name of a schedule: .*hint: use `id="…"`'),
        (decorated("@daily", params={"kind": "a"}, start_at=datetime(2026, 1, 1)), "is not a time with a time zone"),
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


def _schedule(*given: Any, **spec: Any) -> Any:
    schedule: Any = App().schedule
    return schedule(*given, **spec)


UNREACHABLE = "http://127.0.0.1:9"
PLACES: dict[str, Any] = {
    "decorator": lambda spec: _schedule(**spec)(print),
    "dict": lambda spec: _schedule({**spec, "task": {"type": "a"}}),
    "upsert": lambda spec: App(api=UNREACHABLE).schedules.upsert("a", **spec, task={"type": "a"}),
}
"""Places where the keys of a schedule are written."""
CRON = {"cron": "0 3 * * *"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cron": "bad cron"}, "`bad cron` is not a cron expression: five fields, or six .*hint: .0 3 "),
    ({"cron": "@dayly"}, "`@dayly` is not a cron expression"),
    ({"cron": 5}, "`cron=5` is not text"),
    ({"every": "soon"}, "`every='soon'` is not a duration of 0 or more; hint: \"30s\""),
    ({"every": "5"}, "`every='5'` is not a duration of 0 or more"),
    ({"every": 5}, "`every=5` is not a duration"),
    ({"every": "1500ms"}, "`every='1500ms'` is not a number of whole seconds from 1"),
    ({"every": "0s"}, "`every='0s'` is not a number of whole seconds from 1"),
    ({"every": "1h", "zone": "Europe/Berlin"}, "`zone` is for a cron expression"),
    ({**CRON, "zone": 1}, "`zone=1` is not text"),
    ({**CRON, "zone": "UTC", "timezone": "UTC"}, "has `zone` and `timezone`"),
    ({**CRON, "overlap": "never"}, "`overlap='never'` is not one of `skip`, `allow`, `buffer_one`, `replace`"),
    ({**CRON, "catch_up": "1 week"}, "`catch_up='1 week'` is not a duration"),
    ({**CRON, "jitter": timedelta(seconds=-1)}, "`jitter=.*` is not a duration of 0 or more"),
    ({**CRON, "start_at": "tomorrow"}, "`start_at='tomorrow'` is not a time with a time zone"),
    ({**CRON, "end_at": datetime(2026, 1, 1)}, "`end_at=.*` is not a time with a time zone; hint: `datetime.now"),
    ({**CRON, "crn": "@daily"}, "`crn` is not a key of a schedule; hint: did you mean `cron`"),
    ({**CRON, "tz": "UTC"}, '`tz` is not a key of a schedule; hint: `zone="Europe/Berlin"`'),
    ({}, "needs either a cron expression or `every`"),
    ({**CRON, "every": "1h"}, "needs either a cron expression or `every`"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("spec", "problem"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_wrong_key_or_value_is_refused_where_it_is_written(place: str, spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        PLACES[place](spec)


def test_each_key_has_a_wrong_value_in_the_table() -> None:
    assert {key for spec, _ in WRONG for key in spec} >= KINDS.keys() - {"id", "task"}


def test_each_key_is_taken_in_each_place() -> None:
    right = {"zone": "Europe/Berlin", "overlap": "allow", "catch_up": "1h", "jitter": timedelta(seconds=1)}
    times = {"start_at": datetime.now(UTC), "end_at": "2030-01-01T00:00Z"}
    for spec in ({**CRON, **right, **times}, {"every": timedelta(minutes=1)}):
        for place in ("decorator", "dict"):
            PLACES[place](spec)
        with pytest.raises(Unavailable):
            PLACES["upsert"](spec)


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (print, "`print`, of the type `builtin_function_or_method`, is not a task"),
        ({"params": 1}, "the `task` of the schedule has no `type`"),
        (5, "`5`, of the type `int`, is not a task"),
    ],
)
def test_wrong_task_of_a_schedule_is_refused_before_a_request(task: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        App(api=UNREACHABLE).schedules.upsert("a", cron="@daily", task=task)


def test_wrong_params_of_a_scheduled_task_are_refused_before_a_request() -> None:
    app = App(api=UNREACHABLE)
    with pytest.raises(TypeError, match="`report` does not take these params: /kind: `5` is not a string"):
        app.schedules.upsert("a", cron="@daily", task=task(app).call(5))


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
