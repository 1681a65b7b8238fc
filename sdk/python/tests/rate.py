"""Measures the rate of attempts through one app process, without a worker: `python tests/rate.py [ATTEMPTS]`.

Prints for each kind of handler: attempts per second, and microseconds of CPU of the app for each. The driver is a Python
program, which limits the rate; the CPU time is that of the app alone.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from driver import Worker

CASES = [
    ("loop of the protocol page, 1 at a time", "loop.py", "double", '{"x":2}', 1),
    ("sync, 1 slot, 1 at a time", "doubling.py", "double", '{"x":2}', 1),
    ("async, 10 slots, 1 at a time", "doubling_async.py", "adouble", '{"x":2}', 1),
    ("async, 10 slots, 10 at a time", "doubling_async.py", "adouble", '{"x":2}', 10),
    ("async beside a def, 10 at a time", "doubling_both.py", "adouble", '{"x":2}', 10),
    ("sync beside an async def, 1 at a time", "doubling_both.py", "double", '{"x":2}', 1),
]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for name, app, type, params, at_once in CASES:
        seconds, cpu = measure(app, type, params, at_once, count)
        print(f"{name:40} {count / seconds:9.0f}/s {cpu / count * 1e6:6.1f} µs")


def measure(app: str, type: str, params: str, at_once: int, count: int) -> tuple[float, float]:
    with Worker(app, module=app != "loop.py") as worker:
        worker.welcome()
        lines = [
            f'{{"attempt":{{"n":{n},"type":"{type}","id":"task-{n}","run":1,"number":1,"left_ms":60000,"params":{params}}}}}\n'.encode()
            for n in range(1, count + 1)
        ]
        before, start = cpu_of(worker.process.pid), time.perf_counter()
        worker.socket.sendall(b"".join(lines[:at_once]))
        answered, sent = 0, at_once
        while answered < count:
            more = worker.socket.recv(1 << 16).count(b"\n")
            assert more, worker.output()
            answered += more
            worker.socket.sendall(b"".join(lines[sent : sent + more]))
            sent += more
        seconds = time.perf_counter() - start
        return seconds, cpu_of(worker.process.pid) - before


def cpu_of(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


main()
