"""The URL of the API that a client uses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafleet import App
from kafleet.address import DEFAULT_URL

DEV = "http://127.0.0.1:8081"
FILE = Path(".kafleet-dev.json")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KAFLEET_API", raising=False)


def url(**options: Any) -> str:
    return App(**options).client.url


def write(**fields: Any) -> None:
    FILE.write_text(json.dumps({"api": DEV, "pid": os.getpid(), **fields}))


def test_running_dev_is_found_in_the_folder_of_its_file() -> None:
    assert url() == DEFAULT_URL
    write()
    assert url() == DEV
    os.chdir("/")
    assert url() == DEFAULT_URL


def test_what_was_set_counts_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    monkeypatch.setenv("KAFLEET_API", "http://127.0.0.1:8082/")
    assert url() == "http://127.0.0.1:8082"
    assert url(api="http://127.0.0.1:8083") == "http://127.0.0.1:8083"


def test_app_follows_a_dev_that_starts_and_ends() -> None:
    app = App()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as dev:
        write(pid=dev.pid)
        assert app.client.url == DEV
    assert app.client.url == DEFAULT_URL


def test_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    write()
    monkeypatch.setattr(os, "kill", refuse)
    assert url() == DEV


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": 0},
        {"pid": -1},
        {"pid": True},
        {"pid": "1"},
        {"pid": None},
        {"pid": 1 << 70},
        {"api": None},
        {"api": "http://example.org:80"},
        {"api": "http://127.0.0.1:80@example.org:80"},
        {"more": "x" * 4096},
    ],
    ids=["zero", "negative", "boolean", "text", "null", "huge", "no URL", "another host", "a user name", "over 4,096 bytes"],
)
def test_unusable_file_is_ignored(fields: dict[str, Any]) -> None:
    write(**fields)
    assert url() == DEFAULT_URL


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"{}", b"[" * 4000], ids=range(6))
def test_file_without_the_members_is_ignored(text: bytes) -> None:
    FILE.write_bytes(text)
    assert url() == DEFAULT_URL


def test_file_that_cannot_be_read_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    FILE.mkdir()
    assert url() == DEFAULT_URL
    FILE.rmdir()
    os.mkfifo(FILE)
    assert url() == DEFAULT_URL
