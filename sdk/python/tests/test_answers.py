"""Exactly one answer for each attempt, whatever its exception, its result or what it publishes does."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from driver import ROOT, Message, Worker, until

APP = "hostile.py"
MODES: list[dict[str, Any]] = [{"TEST_SLOTS": "1"}, {"TEST_SLOTS": "3"}, {"TEST_SLOTS": "12", "TEST_ASYNC": "1"}]
FIRST, COUNT = int(os.environ.get("KAFLEET_SEED", "0")), int(os.environ.get("KAFLEET_HOSTILE", "150"))
SEEDS = range(FIRST, FIRST + COUNT)
"""Seeds of the hostile objects; other ones: KAFLEET_SEED=1000 KAFLEET_HOSTILE=5000 tests/python -k hostile_objects"""
HOW = ("raise", "raise", "raise", "return", "return", "log", "warn", "progress", "attach", "replace")

PROTOCOL = json.loads((ROOT / "schemas/app-protocol.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator({"$ref": "#/$defs/to_worker", "$defs": PROTOCOL["$defs"]})


def collect(worker: Worker, count: int) -> dict[int, Message]:
    """Returns the answers of the next attempts; each message conforms to the protocol."""
    answers: dict[int, Message] = {}
    while len(answers) < count:
        message = worker.receive()
        assert message, f"the process has ended: {worker.output()[-4000:]}"
        VALIDATOR.validate(message)
        ((kind, fields),) = message.items()
        if kind in ("ok", "error"):
            assert fields["n"] not in answers, f"two answers: {answers[fields['n']]} {message}"
            answers[fields["n"]] = message
    return answers


@pytest.mark.parametrize("mode", MODES, ids=["inline", "threads", "async"])
def test_hostile_objects_get_one_answer_each(mode: dict[str, Any], tmp_path: Path) -> None:
    with Worker(APP, **mode) as worker:
        slots = worker.welcome()["slots"]
        neighbour = None if slots == 1 else worker.start("wait", {"until_file": str(tmp_path / "go")})
        started: dict[int, str] = {}
        kinds: Counter[str] = Counter()
        for seed in SEEDS:
            how = HOW[seed % len(HOW)]
            hook = ":hook" if seed % 7 == 3 else ""
            n = worker.start("harm", {"seed": seed, "how": how}, id=f"{seed}{hook}")
            started[n] = f"seed {seed}, {how}{hook}"
            (answer,) = collect(worker, 1).values()
            ((kind, fields),) = answer.items()
            assert fields["n"] == n, f"{answer} instead of an answer to {started[n]}"
            kinds[kind if kind == "ok" else fields["outcome"]] += 1
            if how in ("log", "warn", "progress", "attach", "replace") and not hook:
                assert answer == {"ok": {"n": n, "output": "done"}}, started[n]
        assert len(kinds) >= 5, kinds
        assert worker.run("well")["ok"]["output"] == "well"
        (tmp_path / "go").touch()
        if neighbour is not None:
            assert worker.answer() == {"ok": {"n": neighbour, "output": "finished"}}
        worker.end()
        assert worker.receive() is None, "a message behind the last answer"
        assert worker.exit_code() == 0, worker.output()[-4000:]


@pytest.mark.parametrize("how", ["exit", "interrupt", "stop"])
def test_task_of_an_attempt_does_not_end_the_loop(how: str, tmp_path: Path) -> None:
    with Worker(APP, **MODES[2]) as worker:
        worker.welcome()
        sleepers = [worker.start("wait", {"until_file": str(tmp_path / "go")}) for _ in range(10)]
        assert worker.run("subtask", {"how": how})["ok"]["output"] == "survived"
        (tmp_path / "go").touch()
        assert sorted(collect(worker, 10)) == sleepers
        assert worker.run("well")["ok"]["output"] == "well"


def test_signal_in_an_attempt_is_an_error_of_this_attempt(tmp_path: Path) -> None:
    with Worker(APP, **MODES[2]) as worker:
        worker.welcome()
        sleepers = [worker.start("wait", {"until_file": str(tmp_path / "go")}) for _ in range(10)]
        assert worker.run("subtask", {"how": "signal"})["error"]["kind"] == "KeyboardInterrupt"
        (tmp_path / "go").touch()
        assert [answer["ok"]["output"] for answer in collect(worker, 10).values()] == ["finished"] * len(sleepers)


def test_attempts_do_not_fail_by_the_end_of_their_loop() -> None:
    """The worker runs them again, since they have no answer."""
    with Worker("asynchronous.py") as worker:
        worker.welcome()
        for _ in range(3):
            worker.start("forever")
        worker.send("ping", at=1)
        assert worker.receive() == {"pong": {"at": 1}}

        def interrupted() -> bool:  # More than once: in a callback of the loop it is the error of that callback.
            worker.process.send_signal(signal.SIGINT)
            return worker.process.poll() is not None

        until(interrupted, "the process ends by SIGINT", pause=0.05)
        assert worker.receive() is None
        assert worker.exit_code() != 0


def test_exit_of_a_generator_in_a_task_that_is_awaited_is_answered() -> None:
    with Worker(APP, **MODES[2]) as worker:
        worker.welcome()
        error = worker.run("subtask", {"how": "awaited"})["error"]
        assert (error["outcome"], error["kind"]) == ("retry", "GeneratorExit")
        assert worker.run("well")["ok"]["output"] == "well"


@pytest.mark.parametrize("mode", MODES, ids=["inline", "threads", "async"])
def test_interrupt_in_an_attempt_is_an_error_of_this_attempt(mode: dict[str, Any], tmp_path: Path) -> None:
    with Worker("outcomes.py", **mode) as worker:
        slots = worker.welcome()["slots"]
        sleepers = [worker.start("nap", {"until_file": str(tmp_path / "go")}) for _ in range(min(slots - 1, 10))]
        for kind in ("KeyboardInterrupt", "SystemExit", "GeneratorExit"):
            error = worker.run("fails", {"kind": kind})["error"]
            assert (error["outcome"], error["kind"]) == ("retry", kind)
        (tmp_path / "go").touch()
        assert [answer["ok"]["output"] for answer in collect(worker, len(sleepers)).values()] == ["finished"] * len(sleepers)


OUTCOMES: list[tuple[str, dict[str, Any]]] = [
    ("NoFail", {"outcome": "fail", "kind": "NoFail", "message": "a"}),
    ("NoRetry", {"outcome": "retry", "kind": "NoRetry", "message": "a"}),
    ("NoWait", {"outcome": "wait", "kind": "NoWait", "message": "a"}),
    ("NoDead", {"outcome": "dead", "kind": "NoDead", "message": "a"}),
    ("NoUnsuccessful", {"outcome": "fail", "kind": "unsuccessful", "message": "a"}),
    ("NoText", {"outcome": "retry", "kind": "NoText", "message": "<NoText without a text: KeyboardInterrupt>"}),
    ("NoString", {"outcome": "retry", "kind": "NoString", "message": "<NoString without a text: TypeError>"}),
    ("NoMessage", {"outcome": "fail", "kind": "NoMessage", "message": "a"}),
    ("Number", {"outcome": "fail", "kind": "Number", "message": "a"}),
    ("Strange", {"outcome": "retry", "kind": "not_a_kind_", "message": "a"}),
    ("Own", {"outcome": "fail", "kind": "own_kind", "message": "a"}),
]


@pytest.mark.parametrize("mode", MODES, ids=["inline", "threads", "async"])
def test_exceptions_of_users_decide_their_outcome(mode: dict[str, Any]) -> None:
    with Worker("outcomes.py", **mode) as worker:
        worker.welcome()
        for name, expected in OUTCOMES:
            error = worker.run("fails", {"kind": name})["error"]
            assert {key: error[key] for key in expected} == expected
            assert "after_ms" not in error
        lines = []
        worker.start("fails", {"kind": "NoMessage"})
        while (message := worker.receive()) and "log" in message:
            lines += message["log"]["lines"]
        assert lines == ["`message` of the exception `NoMessage` cannot be used: RuntimeError: no message"]
