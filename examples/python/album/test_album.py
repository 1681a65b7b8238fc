"""Tests of the album: single attempts without a fleet, and a whole album on a real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from album import tasks
from PIL import Image

from kafleet import Ended, TaskFailed
from kafleet.testing import fleet, trial

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def running() -> Iterator[None]:
    with fleet("tasks.py", cwd=HERE):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        Image.new("RGB", (400, 300), (40 * number, 0, 0)).save(tmp_path / f"{number}.jpg")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_album_spawns_a_thumbnail_for_each_picture(folder: Path) -> None:
    run = trial(tasks.album, folder, folder / "out")
    assert run.output == 6
    assert [child["name"] for child in run.children] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "4.jpg", "broken.png"]
    assert run.then[0]["type"] == "contact-sheet"
    failure = trial(tasks.album, folder / "out", folder / "out").failure
    assert failure and (failure.outcome, failure.kind) == ("fail", "empty_folder")


def test_thumbnail_keeps_the_proportions(folder: Path) -> None:
    run = trial(tasks.thumbnail, folder / "1.jpg", folder / "small.png", size=100)
    assert (run.output.width, run.output.height) == (100, 75)
    assert run.log == [f"{folder / '1.jpg'}: 400 x 300"]
    with Image.open(folder / "small.png") as image:
        assert image.size == (100, 75)


@pytest.mark.parametrize(("name", "kind"), [("broken.png", "UnidentifiedImageError"), ("missing.jpg", "FileNotFoundError")])
def test_unreadable_picture_fails_without_a_retry(folder: Path, name: str, kind: str) -> None:
    failure = trial(tasks.thumbnail, folder / name, folder / "small.png").failure
    assert failure and (failure.outcome, failure.kind) == ("fail", kind)


def test_contact_sheet_has_the_thumbnails_in_order(folder: Path) -> None:
    small = [trial(tasks.thumbnail, folder / f"{n}.jpg", folder / f"{n}.png", size=100).output for n in range(5)]
    results = [Ended(f"summer:{n}", "thumbnail", "succeeded", small[n]) for n in range(5)]
    run = trial.using(results=results)(tasks.contact_sheet, out=folder / "album.png", size=100)
    assert run.progress[-1] == {"pasted": 5, "of": 5}
    with Image.open(run.output) as sheet:
        assert sheet.size == (400, 200)
        red = [sheet.convert("RGB").getpixel((50 + 100 * place % 400, 37 + 100 * (place // 4))) for place in range(5)]
    assert [pixel[0] // 35 for pixel in red if isinstance(pixel, tuple)] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("running")
def test_album_is_made_by_a_fleet(folder: Path) -> None:
    handle = tasks.album.submit(folder=folder, out=folder / "out")
    last = list(handle.watch(timeout=60))[-1]
    assert last["state"] == "succeeded" and last["tree"]["failed"] == 1
    assert handle.result() == 6
    sheet = tasks.contact_sheet.handle(f"{handle.id}:then").result(timeout=60)
    assert sheet == folder / "out/album.png"
    with Image.open(sheet) as image:
        assert image.size == (640, 320)


@pytest.mark.usefixtures("running")
def test_empty_folder_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed) as failed:
        tasks.album.submit(folder=tmp_path, out=tmp_path).result(timeout=60)
    assert failed.value.kind == "empty_folder"
