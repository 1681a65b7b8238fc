"""mypy --strict and pyright accept the documented use, and reject wrong arguments."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TYPING = Path(__file__).parent / "typing"
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict"],
    "pyright": [str(Path(sys.executable).with_name("pyright")), "--pythonpath", sys.executable, "--project", str(TYPING)],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_wrong_arguments_are_rejected_and_right_ones_accepted(checker: str) -> None:
    found = subprocess.run(
        [*CHECKERS[checker], *([] if checker == "pyright" else map(str, TYPING.glob("*.py")))],
        cwd=TYPING.parents[1], capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    errors = {
        (name, int(line)) for name, line in re.findall(r"(accepted|rejected)\.py:(\d+)(?::\d+)?(?: -|:) error", found.stdout)
    }
    lines = (TYPING / "rejected.py").read_text().splitlines()
    expected = {("rejected", number) for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert errors == expected, found.stdout + found.stderr
