"""Recorded sessions, played against the SDK over a real socket: whole, byte by byte, and cut off at every byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from driver import APPS, SESSIONS, Worker, play, read_session, wire


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


@pytest.mark.parametrize("path", SESSIONS, ids=ids)
def test_session_in_single_bytes_is_answered_as_recorded(path: Path) -> None:
    head, events = read_session(path)
    with Worker(target(head)) as worker:
        play(worker, events, worker.send_bytes)


def test_session_that_ends_at_any_byte_ends_the_app() -> None:
    """The worker may die at any time: the app answers the attempts that it has received, and exits."""
    lines = {ids(path): wire(read_session(path)[1]) for path in SESSIONS if read_session(path)[0]["app"] == "test"}
    sessions = {name: [line.decode() for line in lines] for name, lines in lines.items()}
    command = [sys.executable, str(APPS.parent / "cuts.py")]
    done = subprocess.run(command, input=json.dumps(sessions), text=True, capture_output=True, timeout=300, cwd=APPS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5 * len(SESSIONS), "too few cuts"
