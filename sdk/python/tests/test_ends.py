"""App processes that die, hang or exit, and workers that die."""

import contextlib
import signal
from pathlib import Path

import pytest
from driver import Worker

APP = "mixed.py"


@pytest.mark.parametrize(
    ("how", "code"), [("kill", -signal.SIGKILL), ("abort", -signal.SIGABRT), ("os._exit", 0)], ids=["kill", "abort", "exit"]
)
def test_death_of_the_process_ends_the_stream(how: str, code: int) -> None:
    with Worker(APP) as worker:
        worker.welcome()
        worker.start("end", {"how": how})
        while message := worker.receive():
            assert message.keys() == {"log"}, message
        assert worker.exit_code() == code
        assert ("Fatal Python error: Aborted" in worker.output()) == (how == "abort")


@pytest.mark.parametrize("words", ["flush", "stderr", "logging", "bytes", "thread"])
@pytest.mark.parametrize("how", ["kill", "abort", "os._exit"])
@pytest.mark.parametrize("slots", ["1", "3"])
def test_lines_that_were_flushed_survive_the_process(slots: str, how: str, words: str) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome()
        worker.start("end", {"how": how, "words": words})
        lines: list[str] = []
        while message := worker.receive():
            lines += message["log"]["lines"]
        assert lines[-1].endswith("last words"), lines


def test_exit_of_a_handler_fails_its_attempt_only() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        error = worker.run("end", {"how": "sys.exit"})["error"]
        assert (error["outcome"], error["kind"]) == ("retry", "SystemExit")
        assert worker.run("sync")["ok"]["output"] == "state"


def test_hanging_handler_answers_pings_and_may_finish(tmp_path: Path) -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("hang", {"until_file": str(tmp_path / "go")})
        worker.send("ping", at=1)
        worker.send("cancel", n=n, reason="timeout")
        while message := worker.receive():
            if "pong" in message:
                break
            assert message.keys() == {"log"}, message
        assert message == {"pong": {"at": 1}}
        (tmp_path / "go").touch()
        assert worker.answer()["ok"]["output"] == "finished"


@pytest.mark.parametrize("slots", ["1", "3"])
def test_running_attempt_is_answered_after_the_end_of_the_stream(slots: str, tmp_path: Path) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome()
        worker.start("hang", {"until_file": str(tmp_path / "go")})
        worker.end()
        (tmp_path / "go").touch()
        assert worker.answer()["ok"]["output"] == "finished"
        assert worker.receive() is None
        assert worker.exit_code() == 0
        assert worker.output() == "left the lifespan\n"


@pytest.mark.parametrize("slots", ["1", "3"])
def test_death_of_the_worker_ends_a_busy_process(slots: str, tmp_path: Path) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome()
        worker.start("hang", {"until_file": str(tmp_path / "never")})
        worker.socket.close()
        assert worker.exit_code() == 1
        assert "the worker has ended" in worker.output()


def test_death_of_the_worker_ends_an_idle_process() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        worker.socket.close()
        assert worker.exit_code() == 0


def test_slow_reader_receives_everything() -> None:
    with Worker(APP, TEST_SLOTS="3") as worker:
        worker.welcome()
        numbers = [worker.start("large", {"bytes": 200_000}) for _ in range(30)]
        answers = [worker.answer()["ok"] for _ in numbers]
        assert sorted(answer["n"] for answer in answers) == numbers
        assert all(len(answer["output"]) == 200_000 for answer in answers)


@pytest.mark.parametrize("slots", ["1", "3"])
def test_forked_child_is_outside_of_the_attempt(slots: str) -> None:
    with Worker(APP, TEST_SLOTS=slots) as worker:
        worker.welcome()
        assert worker.run("fork")["ok"]["output"] == 7
        assert worker.run("sync")["ok"]["output"] == "state"
        worker.end()
        assert worker.exit_code() == 0
        assert "in the fork" in worker.output()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_handler_uses_processes_of_multiprocessing(method: str) -> None:
    with Worker(APP) as worker:
        worker.welcome()
        assert worker.run("processes", {"method": method})["ok"]["output"] == [1, 2]
        worker.end()
        assert worker.exit_code() == 0
        assert worker.output() == "left the lifespan\n"


def test_process_without_a_socket_names_the_cause() -> None:
    with Worker(APP, stdin=Path("/dev/null")) as worker:
        assert worker.exit_code() == 1
        output = worker.output()
        assert "file descriptor 0 is not the socket of a worker" in output and "nodemon" in output


def test_message_of_the_worker_that_is_not_json_ends_the_process() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        worker.send_line("{")
        assert worker.exit_code() == 1
        assert "the worker sent an invalid message" in worker.output()


def test_too_long_line_ends_the_process() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        with contextlib.suppress(ConnectionError):
            worker.socket.sendall(b" " * (20 << 20))
        assert worker.exit_code() == 1
        assert "line of over 8388608 bytes" in worker.output()
