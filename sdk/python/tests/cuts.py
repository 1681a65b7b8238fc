"""Plays sessions that are cut off; each cut runs in a fork of this process. Prints the number of cuts.

One session is cut at every byte behind its first line. The first cut that is not answered as it should be ends the program.
"""

import itertools
import json
import os
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "apps"))
import conformance  # pyright: ignore[reportMissingImports]

from kafleet.session import serve


def main() -> None:
    sessions: dict[str, list[str]] = json.load(sys.stdin)
    count = 0
    for name, lines in sessions.items():
        # An attempt that would wait for a cancel ends at once.
        data = b"".join(line.replace('"ms":600000', '"ms":1').encode() + b"\n" for line in lines)
        every = range(len(lines[0].encode()), len(data))
        for cut in [*range(0, every.start, 9), *every] if name == "spawn" else near_line_breaks(data):
            check(name, data[:cut])
            count += 1
    print(count)


def near_line_breaks(data: bytes) -> list[int]:
    """Returns the cuts beside line breaks and in the middle of lines; a cut further inside of a line differs in nothing."""
    ends = [index for index, byte in enumerate(data) if byte == ord("\n")]
    middles = [(start + end) // 2 for start, end in itertools.pairwise(ends)]
    return sorted({*middles, *ends, *(end + 1 for end in ends)})


def check(name: str, data: bytes) -> None:
    """Runs the app with the beginning of a session."""
    code, output = run(data)
    answers = [json.loads(line) for line in output.splitlines()]
    complete = [line for line in data.split(b"\n")[:-1] if line.startswith(b'{"attempt"')]
    answered = [answer for answer in answers if answer.keys() & {"ok", "error"}]
    expected_code = 0 if b"\n" in data else 1
    if code != expected_code or len(answered) != len(complete):
        sys.exit(f"{name} cut after {len(data)} bytes {data[-60:]!r}: exit code {code}, answers {answers}")


def run(data: bytes) -> tuple[int, bytes]:
    ours, theirs = socket.socketpair()
    ours.sendall(data)
    ours.shutdown(socket.SHUT_WR)
    child = os.fork()
    if child == 0:
        serve_and_exit(ours, theirs)
    theirs.close()
    output = b""
    while chunk := ours.recv(1 << 16):
        output += chunk
    ours.close()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


def serve_and_exit(ours: socket.socket, theirs: socket.socket) -> None:
    ours.close()
    os.dup2(theirs.fileno(), 0)
    theirs.close()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # A hang ends the process, which then has the code of SIGALRM.
    threading.Timer(30, lambda: os._exit(99)).start()
    try:
        serve(lambda: conformance.app)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        os._exit(98)


main()
