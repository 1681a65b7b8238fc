"""URL of the API that a client uses."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

DEFAULT_URL = "http://127.0.0.1:8080"
_DEV_FILE = Path(".kafleet-dev.json")
_MAX_DEV_BYTES = 4096
_LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\]):[0-9]{1,5}")
"""URLs that the file may have: it may come with a folder of another user, and its URL gets the token."""


def url_of(given: str | None) -> str:
    """Returns the URL that was given, that of KAFLEET_API, that of `kafleet dev` in the working directory, or the default."""
    return (given or os.environ.get("KAFLEET_API") or _dev_url() or DEFAULT_URL).rstrip("/")


def _dev_url() -> str | None:
    """Returns the URL in the file of `kafleet dev`. Nothing, if the file cannot be read, or its process has ended."""
    try:
        if not _DEV_FILE.is_file():  # Reading a pipe would wait.
            return None
        with _DEV_FILE.open("rb") as file:
            text = file.read(_MAX_DEV_BYTES + 1)
        document = json.loads(text) if len(text) <= _MAX_DEV_BYTES else {}
        url, pid = document["api"], document["pid"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return url if isinstance(url, str) and _LOOPBACK.fullmatch(url) and _lives(pid) else None


def _lives(pid: Any) -> bool:
    if sys.platform == "win32" or type(pid) is not int or pid < 1:  # There, signal 0 would interrupt the process.
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
