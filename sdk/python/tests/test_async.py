"""Asynchronous handlers, which share the event loop of a process."""

from pathlib import Path

from driver import Message, Worker, until

APP = "asynchronous.py"


def test_ten_attempts_run_at_once_and_log_for_themselves() -> None:
    with Worker(APP) as worker:
        assert worker.welcome()["slots"] == 10
        for _ in range(10):
            worker.start("together", {"count": 10})
        answers: dict[int, Message] = {}
        logs: dict[int, Message] = {}
        while len(answers) < 10 or len(logs) < 10:
            message = worker.receive()
            assert message
            ((kind, fields),) = message.items()
            (logs if kind == "log" else answers)[fields["n"]] = fields
        assert all(fields["output"] == "open" for fields in answers.values())
        assert all(fields["lines"] == [f"attempt {n}"] for n, fields in logs.items())


def test_number_of_slots_is_the_configured_one() -> None:
    with Worker(APP) as worker:
        assert worker.welcome(slots=3)["slots"] == 3


def test_cancel_ends_the_handler() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("forever")
        worker.send("cancel", n=n, reason="timeout")
        error = worker.answer()["error"]
        assert (error["outcome"], error["kind"]) == ("cancelled", "cancelled")
        assert "timeout" in error["message"]


def test_result_within_the_grace_counts() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("forever", {"swallow": True})
        worker.send("cancel", n=n, reason="cancelled")
        assert worker.answer() == {"ok": {"n": n, "output": "finished after the cancel"}}


def test_cancelled_error_without_a_cancel_is_retried() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        error = worker.run("cancels-itself")["error"]
        assert (error["outcome"], error["kind"]) == ("retry", "CancelledError")


def test_blocked_event_loop_answers_pings_late(tmp_path: Path) -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("blocked", {"until_file": str(tmp_path / "go")})
        assert worker.receive() == {"heartbeat": {"n": n}}
        worker.send("ping", at=5)
        worker.expect_silence()
        (tmp_path / "go").touch()
        messages = [worker.receive(), worker.receive()]
        assert {"pong": {"at": 5}} in messages and {"ok": {"n": n, "output": None}} in messages


def test_children_are_published_without_blocking_the_loop() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("parent")
        spawn = worker.receive()
        assert spawn and spawn["spawn"]["n"] == n and len(spawn["spawn"]["tasks"]) == 3
        worker.send("reply", call=spawn["spawn"]["call"], ids=["a", "b", "c"])
        assert worker.answer() == {"ok": {"n": n, "output": ["a", "b", "c"]}}
        error = worker.run("parent", {"wrong": True})["error"]
        assert "await cx.aspawn_now" in error["message"]


def test_call_fails_when_the_worker_ends_the_stream() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        worker.start("parent")
        assert worker.receive()
        worker.end()
        error = worker.answer()["error"]
        assert (error["outcome"], error["kind"]) == ("retry", "shutdown")
        assert worker.exit_code() == 0, worker.output()


def test_retry_has_its_delay() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        assert worker.run("busy")["error"]["after_ms"] == 2000


def test_threads_of_asyncio_log_for_their_attempt() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("in-thread")
        assert worker.receive() == {"log": {"n": n, "lines": ["from a thread"], "stream": "stdout"}}
        assert worker.receive() == {"ok": {"n": n, "output": None}}


def test_lifespan_ends_after_the_running_attempts() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        n = worker.start("forever", {"swallow": True})
        worker.end_after_cancel(n)
        assert worker.answer()["ok"]["output"] == "finished after the cancel"
        assert worker.exit_code() == 0
        assert worker.output() == "entered\nleft\n"


def test_failing_lifespan_is_reported() -> None:
    with Worker(APP, TEST_LIFESPAN="fails") as worker:
        worker.send_welcome()
        message = worker.receive()
        assert message and "OSError: the database is down" in message["unable"]["message"]
        assert worker.exit_code() == 0


def test_cancelled_attempts_of_ten_answer_separately() -> None:
    with Worker(APP) as worker:
        worker.welcome()
        numbers = [worker.start("forever") for _ in range(10)]
        for n in numbers[5:]:
            worker.send("cancel", n=n, reason="cancelled")
        assert sorted(worker.answer()["error"]["n"] for _ in range(5)) == numbers[5:]
        until(lambda: worker.run("busy")["error"]["kind"] == "error", "another attempt")
