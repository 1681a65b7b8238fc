"""Runs an app for the worker that starts it: `python -m kafleet TARGET`."""

from __future__ import annotations

import sys

from .loading import load
from .session import serve


def main() -> None:
    """Serves the app of the target."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(
            "usage: python -m kafleet TARGET    (tasks.py, shop.tasks or shop.tasks:app)\n\n"
            "hint: a worker starts this; run `kafleet dev TARGET`"
        )
    target = sys.argv[1]
    sys.argv = [target]
    serve(lambda: load(target))


if __name__ == "__main__":
    main()
