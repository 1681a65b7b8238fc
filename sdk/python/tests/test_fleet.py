"""The SDK on a real fleet: what a user of the UI or the client sees."""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driver import APPS, until

from kafleet import Invalid, NotFound, TaskFailed
from kafleet.testing import Fleet, fleet

sys.path.insert(0, str(APPS))
import fleet_app as tasks  # pyright: ignore[reportMissingImports]

PATIENCE = 60.0


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[Fleet]:
    with fleet("fleet_app.py", cwd=APPS) as started:
        yield started


def test_running_attempt_is_cancelled(tmp_path: Path) -> None:
    handle = tasks.waits.submit(tmp_path / "mark")
    until((tmp_path / "mark").exists, "the attempt starts")
    handle.cancel("not needed")
    with pytest.raises(TaskFailed) as failed:
        handle.result(PATIENCE)
    assert failed.value.state == "cancelled"


def test_attempt_is_stopped_at_its_timeout(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed) as failed:
        tasks.waits.using(timeout="200ms").submit(tmp_path / "mark").result(PATIENCE)
    assert (failed.value.state, failed.value.kind) == ("failed", "timeout")


def test_death_of_the_process_uses_one_attempt() -> None:
    handle = tasks.dies_once.submit()
    assert handle.result(PATIENCE) == 2
    assert handle.status()["attempt"] == 2


def test_last_output_of_a_crash_has_no_frames_of_the_sdk() -> None:
    with pytest.raises(TaskFailed) as failed:
        tasks.aborts.submit().result(PATIENCE)
    assert failed.value.kind == "crashed"
    frames = [line.strip() for line in str(failed.value).splitlines() if line.lstrip().startswith("File ")]
    assert any(re.fullmatch(r'File ".*fleet_app\.py", line \d+ in aborts', frame) for frame in frames), frames
    assert not any("/kafleet/" in frame or "<frozen" in frame for frame in frames), frames


def test_retried_attempt_has_the_same_idempotency_key() -> None:
    handle = tasks.retries.submit()
    assert handle.result(PATIENCE) == f"{handle.id}/1"


def test_class_in_retry_on_beats_on_error() -> None:
    assert tasks.retries_listed.submit(listed=True).result(PATIENCE) == 2
    handle = tasks.retries_listed.submit(listed=False)
    with pytest.raises(TaskFailed, match="ended as failed: ValueError: wrong"):
        handle.result(PATIENCE)
    assert handle.status()["attempt"] == 1


def test_result_of_another_type_fails_where_it_is_made() -> None:
    with pytest.raises(TaskFailed, match="bad_output: the result does not fit its type: the value: `'5'` is not an integer"):
        tasks.returns_text.submit().result(PATIENCE)


def test_output_of_the_handler_is_stored_with_the_task() -> None:
    handle = tasks.reports.submit()
    assert handle.result(PATIENCE) is None
    assert handle.status()["progress"] == {"done": 1}


@pytest.mark.parametrize("now", [False, True])
def test_continuation_has_the_results_of_the_children(now: bool) -> None:
    handle = tasks.parent.submit(now=now)
    ids = handle.result(PATIENCE)
    assert ids == ([f"{handle.id}:0", f"{handle.id}:1"] if now else [])
    assert tasks.total.handle(f"{handle.id}:then").result(PATIENCE) == (60 if now else 50)


def test_failure_of_a_child_is_named_as_the_reason() -> None:
    handle = tasks.parent_of_failed.submit()
    with pytest.raises(TaskFailed) as failed:
        handle.result(PATIENCE)
    assert str(failed.value) == (
        f"the task `{handle.id}` ended as failed because of its descendant `{handle.id}:child`: error: no such picture"
    )
    assert (failed.value.state, failed.value.kind, failed.value.descendant) == ("failed", "error", f"{handle.id}:child")
    with pytest.raises(TaskFailed, match="child` ended as failed: error: no such picture"):
        tasks.fails.handle(f"{handle.id}:child").result(PATIENCE)


@pytest.mark.parametrize("task", [tasks.fails, tasks.parent_of_failed], ids=["itself", "below"])
def test_failure_in_a_test_has_the_log_of_the_failed_task(task: Any) -> None:
    handle = task.submit()
    with pytest.raises(TaskFailed) as failed:
        handle.result(PATIENCE)
    id = handle.id if task is tasks.fails else f"{handle.id}:child"
    assert failed.value.__notes__ == [f"log of `{id}`:\n│ looks for a picture"]


def test_fleet_is_empty_after_a_reset(running: Fleet) -> None:
    handle = tasks.leaf.submit(5)
    assert handle.result(PATIENCE) == 5
    api = running.api
    running.reset()
    assert running.api == api
    with pytest.raises(NotFound):
        tasks.leaf.handle(handle.id).status()
    assert tasks.leaf.submit(6).result(PATIENCE) == 6


def test_attempt_can_submit_tasks_of_the_same_fleet() -> None:
    assert tasks.leaf.handle(tasks.submits.submit().result(PATIENCE)).result(PATIENCE) == 5


def test_params_are_checked_when_a_task_is_submitted() -> None:
    with pytest.raises(Invalid) as invalid:
        tasks.app.remote("leaf").submit(n="five")
    assert (invalid.value.code, invalid.value.pointer) == ("schema", "/params/n")
    assert invalid.value.hint == "`app.types()` shows the schema of `leaf`"


def test_results_of_bundled_tasks_are_typed() -> None:
    handle = tasks.resize.using(tags=["shop"]).submit("a.jpg", width=5)
    assert handle.result(PATIENCE) == tasks.Thumb("a.jpg at 5", [tasks.Thumb("a.jpg", [])])
    status = handle.status()
    assert (status["type"], status["name"], status["tags"]) == ("small", "resize", ["resize", "shop"])
    thumbs = [tasks.Thumb("b.jpg", [])]
    assert tasks.copies.submit(thumbs).result(PATIENCE) == thumbs


def test_bundled_continuation_has_the_results_of_bundled_children() -> None:
    handle = tasks.album.submit(["a.jpg", "b.jpg"])
    handle.result(PATIENCE)
    sheet = tasks.contact_sheet.handle(f"{handle.id}:then")
    assert sheet.result(PATIENCE) == "summer, a.jpg at 200, b.jpg at 200"
    assert sheet.status()["name"] == "contact-sheet"


def test_unknown_task_of_a_bundle_waits_for_new_code_and_is_shown() -> None:
    handle = tasks.app.remote("small").submit(task="rezise", params={"path": 5})
    # While the next attempt runs, it has a number.
    waiting = (status for status in handle.watch(PATIENCE) if status["state"] == "retrying")
    status = next(status for status in waiting if status.get("waits", 0) >= 2)
    assert status["error"]
    assert (status["error"]["kind"], status["attempt"]) == ("unknown_task", 0), "the attempts are not counted"
    assert "the bundle `small` has no task `rezise`, but `resize`, `copy-all`, " in status["error"]["message"]
    handle.cancel()


@pytest.mark.parametrize(("key", "kind"), [("", "ZeroDivisionError"), ("two", "KeyError")])
def test_exception_of_the_list_of_a_bundled_task_or_of_its_bundle_is_not_retried(key: str, kind: str) -> None:
    handle = tasks.divides.submit(key)
    with pytest.raises(TaskFailed) as failed:
        handle.result(PATIENCE)
    assert (failed.value.kind, handle.status()["attempt"]) == (kind, 1)


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({"task": "resize", "params": {"path": 5}}, "/params/params/path"),
        ({"task": "copy-all", "params": [{"path": "a", "parts": [{"path": "b"}]}]}, "/params/params/0/parts/0"),
        ({"task": "resize"}, "/params"),
        ({"params": {}}, "/params"),
    ],
)
def test_params_of_a_bundled_task_are_checked_when_it_is_submitted(params: object, pointer: str) -> None:
    with pytest.raises(Invalid) as invalid:
        tasks.app.remote("small").submit(params)
    assert (invalid.value.code, invalid.value.pointer) == ("schema", pointer)


def test_schema_of_a_bundle_of_two_hundred_tasks_is_known_to_the_api() -> None:
    many = tasks.app.remote("many")
    with pytest.raises(Invalid) as invalid:
        many.submit(task="task-199", params={"recipient": "a@example.org", "subject": 1})
    assert invalid.value.pointer == "/params/params/subject"
    params = {"recipient": "a@example.org", "subject": "hello"}
    assert many.submit(task="task-199", params=params).result(PATIENCE) == 199


def test_params_of_a_bundle_that_is_too_large_for_a_declaration_are_checked_by_the_worker() -> None:
    too_many = tasks.app.remote("too-many")
    params = {"recipient": "a@example.org", "subject": 1}
    with pytest.raises(TaskFailed, match="/params/subject") as failed:
        too_many.submit(task="task-799", params=params).result(PATIENCE)
    assert failed.value.kind == "schema"
    assert too_many.submit(task="task-799", params={**params, "subject": "hello"}).result(PATIENCE) == 799


def test_results_of_many_tasks_are_awaited_together() -> None:
    async def main() -> None:
        handles = await asyncio.gather(*(tasks.leaf.asubmit(n) for n in range(30)))
        assert await asyncio.gather(*(handle.aresult(PATIENCE) for handle in handles)) == list(range(30))

    asyncio.run(main())
