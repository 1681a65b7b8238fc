"""Handlers of a running fleet in the process of the test."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import APPS, until

from kafleet import App, TaskFailed
from kafleet.session import Unable
from kafleet.testing import Fleet, fleet

sys.path.insert(0, str(APPS))
import attached_app as shop  # pyright: ignore[reportMissingImports]

PATIENCE = 60.0


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    with fleet("attached_app.py", cwd=APPS, in_process=True) as started:
        yield started


@pytest.mark.usefixtures("running")
def test_mock_of_the_test_is_seen_by_the_handlers_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int | None] = [None, 5, 7]

    def size_of(name: str) -> int:
        size = sizes.pop(0)
        if size is None:
            raise OSError(f"`{name}` is busy")
        return size

    monkeypatch.setattr(shop, "size_of", size_of)
    handle = shop.album.submit(["a.jpg", "b.jpg"])
    assert handle.result(PATIENCE) == 2
    assert handle.then().result(PATIENCE) == 12
    assert sorted(child["attempt"] for child in handle.children() if child["type"] == "measure") == [1, 2], "a retry"


@pytest.mark.usefixtures("running")
def test_handler_runs_in_the_process_of_the_test() -> None:
    assert shop.process.submit().result(PATIENCE) == os.getpid()


@pytest.mark.usefixtures("running")
def test_output_is_in_the_log_of_the_task_and_in_that_of_the_test(capsys: pytest.CaptureFixture[str]) -> None:
    handle = shop.speaks.submit()
    handle.result(PATIENCE)
    print("of the test")
    assert handle.log() == ["said", "WARNING shop: noted"]
    assert capsys.readouterr().out == "said\nof the test\n"


@pytest.mark.usefixtures("running")
def test_failure_has_the_log_of_the_task() -> None:
    with pytest.raises(TaskFailed, match="OSError: no service has `c") as failed:
        shop.measure.using(retries=0).submit("c.jpg").result(PATIENCE)
    assert "│ measures c.jpg" in failed.value.__notes__[0]


@pytest.mark.usefixtures("running")
def test_attempt_has_no_timeout() -> None:
    with pytest.raises(TaskFailed) as failed:
        shop.slow.submit(0.4).result(PATIENCE)
    assert failed.value.kind == "awake"


def test_reset_cancels_attempts_and_serves_again(running: Fleet, tmp_path: Path) -> None:
    shop.waits.submit(tmp_path / "first")
    until(lambda: next(iter(shop.app.tasks.search("type:waits state:running")), None), "the attempt starts")
    running.reset()
    assert (tmp_path / "first").exists(), "the attempt was cancelled"
    assert shop.process.submit().result(PATIENCE) == os.getpid()


def test_death_of_the_relay_cancels_attempts_and_it_is_started_again(running: Fleet, tmp_path: Path) -> None:
    handle = shop.waits.submit(tmp_path / "mark")
    until(lambda: handle.status()["state"] == "running", "the attempt starts")
    for relay in relays():
        os.kill(relay, signal.SIGKILL)
    until((tmp_path / "mark").exists, "the attempt is cancelled")
    handle.cancel()  # The attempt has failed, or is repeated if the relay was younger than a second.
    assert shop.process.submit().result(PATIENCE) == os.getpid()


def relays() -> list[int]:
    """Returns the process ids of the relays of this fleet: grandchildren of this process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    processes = [(int(pid), int(parent), words) for pid, parent, *words in map(str.split, listed.splitlines())]
    fleets = {pid for pid, parent, _ in processes if parent == os.getpid()}
    return [pid for pid, parent, words in processes if parent in fleets and "attach" in words and "dev" not in words]


def test_app_that_cannot_be_imported_is_an_error_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "unfinished_shop.py").write_text("import missing_package\n")
    with pytest.raises(Unable, match="named 'missing_package'"), fleet("unfinished_shop.py", cwd=tmp_path, in_process=True):
        pass
    with pytest.raises(ValueError, match="`in_process` needs a target"), fleet(in_process=True):
        pass


@pytest.mark.parametrize("listens", [False, True], ids=["alone", "with options of dev"])
def test_debugger_has_the_handlers_in_its_process(listens: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "tasks.py").write_text((APPS / "attached_app.py").read_text())
    command = [sys.executable, "-m", "kafleet", "attach", *(["--listen", address] if listens else []), "tasks.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as debugged:
        assert debugged.stderr
        lines = list(iter(debugged.stderr.readline, "serving until ctrl-c\n"))
        url = next(line.split()[1] for line in lines if line.startswith("  api "))
        assert (url == f"http://{address}") == listens
        assert App(api=url).remote("process").submit().result(PATIENCE) == debugged.pid
        debugged.send_signal(signal.SIGINT)
        assert debugged.wait(PATIENCE) == 0
