"""Targets on the command line, and sections of kafleet.toml that start the same program by another name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = "from kafleet import App\napp = App()\n@app.task\ndef greet() -> None: ..."


@pytest.mark.parametrize("target", ["shop/app.py", "./shop/app.py", "shop.app", "shop.app:app"])
@pytest.mark.parametrize("started", ["shop.app", "shop.app:app", "shop/app.py"])
def test_section_that_starts_the_same_program_stands_for_the_target(started: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/app.py").write_text(APP)
    (tmp_path / "kafleet.toml").write_text(
        f'[apps.shop]\ncommand = ["{sys.executable}", "-m", "kafleet", "{started}"]\nslots = 3\n'
    )
    check = [os.environ["KAFLEET_BINARY"], "app", "check", target]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["shop", "greet"]]
