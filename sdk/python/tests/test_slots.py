"""Synchronous and asynchronous handlers side by side in one process."""

from pathlib import Path

import pytest
from driver import Message, Worker

from kafleet import App, DeclarationError

APP = "both.py"


def kinds(ready: Message) -> dict[str, bool]:
    return {type["name"]: type["sync"] for type in ready["types"] if "sync" in type}


def test_both_kinds_are_declared_with_places_of_their_own() -> None:
    with Worker(APP) as worker:
        ready = worker.welcome()
        assert (ready["slots"], ready["threads"]) == (10, 1)
        assert kinds(ready) == {"hang": True, "together": False, "parent": True}
    with Worker(APP, TEST_THREADS="3") as worker:
        ready = worker.welcome(slots=4)
        assert (ready["slots"], ready["threads"]) == (4, 3)


@pytest.mark.parametrize(("types", "slots"), [(["together"], 10), (["hang", "parent"], 1)], ids=["async", "sync"])
def test_types_of_one_kind_share_the_slots(types: list[str], slots: int) -> None:
    with Worker(APP) as worker:
        ready = worker.welcome(types=types)
        assert (ready["slots"], ready.get("threads"), kinds(ready)) == (slots, None, {})


def test_slots_of_an_app_with_both_kinds_are_no_threads() -> None:
    for types, slots in ([["hang", "parent"], 1], [["together"], 50]):
        with Worker(APP, TEST_SLOTS="50") as worker:
            assert worker.welcome(types=types)["slots"] == slots


@pytest.mark.parametrize("threads", ["1", "2"])
def test_synchronous_handler_does_not_hold_up_asynchronous_ones(threads: str, tmp_path: Path) -> None:
    with Worker(APP, TEST_THREADS=threads) as worker:
        worker.welcome()
        hanging = [worker.start("hang", {"until_file": str(tmp_path / "go")}) for _ in range(int(threads))]
        numbers = [worker.start("together", {"count": 10}) for _ in range(10)]
        worker.send("ping", at=1)
        answers = [worker.answer()["ok"] for _ in numbers]
        assert sorted(answer["n"] for answer in answers) == numbers
        (tmp_path / "go").touch()
        names = [worker.answer()["ok"] for _ in hanging]
        assert sorted(answer["n"] for answer in names) == hanging
        where = {answer["output"][0] for answer in names}
        if threads == "1":
            assert where == {"MainThread"}
            assert {answer["output"] for answer in answers} == {"kafleet-loop"}
        else:
            assert len(where) == 2 and "MainThread" not in where
            assert {answer["output"] for answer in answers} == {"MainThread"}


def places(types: list[str] | None, slots: str, threads: str) -> tuple[int, int]:
    with Worker("mixed_bundle.py", TEST_SLOTS=slots, TEST_THREADS=threads) as worker:
        ready = worker.welcome(**{} if types is None else {"types": types})
        assert kinds(ready) == ({"bundle": True, "alone": False} if types is None else {})
        return ready["slots"], ready.get("threads", 0)


@pytest.mark.parametrize(
    ("slots", "threads", "expected"),
    [
        ("", "", [(10, 10), (10, 0), (10, 0)]),
        ("4", "", [(4, 4), (4, 0), (4, 0)]),
        ("", "1", [(10, 1), (1, 0), (10, 0)]),
    ],
)
def test_bundle_of_both_kinds_has_as_many_threads_as_slots(slots: str, threads: str, expected: list[tuple[int, int]]) -> None:
    assert [places(types, slots, threads) for types in (None, ["bundle"], ["alone"])] == expected


@pytest.mark.parametrize("types", [None, ["bundle"]], ids=["beside other types", "alone"])
def test_synchronous_member_of_a_bundle_does_not_hold_up_asynchronous_ones(types: list[str] | None, tmp_path: Path) -> None:
    with Worker("mixed_bundle.py") as worker:
        worker.welcome(**{} if types is None else {"types": types})
        params = {"task": "hang", "params": {"until_file": str(tmp_path / "go")}}
        hanging = [worker.start("bundle", params) for _ in range(2)]
        numbers = [worker.start("bundle", {"task": "together", "params": {"count": 8}}) for _ in range(8)]
        answers = [worker.answer()["ok"] for _ in numbers]
        assert sorted(answer["n"] for answer in answers) == numbers
        assert {answer["output"] for answer in answers} == {"MainThread"}
        (tmp_path / "go").touch()
        names = [worker.answer()["ok"] for _ in hanging]
        assert {answer["output"] for answer in names} == {"kafleet-slot-0", "kafleet-slot-1"}
        worker.end()
        assert worker.exit_code() == 0
        assert worker.output() == ""


def test_synchronous_members_of_a_bundle_run_on_the_main_thread_if_the_app_has_one_thread(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with Worker("mixed_bundle.py", TEST_THREADS="1") as worker:
        worker.welcome(types=["bundle"])
        hang = {"task": "hang", "params": {"until_file": str(tmp_path / "go")}}
        assert worker.run("bundle", hang)["ok"]["output"] == "MainThread"
        assert worker.run("bundle", {"task": "together", "params": {"count": 1}})["ok"]["output"] == "kafleet-loop"


def test_handler_that_takes_places_of_a_bundle_is_named(tmp_path: Path) -> None:
    code = """
from kafleet import App

app = App(threads=2)
mixed, calm = app.bundle("mixed"), app.bundle("calm")

@mixed.task
async def waits(): ...

@mixed.task
def computes(): ...

@calm.task
async def rests(): ...

@app.task
def alone(): ...
"""
    (tmp_path / "tasks.py").write_text(code)
    with Worker("tasks.py", cwd=tmp_path) as worker:
        worker.welcome()
        worker.end()
        assert worker.exit_code() == 0
        (line,) = worker.output().splitlines()
    assert line.startswith("warning: `computes` (")
    assert "tasks.py:10) of the bundle `mixed` is synchronous: its 1 `async def` share `threads=2` of the app with it" in line


def test_synchronous_handler_publishes_children_at_once() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("parent")
        spawn = worker.receive()
        assert spawn and spawn["spawn"]["n"] == n
        worker.send("reply", call=spawn["spawn"]["call"], ids=["a"])
        assert worker.answer() == {"ok": {"n": n, "output": ["a"]}}


@pytest.mark.parametrize("threads", ["1", "2"])
def test_lifespan_on_the_loop_is_left_after_the_last_synchronous_handler(threads: str, tmp_path: Path) -> None:
    with Worker(APP, TEST_THREADS=threads) as worker:
        worker.welcome()
        worker.start("hang", {"until_file": str(tmp_path / "go")})
        assert worker.receive() == {"log": {"n": 1, "lines": ["hangs"], "stream": "stdout"}}
        worker.end()
        (tmp_path / "go").touch()
        assert worker.answer()["ok"]["output"][1] == "open"
        assert worker.receive() is None
        assert worker.exit_code() == 0
        assert worker.output().splitlines() == ["left"]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_message_that_is_not_json_ends_the_process(threads: str) -> None:
    with Worker(APP, TEST_THREADS=threads) as worker:
        worker.welcome()
        worker.send_line("{")
        assert worker.exit_code() == 1
        assert "the worker sent an invalid message" in worker.output()


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (App(), [(1, 0), (10, 0), (10, 1)]),
        (App(slots=5), [(5, 0), (5, 0), (5, 1)]),
        (App(threads=3), [(3, 0), (10, 0), (10, 3)]),
        (App(slots=5, threads=3), [(3, 0), (5, 0), (5, 3)]),
    ],
)
def test_places_follow_from_the_kinds_of_handlers(app: App, expected: list[tuple[int, int]]) -> None:
    assert [app.places(kinds) for kinds in ({True}, {False}, {True, False})] == expected


@pytest.mark.parametrize("number", [0, 1001])
def test_number_of_threads_is_bounded(number: int) -> None:
    with pytest.raises(DeclarationError, match=f"`threads` is {number}: 1 to 1,000 are allowed"):
        App(threads=number)
