"""Tests of the web app: a real server and a real fleet."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from primes import tasks

from kafleet.testing import Fleet, fleet, trial

HERE = Path(__file__).parent
PATIENCE = 60.0


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    with fleet("primes.tasks", cwd=HERE.parent) as found:
        yield found


@pytest.fixture(scope="module")
def web(running: Fleet) -> Iterator[str]:
    environment = {**os.environ, "KAFLEET_API": running.api, "LISTEN": "127.0.0.1:0"}
    command = [sys.executable, "-m", "primes.web"]
    with subprocess.Popen(command, cwd=HERE.parent, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield server.stdout.readline().split()[0]
        finally:
            server.terminate()


def get(url: str, data: bytes | None = None) -> tuple[str, str]:
    """Returns the URL after redirects, and the body."""
    with urllib.request.urlopen(url, data, timeout=PATIENCE) as answer:
        return answer.url, answer.read().decode()


def events(page: str) -> list[tuple[str, dict[str, Any]]]:
    """Reads the progress of a page to its end."""
    _, text = get(f"{page}/events")
    return [(event, json.loads(data)) for event, data in re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)]


def test_page_shows_progress_to_the_result(web: str) -> None:
    assert "<form" in get(web)[1]
    page, html = get(f"{web}/counts", b"limit=20000")
    assert page.startswith(f"{web}/counts/") and "EventSource" in html
    *progress, (last, _) = events(page)
    assert last == "end"
    done = [found["done"] for _, found in progress]
    assert done == sorted(done)
    # The task itself, 20 parts and the sum.
    final = {"state": "succeeded", "done": 22, "total": 22, "text": "there are 2262 primes"}
    assert progress[-1] == ("message", final)
    # A page that is opened later shows the same.
    assert events(page) == [("message", final), ("end", {})]


def test_count_is_cancelled_from_the_page(web: str) -> None:
    page, _ = get(f"{web}/counts", b"limit=2000000")
    get(f"{page}/cancel", b"")
    assert events(page)[-2][1]["state"] == "cancelled"


def test_invalid_requests_are_refused(web: str) -> None:
    for path, data, status in [("/counts", b"limit=many", 400), ("/counts/missing/events", None, 404), ("/else", None, 404)]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(web + path, data)
        assert refused.value.code == status, path
        refused.value.close()


def test_parts_cover_the_range() -> None:
    run = trial(tasks.count_primes, limit=100, parts=3)
    assert [child["params"] for child in run.children] == [
        {"first": 0, "end": 34}, {"first": 34, "end": 68}, {"first": 68, "end": 100},
    ]  # fmt: skip
    assert sum(trial(tasks.count_part, **child["params"]).output for child in run.children) == 25
    assert trial.using(results=[11, 8, 6])(tasks.add).output == 25
