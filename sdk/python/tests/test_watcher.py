"""The thread that looks after running attempts: it sleeps while nothing runs, and misses no work."""

import threading
from typing import Any

import pytest

from kafleet import session
from kafleet.session import Watcher

IDLE_TICKS = session._IDLE_TICKS  # pyright: ignore[reportPrivateUsage]
PATIENCE = 10.0


class Scripted:
    """Session whose work comes directly after a look of the watcher that has found none."""

    def __init__(self, look: int) -> None:
        self.look, self.looks, self.is_seen = look, 0, threading.Event()
        self.watcher = Watcher(self)  # type: ignore[arg-type]

    def tick(self) -> bool:
        self.looks += 1
        if self.looks > self.look:
            self.is_seen.set()
        return self.looks > self.look

    def send_logs(self) -> bool:
        if self.looks == self.look:
            self.watcher.wake()
        return False

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize("look", range(IDLE_TICKS - 3, IDLE_TICKS + 3))
def test_work_that_comes_as_the_watcher_falls_asleep_wakes_it(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TICK", 0.001)
    scripted = Scripted(look)
    scripted.watcher.wake()
    assert scripted.is_seen.wait(PATIENCE), f"work after look {look} is never seen"
