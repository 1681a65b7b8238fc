"""Test app that uses its output streams as any program does."""

import codecs
import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace", write_through=False)  # type: ignore[union-attr]

from kafleet import App  # noqa: E402

app = App(slots=int(os.environ.get("TEST_SLOTS", "1")))
out: Any = sys.stdout


def wrapped(wrapper: Callable[[Any], Any]) -> Callable[[], None]:
    def use() -> None:
        stream = wrapper(out.buffer)
        stream.write("text\n")
        stream.flush()

    return use


def replaced() -> None:
    """As programs did before `reconfigure`, without a flush."""
    sys.stdout = io.TextIOWrapper(out.buffer, encoding="utf-8")
    print("text")


def dropped() -> None:
    """The wrapper is garbage at once, and closes what it wraps."""
    io.TextIOWrapper(out.buffer).write("text\n")


def redirected() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        print("text")


def handled() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.handle(logging.makeLogRecord({"msg": "text"}))


def closed() -> None:
    out.close()
    out.buffer.close()
    print("text")


def split() -> None:
    for byte in "tüxt €\n".encode():
        out.buffer.write(bytes([byte]))


def read_members() -> None:
    names = ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through", "closed", "buffer")
    found: dict[str, Any] = {name: getattr(out, name) for name in names}
    assert (found["name"], found["mode"], found["encoding"].lower(), found["closed"]) == ("<stdout>", "w", "utf-8", False)
    assert issubclass(type(out), io.TextIOWrapper) and issubclass(type(out.buffer), io.BufferedIOBase)
    assert (out.isatty(), out.writable(), out.readable(), out.seekable()) == (False, True, False, False)
    assert out.fileno() == 1 and out.buffer.fileno() == 1 and out.buffer.raw.writable()
    assert (out.buffer.name, out.buffer.mode) == ("<stdout>", "wb")
    out.buffer.write(bytearray(b"te"))
    out.buffer.raw.write(memoryview(b"xt\n"))
    wrongs: list[Callable[[], Any]] = [lambda: out.write(b"x"), lambda: out.buffer.write("x"), lambda: out.read()]
    for wrong in wrongs:
        try:
            wrong()
        except (TypeError, OSError):
            continue
        raise AssertionError


USES: dict[str, Callable[[], Any]] = {
    "print": lambda: print("te", "xt", sep=""),
    "bytes": lambda: out.buffer.write(b"text\n"),
    "lines": lambda: out.writelines(["te", "xt\n"]),
    "byte lines": lambda: out.buffer.writelines([b"te", b"xt\n"]),
    "codecs": wrapped(codecs.getwriter("utf-8")),
    "wrapper": wrapped(lambda buffer: io.TextIOWrapper(buffer, encoding="utf-8")),
    "replaced": replaced,
    "dropped": dropped,
    "redirected": redirected,
    "handled": handled,
    "closed": closed,
    "split": split,
    "members": read_members,
    "reconfigured": lambda: (out.reconfigure(encoding="latin-1", errors="replace", newline="\r\n"), print("text")),
    "half": lambda: print("\ud83d"),
    "stderr": lambda: sys.stderr.write("text\n"),
    "detached": lambda: (setattr(sys, "stdout", io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8")), print("text")),  # type: ignore
    "after": lambda: print("text"),
}


@app.task(retries=0)
def write(how: str) -> str:
    if how != "after":  # A stream that a handler has put in place of it stays there.
        sys.stdout = out
    USES[how]()
    if how == "replaced":
        print("more text")
    return "ok"
