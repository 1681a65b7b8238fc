"""Attempts that exceed their time: their stack in the log, and soft timeouts."""

import time
from pathlib import Path

import pytest
from driver import Message, Worker, until

from kafleet import App, DeclarationError, SoftTimeout
from kafleet.outcomes import seconds_text
from kafleet.testing import trial

APP = "timeouts.py"


def log_of(worker: Worker, n: int, text: str) -> list[str]:
    """Returns the lines of a task's log up to the message that contains a text."""
    lines: list[str] = []
    while message := worker.receive():
        if "log" in message and message["log"]["n"] == n:
            lines += message["log"]["lines"]
            if any(text in line for line in message["log"]["lines"]):
                return lines
    raise AssertionError(f"{lines} {worker.output()}")


@pytest.mark.parametrize(("type", "slots"), [("sync", "1"), ("sync", "2"), ("asynchronous", "1")])
@pytest.mark.parametrize(
    ("reason", "text"), [("timeout", "timeout of 60 s, at:"), ("stalled", "no activity within `stall_timeout`")]
)
def test_log_has_the_stack_at_the_timeout(type: str, slots: str, reason: str, text: str, tmp_path: Path) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome(types=[type])
        n = worker.start(type, {"until_file": str(tmp_path / "go")} if type == "sync" else None)
        assert worker.receive() == {"log": {"n": n, "lines": ["begins"], "stream": "stdout"}}
        worker.send("cancel", n=n, reason=reason)
        lines = log_of(worker, n, text)
        (tmp_path / "go").touch()
        innermost, handler = ("wait_for", "sync") if type == "sync" else ("fetch", "asynchronous")
        stack = [line for line in lines if line.startswith("  File") and "timeouts.py" in line]
        assert [line.rpartition(" ")[2] for line in stack] == [handler, innermost]
        assert not any("kafleet/" in line for line in lines)
        assert worker.answer()["error"]["kind"] == "cancelled"


def test_message_of_a_cancelled_attempt_has_its_times(tmp_path: Path) -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("sync", {"until_file": str(tmp_path / "go")}, left_ms=6000)
        worker.send("cancel", n=n, reason="timeout")
        log_of(worker, n, "timeout of 6 s")
        start = time.monotonic()
        until(lambda: time.monotonic() > start + 0.3, "the attempt is late")
        (tmp_path / "go").touch()
        message = worker.answer()["error"]["message"]
        assert message.startswith("the attempt was cancelled: timeout of 6 s, stopped ") and message.endswith(" later")
    failure = trial.using(cancelled="timeout")(App().task(checks)).failure
    assert failure and failure.message == "the attempt was cancelled: timeout of 60 s"


def checks() -> None:
    from kafleet import current

    current().check()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.01, "10 ms"), (0.199, "200 ms"), (0.999, "1 s"), (5.999, "6 s"), (1.5, "1.5 s"), (120, "120 s")]
)
def test_times_are_written_as_they_were_set(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize("types", [["blocked"], ["blocked", "sync"]], ids=["async", "mixed"])
def test_log_names_what_blocks_the_event_loop(types: list[str], tmp_path: Path) -> None:
    with Worker(APP) as worker:
        worker.welcome(types=types)
        n = worker.start("blocked", {"until_file": str(tmp_path / "go")}, left_ms=300)
        lines = log_of(worker, n, "the event loop is blocked")
        assert lines[1] == "timeout of 300 ms, and the event loop is blocked, at:" and "in wait_for" in "\n".join(lines)
        worker.send("cancel", n=n, reason="timeout")
        (tmp_path / "go").touch()
        while (message := worker.receive()) and "log" not in message:
            if "ok" in message or "error" in message:
                return
        raise AssertionError(f"the stack is there twice: {message}")


def test_attempt_that_is_in_time_has_no_stack() -> None:
    with Worker(APP) as worker:
        worker.welcome(types=["asynchronous"])
        n = worker.start("asynchronous", left_ms=100)
        assert worker.receive() == {"log": {"n": n, "lines": ["begins"], "stream": "stdout"}}
        start = time.monotonic()
        until(lambda: time.monotonic() > start + 0.8, "the time has passed")
        worker.expect_silence()


@pytest.mark.parametrize("params", [{}, {"checks": False}], ids=["checks", "blocks"])
@pytest.mark.parametrize(("type", "slots"), [("soft-sync", "1"), ("soft-sync", "2"), ("soft-async", "1")])
def test_soft_timeout_is_raised_in_the_handler(type: str, slots: str, params: Message) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome(types=[type])
        if slots == "2" or type == "soft-async":
            params = {}  # Without a signal, only `cx.check()` can raise it.
        error = worker.run(type, params)["error"]
        assert (error["outcome"], error["kind"], error["message"]) == ("retry", "soft_timeout", "soft timeout of 50 ms")
        assert "timeouts.py" in error["stack"]
        assert worker.run(type, {**params, "catches": True})["ok"]["output"] == "cleaned up"


def test_cancel_beats_the_soft_timeout() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("soft-async", {"catches": True, "ends": False})
        worker.send("cancel", n=n, reason="cancelled")
        assert worker.answer()["error"]["kind"] == "cancelled"
        assert worker.run("soft-unused")["ok"]["output"] == "in time"


def test_soft_timeout_cuts_off_no_message() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        for _ in range(5):
            worker.start("floods")
            start = time.monotonic()
            until(lambda start=start: time.monotonic() > start + 0.1, "the socket is full")
            assert worker.answer()["error"]["kind"] == "soft_timeout"


def test_soft_timeout_of_a_trial() -> None:
    app = App()

    @app.task(soft_timeout="20ms", retries=0)
    def slow() -> str:
        try:
            while True:
                time.sleep(1)
        except SoftTimeout:
            return "cleaned up"

    assert trial(slow).output == "cleaned up"


@pytest.mark.parametrize(
    ("soft", "problem"),
    [
        (5, '"30s" or datetime'),
        ("soon", "`soon` is not a duration"),
        ("30s", "is not between 0 and the `timeout`"),
        ("0s", "is not between"),
    ],
)
@pytest.mark.parametrize("bundled", [False, True])
def test_soft_timeout_without_effect_is_refused(soft: str, problem: str, bundled: bool) -> None:
    app = App()
    if bundled:
        declare = app.bundle("small", timeout="30s").task(soft_timeout=soft)
    else:
        declare = app.task(soft_timeout=soft, timeout="30s")
    with pytest.raises(DeclarationError, match=rf"test_timeouts.py:\d+: .*{problem}"):
        declare(checks)


@pytest.mark.parametrize("slots", ["1", "2"])
def test_output_of_a_thread_goes_to_the_only_attempt(slots: str, tmp_path: Path) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome(types=["prints-in-thread"])
        n = worker.start("prints-in-thread")
        assert log_of(worker, n, "thread") == ["begins", "from a thread"]
        assert worker.answer() == {"ok": {"n": n, "output": None}}
        if slots == "2":
            for name in "ab":
                log_of(worker, worker.start("prints-in-thread", {"until_file": str(tmp_path / name)}), "begins")
            (tmp_path / "a").touch()
            assert "ok" in worker.answer()
            (tmp_path / "b").touch()
            assert worker.receive() == {"log": {"n": 3, "lines": ["from a thread"], "stream": "stdout"}}
            assert "ok" in worker.answer()
        worker.end()
        assert worker.exit_code() == 0
        assert worker.output() == ("" if slots == "1" else "from a thread\n")
