"""Code that type checkers accept."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

from kafleet import (
    UPSTREAM,
    ApiError,
    App,
    Chain,
    Context,
    Ended,
    Fail,
    Group,
    GroupHandle,
    Joined,
    Params,
    Retry,
    Status,
    Task,
    Upstream,
    chain,
    chord,
    current,
    group,
)  # fmt: skip
from kafleet.client import Handle
from kafleet.status import State
from kafleet.testing import Trial, recorded, trial

app = App(slots=4, strict=True)


@dataclass
class Thumb:
    path: str


@app.task(retries=5, timeout="30s", total_timeout=timedelta(hours=1), fail_on=[FileNotFoundError, "bad_width"])
def thumbnail(cx: Context, path: str, width: int = 200) -> Thumb:
    if width < 1:
        raise Fail("width must be positive", kind="bad_width")
    if width > 5000:
        raise Retry("busy", after=timedelta(seconds=30))
    cx.progress({"width": width})
    return Thumb(path)


@app.task(concurrency=4)
async def album(cx: Context, folder: Path) -> int:
    for picture in sorted(folder.glob("*.jpg")):
        cx.spawn(thumbnail.using(name=picture.name), str(picture), width=100)
    cx.then(contact_sheet, title=folder.name)
    await cx.aspawn_now([thumbnail.call("a.jpg")])
    return 1


@app.task
def contact_sheet(cx: Joined[Thumb], title: str) -> str:
    assert_type(cx.results, list[Ended[Thumb]])
    return title + ", ".join(result.output.path for result in cx.results if result.output)


@app.task
def plain(count: int) -> list[str]:
    return [current().id] * count


@app.task
async def whole(params: Params[dict[str, int]]) -> None:
    assert_type(params, dict[str, int])


small = app.bundle("small", concurrency=4, retries=3, timeout="30s", fail_on=[ValueError])


@small.task
def resize(cx: Context, path: str, width: int = 200) -> Thumb:
    print(cx.task_name.upper())
    return Thumb(path)


@small.task(name="send-mail", fail_on=[ValueError], retry_on=[KeyError])
async def send_mail(to: str) -> None: ...


@small.task
def mosaic(cx: Joined[Thumb], title: str) -> str:
    cx.spawn(resize.using(name="a"), "a.jpg", width=5)
    cx.then(send_mail, to="a@example.org")
    return title


@app.around
def measured(cx: Context) -> Iterator[None]:
    yield


async def uses() -> None:
    assert_type(await (await album.asubmit(Path("a"))).aresult(), int)
    async for status in album.handle("a").awatch():
        print(status["state"])


assert_type(thumbnail.submit("a.jpg", width=64), Handle[Thumb])
assert_type(thumbnail.using(id="cover-42", tags=["shop"]).submit("a.jpg").result(timeout=30), Thumb)
assert_type(thumbnail.using(at=datetime(2027, 1, 1, tzinfo=UTC), delay=timedelta(hours=1)).call("a.jpg").target.name, str)
assert_type(album.submit(folder=Path("a")).result(), int)
assert_type(contact_sheet.submit("title"), Handle[str])
assert_type(app.submit_many(thumbnail.call(path) for path in ["a", "b"]), list[Handle[Thumb] | ApiError])
assert_type(trial(album, Path("a")), Trial[int])
assert_type(trial.using(number=2)(thumbnail, "a").output, Thumb)
with recorded() as submitted:
    assert_type(len(submitted), int)
assert_type(resize.submit("a.jpg", width=64), Handle[Thumb])
assert_type(resize.using(tags=["shop"]).submit("a.jpg").result(timeout=30), Thumb)
assert_type(send_mail.submit("a@example.org"), Handle[None])
assert_type(mosaic.call("title").target.handle("a").result(), str)
assert_type(trial(resize, "a"), Trial[Thumb])
bundled: Task[..., Thumb] = resize
app.remote("elsewhere").submit(anything=1)


@app.task
def doubled(value: Upstream[int] = UPSTREAM, by: int = 2) -> int:
    return value * by


@app.task
def either(cx: Context | Joined[Thumb], title: str = "") -> str:
    cx.spawn(thumbnail.map(["a.jpg"]))
    cx.spawn(thumbnail.call("a.jpg"))
    cx.spawn_now(group(thumbnail.call("a.jpg"), thumbnail.call("b.jpg")))
    cx.then(chain(album.call(Path("a")), doubled))
    return cx.task.id if isinstance(cx, Joined) else title


assert_type(chain(album.call(Path("a")), doubled.call(by=3), either), Chain[int])
assert_type(chain(album.call(Path("a")), doubled).submit(), Handle[int])
assert_type(group(thumbnail.call(path) for path in ["a", "b"]), Group[Thumb])
assert_type(thumbnail.starmap([("a", 64)]).submit().result(timeout=30), list[Thumb])
assert_type(chord(thumbnail.chunks(["a"], 5), contact_sheet.call("title")).submit(), GroupHandle[Thumb])
assert_type(either.submit().then().final_result(), Any)
assert_type(album.handle("a").status()["state"], State)
assert_type(album.handle("a").retry(only_failed=True), int)
assert_type(list(app.tasks.search("state:failed", limit=5)), list[Status])
assert_type(app.bulk.cancel("type:album").result(), dict[str, int])
assert_type(app.bulk.redrive("album", kind="KeyError", patch={"size": 2}).result(), dict[str, int])
assert_type(app.external("ci").using(id="a").submit(), Handle[Any])
assert_type(app.handle("a").report("running"), bool)
assert_type(app.tasks["album"].name, str)


async def awaits() -> None:
    assert_type(await chain(album.call(Path("a")), doubled).asubmit(), Handle[int])
    assert_type(await album.handle("a").aretry(), int)
    assert_type(await app.schedules.aupsert("a", cron="@daily", task=doubled.call(1)), dict[str, Any])
    assert_type([status["id"] async for status in app.tasks.asearch()], list[str])


any_task: Task[..., Thumb] = thumbnail
