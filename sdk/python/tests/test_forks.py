"""Children that a handler forks: they end, and neither answer nor use anything of their parent."""

from pathlib import Path
from typing import Any

import pytest
from driver import Message, Worker

APP = "forks.py"
MODES: list[dict[str, Any]] = [{"TEST_SLOTS": "1"}, {"TEST_SLOTS": "3"}, {"TEST_SLOTS": "12", "TEST_ASYNC": "1"}]
IDS = ["inline", "threads", "async"]

# What the child does, its exit code, and what it writes.
CHILDREN: list[tuple[str, int, str]] = [
    ("exit", 0, ""),
    ("exit code", 3, ""),
    ("exit text", 1, "an error"),
    ("raise", 1, "IndexError: list index out of range"),
    ("interrupt", 1, "KeyboardInterrupt"),
    ("back", 0, ""),
    ("fork again", 0, ""),
    ("exec", 7, ""),
    ("publish", 0, "from the child"),
    ("spawn", 1, "a forked child is outside of the attempt"),
]


def messages_until_answer(worker: Worker) -> tuple[list[Message], Message]:
    """Returns the messages up to the next answer, and the answer."""
    messages: list[Message] = []
    while message := worker.receive():
        if message.keys() & {"ok", "error"}:
            return messages, message
        messages.append(message)
    raise AssertionError(worker.output())


@pytest.mark.parametrize("mode", MODES, ids=IDS)
def test_forked_child_ends_behind_its_handler(mode: dict[str, Any], tmp_path: Path) -> None:
    with Worker(APP, **mode) as worker:
        slots = worker.welcome()["slots"]
        neighbours = [worker.start("nap", {"until_file": str(tmp_path / "go")}) for _ in range(min(slots - 1, 5))]
        cases = [(*case, by) for case in CHILDREN for by in ("fork", "pty")]
        cases += [("await", 1, "cannot `await`", by) for by in ("bare", "task")] if "TEST_ASYNC" in mode else []
        for how, code, _, by in cases:
            n = worker.start("forks", {"how": how, "by": by})
            messages, answer = messages_until_answer(worker)
            assert answer == {"ok": {"n": n, "output": code}}, (how, by)
            left = {"log": {"n": n, "lines": ["left the hook"], "stream": "stdout"}}
            assert [message for message in messages if message != left] == [], (how, by)
        (tmp_path / "go").touch()
        assert [worker.answer()["ok"]["output"] for _ in neighbours] == ["finished"] * len(neighbours)
        worker.end()
        assert worker.receive() is None or worker.receive() is None
        assert worker.exit_code() == 0
        output = worker.output()
        assert output.count("left the lifespan") == 1 and "left the hook" not in output
        for how, _, text, _ in cases:
            assert text in output, how
        assert len(output) < 100_000, "a child writes without an end"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("mode", MODES, ids=IDS)
def test_process_of_multiprocessing_ends(mode: dict[str, Any], method: str) -> None:
    with Worker(APP, **mode) as worker:
        worker.welcome()
        assert worker.run("processes", {"method": method})["ok"]["output"] == 0
        worker.end()
        assert worker.exit_code() == 0
        output = worker.output()
        assert "from multiprocessing" in output and output.count("left the lifespan") == 1


@pytest.mark.parametrize("place", ["import", "lifespan"])
@pytest.mark.parametrize("mode", MODES, ids=IDS)
def test_forked_child_of_the_start_does_not_serve(mode: dict[str, Any], place: str) -> None:
    with Worker(APP, **mode, TEST_FORKS_IN=place) as worker:
        worker.welcome()
        assert worker.run("forks", {"how": "back", "by": "fork"})["ok"]["output"] == 0
        worker.end()
        assert worker.exit_code() == 0
        output = worker.output()
        assert f"fork at {place}: 0" in output and output.count("left the lifespan") == 1


@pytest.mark.parametrize("mode", MODES, ids=IDS)
def test_forked_child_of_a_hook_does_not_answer(mode: dict[str, Any]) -> None:
    with Worker(APP, **mode) as worker:
        worker.welcome()
        worker.start("forks", {"how": "back", "by": "fork"}, id="in-the-hook")
        messages, answer = messages_until_answer(worker)
        assert answer["ok"]["output"] == 0
        lines = [line for message in messages for line in message["log"]["lines"]]
        assert lines == ["fork in the hook: 0", "left the hook"]
