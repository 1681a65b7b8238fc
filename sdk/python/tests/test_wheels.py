"""The wheels: their contents, and the quick start on a machine with Python alone."""

import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from driver import PATIENCE, ROOT, until
from packaging.metadata import Metadata
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

PACKAGE = ROOT / "sdk/python/program"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what `sdk/python/wheels` builds from the program of the tests."""
    folder = tmp_path_factory.mktemp("wheels")
    script = [str(ROOT / "sdk/python/wheels"), os.environ["KAFLEET_BINARY"], str(folder)]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_wheels_have_no_file_in_common(wheels: Path) -> None:
    program, sdk = (zipfile.ZipFile(one_of(wheels, name)).namelist() for name in ("kafleet-*.whl", "kafleet_sdk-*.whl"))
    assert [name for name in program if ".dist-info/" not in name] == [
        one_of(wheels, "kafleet-*.whl").name.split("-py3")[0] + ".data/scripts/kafleet"
    ]
    assert {name.split("/")[0] for name in sdk if ".dist-info/" not in name} == {"kafleet"}
    assert "kafleet/py.typed" in sdk and not set(program) & set(sdk)


@pytest.mark.parametrize("name", ["kafleet-*.whl", "kafleet_sdk-*.whl"])
def test_record_and_metadata_of_a_wheel_are_valid(wheels: Path, name: str) -> None:
    with zipfile.ZipFile(one_of(wheels, name)) as wheel:
        (record,) = (file for file in wheel.namelist() if file.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(wheel.read(record).decode().splitlines()))
        assert sorted(file for file, _, _ in rows) == sorted(wheel.namelist())
        for file, digest, size in rows:
            content = wheel.read(file)
            found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert file == record or (digest, int(size)) == (f"sha256={found}", len(content)), file
        metadata = Metadata.from_email(wheel.read(record.replace("RECORD", "METADATA")))
    assert metadata.description and metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == "Apache-2.0" and str(metadata.requires_python) == ">=3.11"
    wanted = ["kafleet-sdk~=0.1.0"] if name == "kafleet-*.whl" else []
    assert [str(requirement) for requirement in metadata.requires_dist or []] == wanted


def test_wheel_of_the_program_is_of_its_platform(wheels: Path) -> None:
    wheel = one_of(wheels, "kafleet-*.whl")
    _, _, _, (tag,) = parse_wheel_filename(wheel.name)
    assert (tag.interpreter, tag.abi) == ("py3", "none") and tag.platform in {each.platform for each in sys_tags()}
    with zipfile.ZipFile(wheel) as files:
        (program,) = (file for file in files.infolist() if file.filename.endswith("/scripts/kafleet"))
        assert program.external_attr >> 16 & 0o777 == 0o755
        (about,) = (file for file in files.namelist() if file.endswith(".dist-info/WHEEL"))
        assert {"Root-Is-Purelib: false", f"Tag: {tag}"} <= set(files.read(about).decode().splitlines())
    # PyPI accepts 100 MB. A program of the profile `dist` packs to about a fifth of that.
    assert wheel.stat().st_size < 100_000_000


def test_source_distribution_of_the_program_names_the_remedies(wheels: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", str(one_of(wheels, "kafleet-*.tar.gz")), "-C", str(tmp_path)], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "KAFLEET_BINARY"}
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(build, cwd=one_of(tmp_path, "kafleet-*"), env=environment, capture_output=True, text=True)
    assert done.returncode and "there is no wheel of kafleet for this platform" in done.stderr
    assert "cargo build --profile dist" in done.stderr and "KAFLEET_BINARY" in done.stderr and "`kafleet-sdk`" in done.stderr


def test_quick_start_runs_on_a_machine_with_python_alone(wheels: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/python.md").read_text().split("\n## ")[1]
    tasks, commands = (
        re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)[0],
        re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)[-1],
    )
    folder, bin = tmp_path / "project", tmp_path / "bin"
    folder.mkdir()
    bin.mkdir()
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, folder)
    (folder / "tasks.py").write_text(tasks)
    (bin / "python3").symlink_to(Path(sys.base_prefix) / "bin/python3")
    # No checkout, no Rust, no package index, and a port of its own.
    environment = {
        "PATH": f"{bin}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "KAFLEET_API_LISTEN": "127.0.0.1:0",
    }
    with Terminal(folder, environment) as terminal:
        *earlier, last = commands.splitlines()
        for command in earlier:
            terminal.run(command)
        assert terminal.run(last).count("hello Ada\n") == 3


def test_start_without_the_sdk_names_the_folder_to_install(tmp_path: Path) -> None:
    venv.create(tmp_path / "empty")
    (tmp_path / "tasks.py").touch()
    check = [os.environ["KAFLEET_BINARY"], "app", "check", "tasks.py"]
    environment = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path / "empty")}
    done = subprocess.run(check, cwd=tmp_path, env=environment, capture_output=True, text=True)
    hint = re.search(
        r"hint: install the SDK from a checkout of kafleet: (\S+) -m pip install PATH_OF_THE_CHECKOUT/(\S+)", done.stderr
    )
    assert done.returncode == 1 and hint, done.stderr
    assert hint[1] == str(tmp_path / "empty/bin/python")
    assert tomllib.loads((ROOT / hint[2] / "pyproject.toml").read_text())["project"]["name"] == "kafleet-sdk"


class Terminal:
    """Runs the commands of a page; `kafleet dev` goes on beside the ones after it, which find its API."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.fleet: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.fleet:
            self.fleet.terminate()
            self.fleet.wait(PATIENCE)

    def run(self, command: str) -> str:
        """Runs a command to its end and returns its output, or to the address of its API if it is `kafleet dev`."""
        if " dev " in command:
            return self._serve(command)
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=3 * PATIENCE
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, command: str) -> str:
        log = self.folder / "dev.log"
        with log.open("wb") as output:
            self.fleet = subprocess.Popen(
                f"exec {command}", shell=True, cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )
        until(lambda: "serving until" in log.read_text() or self._ended(), "the fleet serves")
        found = re.search(r"^ +api +(http://\S+)", log.read_text(), re.M)
        assert found, log.read_text()
        self.environment["KAFLEET_API"] = found[1]
        return ""

    def _ended(self) -> bool:
        return self.fleet is not None and self.fleet.poll() is not None


def one_of(folder: Path, pattern: str) -> Path:
    """Returns the only file that matches."""
    (found,) = folder.glob(pattern)
    return found
