"""Tests of the digests: single attempts without a fleet, and a whole directory on a real one, compared with sha256sum."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from digest import tasks

from kafleet.testing import fleet, trial

HERE = Path(__file__).parent

FILES = {"a.txt": b"a", "empty": b"", "with space.txt": b"b" * 300_000, "sub/c": b"c", "sub/deeper/d": b"d", "sub/deeper/é": b"e"}


@pytest.fixture(scope="module")
def running() -> Iterator[None]:
    with fleet("tasks.py", cwd=HERE):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to("a.txt")
    os.mkfifo(folder / "pipe")
    return folder


def sha256sum(path: Path) -> str:
    return subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout.split()[0].lstrip("\\")


def test_directory_spawns_a_child_for_each_entry(folder: Path) -> None:
    run = trial(tasks.digest_tree, folder)
    assert run.output == tasks.Listed(directories=1, files=3, skipped=2)
    children = {child["name"]: child for child in run.children}
    assert children["sub"]["type"] == "digest-tree" and children["a.txt"]["type"] == "digest-file"
    assert children["a.txt"]["id"] == "a.txt" and children["with space.txt"]["id"].startswith("~")


def test_file_has_the_digest_of_sha256sum(folder: Path) -> None:
    for name, content in FILES.items():
        assert trial(tasks.digest_file, folder / name).output == tasks.Digested(sha256sum(folder / name), len(content))


def test_missing_file_fails_without_a_retry(folder: Path) -> None:
    failure = trial(tasks.digest_file, folder / "missing").failure
    assert failure and (failure.outcome, failure.kind) == ("fail", "FileNotFoundError")


@pytest.mark.usefixtures("running")
def test_tree_has_a_digest_for_each_file(folder: Path) -> None:
    root = tasks.digest_tree.using(id="files").submit(folder)
    last = list(root.watch(timeout=60))[-1]
    assert (last["state"], last["tree"]["total"]) == ("succeeded", 3 + len(FILES))
    for name in FILES:
        path = [tasks.segment(part) for part in Path(name).parts]
        digested = tasks.digest_file.handle(":".join(["files", *path])).result(timeout=60)
        assert digested.sha256 == sha256sum(folder / name)
