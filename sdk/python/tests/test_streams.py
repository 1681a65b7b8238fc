"""Output streams of handlers are whole streams, and outside of attempts they are bounded."""

import subprocess
import sys
from pathlib import Path

import pytest
from driver import APPS, Worker

from kafleet.streams import Allowance

LINES = {"half": ["?"], "split": ["tüxt €"], "replaced": ["text", "more text"]}


@pytest.mark.parametrize("slots", ["1", "2"])
def test_every_use_of_a_stream_writes_to_the_log_of_the_task(slots: str) -> None:
    uses = subprocess.run(
        [sys.executable, "-c", "import writes; print(*writes.USES, sep='\\n')"],
        cwd=APPS,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    with Worker("writes.py", TEST_SLOTS=slots) as worker:
        worker.welcome()
        for how in uses:
            worker.start("write", {"how": how})
            lines: list[str] = []
            while (message := worker.receive()) and "log" in message:
                lines += message["log"]["lines"]
            assert message and message.get("ok", {}).get("output") == "ok", f"{how}: {message}"
            assert lines == LINES.get(how, ["text"]), how
        worker.end()
        assert worker.exit_code() == 0
        assert worker.output() == ""


MIXED = """
import logging, sys
from kafleet import App, current
app = App()
@app.task
def mixed() -> None:
    print("begun", end="")
    sys.stderr.write("half of ")
    print(" and ended")
    print("a line", file=sys.stderr)
    sys.stderr.buffer.write("größe\\n".encode())
    logging.getLogger("shop").warning("a record")
    current().log("logged")
    sys.stderr.write("last")
"""


def test_lines_have_the_stream_to_which_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(MIXED)
    with Worker("mixed.py", cwd=tmp_path) as worker:
        worker.welcome()
        worker.start("mixed", {})
        lines: list[tuple[str | None, str]] = []
        while (message := worker.receive()) and "log" in message:
            log = message["log"]
            lines += [(log.get("stream"), line) for line in log["lines"]]
        assert message and "ok" in message, message
        assert lines == [
            ("stdout", "begun and ended"),
            ("stderr", "half of a line"),
            ("stderr", "größe"),
            (None, "WARNING shop: a record"),
            (None, "logged"),
            ("stderr", "last"),
        ]
        worker.end()


def test_output_outside_of_attempts_is_bounded() -> None:
    now = [0.0]
    allowance = Allowance(lambda: now[0])
    line = b"x" * 99 + b"\n"
    written = [allowance.admit(line) for _ in range(1_000_000)]
    assert sum(map(len, written)) < (1 << 20) + 200
    assert written[0] == line and written[-1] == b""
    assert written.count(b"kafleet: more output than 1048576 bytes at once is dropped\n") == 1
    now[0] = 1.0
    assert allowance.admit(line) == b""
    now[0] = 30.0
    dropped = sum(not text or text.startswith(b"kafleet") for text in written) + 1
    assert allowance.admit(line) == b"kafleet: %d bytes of output were dropped here\n" % (100 * dropped) + line
    assert allowance.admit(line) == line


def test_flood_of_a_process_is_bounded(tmp_path: Path) -> None:
    flood = "import sys\nfor n in range(300_000): print(n, 'x' * 90, file=sys.stderr)\n"
    (tmp_path / "flood.py").write_text(f"{flood}from kafleet import App\napp = App()\n@app.task\ndef a() -> None: ...\n")
    with Worker("flood.py", cwd=tmp_path) as worker:
        # The pipe of the output has to be read meanwhile.
        worker.send_welcome()
        worker.end()
        assert worker.process.stdout
        output = worker.process.stdout.read()
        assert worker.exit_code() == 0 and len(output) < 4 << 20 and b"is dropped" in output


WITHOUT_POSIX = """
import importlib, os, pkgutil, select, signal, socket, sys
import asyncio, http.client, pytest, ssl, subprocess, tempfile  # Modules of others that look at the platform.
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for module, names in {
    os: ("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "killpg", "setsid", "WNOHANG", "uname"),
    select: ("poll", "epoll", "POLLIN", "POLLHUP", "POLLERR"),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "pthread_sigmask"),
    socket: ("AF_UNIX",),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import kafleet
for module in pkgutil.iter_modules(kafleet.__path__):
    importlib.import_module(f"kafleet.{module.name}")
"""


def test_client_can_be_imported_without_posix() -> None:
    """A web application on Windows submits tasks, although its workers run elsewhere."""
    program = WITHOUT_POSIX + "app = kafleet.App()\n@app.task\ndef a() -> None: ...\napp.client\nprint('ready')\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
