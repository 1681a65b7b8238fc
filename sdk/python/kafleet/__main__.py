"""Runs an app for the worker that starts it: `python -m kafleet TARGET`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .loading import load
from .session import Unable, serve

_USAGE = """usage: python -m kafleet TARGET    (tasks.py, shop.tasks or shop.tasks:app)
       python -m kafleet attach [OPTIONS OF DEV] TARGET    for debuggers: `kafleet dev` with the handlers in this process

hint: a worker starts the first one; run `kafleet dev TARGET`"""


def main() -> None:
    """Serves the app of the target."""
    *before, target = sys.argv[1:] or [""]
    verb, *options = before or [""]
    if not target or target.startswith("-") or verb not in ("", "attach"):
        sys.exit(_USAGE)
    sys.argv = [target]
    if verb:
        debug(target, options)
    else:
        serve(lambda: load(target))


def debug(target: str, options: Sequence[str] = ()) -> None:
    """Runs a fleet whose handlers run in this process, with its output here. `options`: those of `kafleet dev`."""
    import signal
    import subprocess

    from .fleet import attach, program
    from .streams import configure_logging

    try:
        attached = attach(target)
    except Unable as error:
        sys.exit(f"error: {error}")
    configure_logging()
    with attached:
        command = [program(), "dev", "--no-timeouts", *options, "--", *attached.command(program(), target)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as fleet:
            # The fleet lets the attempts end, and ctrl-c reaches it twice.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: fleet.send_signal(number))
            sys.exit(fleet.wait())


if __name__ == "__main__":
    main()
