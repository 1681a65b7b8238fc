"""Recorded sessions, played against the SDK over a real socket."""

from pathlib import Path

import pytest
from driver import SESSIONS, Worker, play, read_session


def ids(path: Path) -> str:
    return path.stem


def target(head: dict[str, object]) -> str:
    return "broken.py" if head["app"] == "broken" else "conformance.py"


@pytest.mark.parametrize("path", SESSIONS, ids=ids)
@pytest.mark.parametrize("slots", ["1", "3"])
def test_session_is_answered_as_recorded(path: Path, slots: str) -> None:
    head, events = read_session(path)
    if slots != "1":
        for event in events:
            event.get("message", {}).get("ready", {}).pop("slots", None)
    with Worker(target(head), TEST_SLOTS=slots) as worker:
        play(worker, events, worker.send_line)
