"""Attempts and submitted tasks in tests, without a fleet."""

import asyncio
import logging
from dataclasses import dataclass

import pytest

from kafleet import App, Cancelled, Context, Ended, Fail, Joined, Retry, Unavailable, Wait
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
    assert failure and (failure.outcome, failure.message) == ("cancelled", "the attempt was cancelled: timeout")
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
    assert not callable(thumbnail)
    with pytest.raises(Fail):
        raise Fail("x")


def test_progress_bar_leaves_its_last_state_in_the_log() -> None:
    @app.task
    def bar(cx: Context) -> None:
        for n in range(20_000):
            print(f"\r{n} of 20000 {'.' * 60}", end="")
        print("\rready")
        print("x" * 40_000, end="")

    log = trial(bar).log
    assert log[0] == "ready" and [len(line) for line in log[1:]] == [16 << 10]


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
