"""Source files that the app has loaded, for the reload of `kafleet dev`: a change of another file restarts nothing."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable

from .values import encode

INTERVAL_SECONDS = 0.25
"""Time between two looks at the loaded modules: a handler may import further ones."""
_INSTALLED = ("site-packages", "dist-packages")


def report(send: Callable[[bytes], object]) -> None:
    """Sends the files that are loaded now, and from then on those of further modules."""
    known: set[str] = set()
    _send_new(known, send)
    threading.Thread(target=_watch, args=(known, send), name="kafleet-files", daemon=True).start()


def _watch(known: set[str], send: Callable[[bytes], object]) -> None:
    modules, stop = len(sys.modules), threading.Event()
    while not stop.wait(INTERVAL_SECONDS):
        if len(sys.modules) != modules:
            modules = len(sys.modules)
            _send_new(known, send)


def _send_new(known: set[str], send: Callable[[bytes], object]) -> None:
    if new := loaded_files() - known:
        known |= new
        send(b'{"files":{"paths":%b}}\n' % encode(sorted(new)))


def loaded_files() -> set[str]:
    """Returns the files of all modules but those of Python and of installed packages."""
    library = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
    files = {os.path.realpath(file) for module in list(sys.modules.values()) if (file := _file_of(module))}
    return {file for file in files if not file.startswith(library) and not any(part in file for part in _INSTALLED)}


def _file_of(module: object) -> str | None:
    try:
        file = getattr(module, "__file__", None)
    except Exception:  # A module that loads itself when it is used, and fails.
        return None
    return file if isinstance(file, str) and os.path.isabs(file) else None
