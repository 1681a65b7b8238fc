"""Build hook: puts a program that cargo has built into the scripts of the wheel."""

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MISSING = (
    "there is no wheel of kafleet for this platform, and this package cannot compile the program; hint: compile it in a checkout"
    " of the repository (`cargo build --profile dist`) and set KAFLEET_BINARY to its path, or install `kafleet-sdk`, which needs"
    " no program"
)


class ProgramHook(BuildHookInterface):  # type: ignore[type-arg]
    """Takes the program from KAFLEET_BINARY, and the platform of the tag from KAFLEET_PLATFORM (default: that of this Python)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the program to the wheel, which then is of its platform, and of any Python 3."""
        program = os.environ.get("KAFLEET_BINARY")
        if not program:
            raise RuntimeError(MISSING)
        if not Path(program).is_file():
            raise RuntimeError(f"KAFLEET_BINARY is `{program}`, which is not a file")
        platform = os.environ.get("KAFLEET_PLATFORM") or sysconfig.get_platform()
        build_data["shared_scripts"][str(Path(program).resolve())] = "kafleet"
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"
        build_data["pure_python"] = False
