"""Hooks, output and unusual results of handlers."""

from typing import Any

import pytest
from driver import Message, Worker

APP = "mixed.py"


def run(worker: Worker, type: str, params: Any = None, **more: Any) -> tuple[list[str], Message]:
    """Runs one attempt and returns its log lines and its answer."""
    worker.start(type, params, **more)
    lines: list[str] = []
    while message := worker.receive():
        if "log" not in message:
            return lines, message
        lines += message["log"]["lines"]
    raise AssertionError(worker.output())


@pytest.mark.parametrize("type", ["sync", "asynchronous"])
def test_hooks_run_around_each_attempt_in_their_order(type: str) -> None:
    with Worker(APP) as worker:
        worker.welcome()
        lines, answer = run(worker, type)
        assert lines == ["outer begins", "inner begins", "handler", "inner ends", "outer ends"]
        assert answer["ok"]["output"] == "state"


@pytest.mark.parametrize("type", ["sync", "asynchronous"])
def test_hook_can_translate_an_exception(type: str) -> None:
    with Worker(APP) as worker:
        worker.welcome()
        lines, answer = run(worker, type, {"fails": True})
        assert lines == ["outer begins", "inner begins", "handler", "outer ends"]
        assert (answer["error"]["outcome"], answer["error"]["kind"]) == ("fail", "translated")


def test_hook_can_fail_an_attempt_before_its_handler() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        lines, answer = run(worker, "sync", number=2)
        assert lines == ["outer begins", "outer ends"]
        assert answer["error"]["kind"] == "refused"


@pytest.mark.parametrize("slots", ["1", "2"])
def test_output_goes_to_the_log_of_the_task(slots: str) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome()
        lines, _ = run(worker, "log")
        logged = ["printed line", "WARNING shop: logged", "INFO shop: info", "error"]
        assert lines == ["outer begins", "inner begins", *logged, "inner ends", "outer ends", "without an end"]
        worker.end()
        assert worker.exit_code() == 0
        assert worker.output() == "left the lifespan\n"


def test_synchronous_handlers_run_at_once_with_several_slots() -> None:
    with Worker(APP, TEST_SLOTS="3") as worker:
        assert worker.welcome()["slots"] == 3
        for _ in range(3):
            worker.start("barrier", {"count": 3})
        assert len({worker.answer()["ok"]["output"] for _ in range(3)}) == 3


def test_one_slot_runs_synchronous_handlers_on_the_main_thread() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        assert worker.run("barrier", {"count": 1})["ok"]["output"] == "MainThread"


def test_configured_slots_run_at_once() -> None:
    with Worker(APP) as worker:
        assert worker.welcome(slots=2, types=["barrier"])["slots"] == 2
        for _ in range(2):
            worker.start("barrier", {"count": 2})
        assert [worker.answer().keys() for _ in range(2)] == [{"ok"}, {"ok"}]


def test_results_without_json_form_fail() -> None:
    with Worker(APP) as worker:
        worker.welcome(limits={"output": 1000})
        error = worker.run("not-a-number")["error"]
        assert (error["outcome"], error["kind"]) == ("fail", "bad_output")
        error = worker.run("large", {"bytes": 1000})["error"]
        assert (error["outcome"], error["kind"]) == ("fail", "result_too_large")
        assert worker.run("large", {"bytes": 10})["ok"]["output"] == "x" * 10


def test_deeply_nested_params_of_a_wrong_type_make_a_dead_letter() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        attempt = '{"attempt":{"n":1,"type":"large","id":"task-1","run":1,"number":1,"left_ms":60000,"params":{"bytes":%s}}}'
        worker.send_line(attempt % ("[" * 5000 + "]" * 5000))
        error = worker.answer()["error"]
        assert (error["outcome"], error["kind"]) == ("dead", "bad_params")


def test_breakpoint_explains_itself() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        error = worker.run("debug")["error"]
        assert (error["outcome"], error["kind"]) == ("fail", "breakpoint")
        assert "mixed.py:" in error["message"] and "hint: run the attempt with `trial`" in error["message"]


def test_undeclared_type_is_retried() -> None:
    with Worker(APP) as worker:
        worker.welcome(types=["sync"])
        assert worker.run("log")["error"]["kind"] == "unknown_type"
