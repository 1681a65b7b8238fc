"""Code that type checkers reject: each line that ends with `# error`, and no other."""

from pathlib import Path

from kafleet import App, Context, Joined, Retry, Wait, chain, group

app = App()


@app.task
def thumbnail(cx: Context, path: str, width: int = 200) -> str:
    return path


@app.task
async def album(folder: Path) -> int:
    return 1


@app.task
def sheet(cx: Joined[str], title: str) -> str:
    return cx.results[0].output.upper()  # error


thumbnail.submit()  # error
thumbnail.submit(5)  # error
thumbnail.submit("a.jpg", width="64")  # error
thumbnail.submit("a.jpg", height=64)  # error
thumbnail("a.jpg")  # error
thumbnail.submit("a.jpg").result().real  # error
thumbnail.using(tag="shop")  # error
thumbnail.using(retries="3")  # error
thumbnail.using(delay=60)  # error
thumbnail.delay("a.jpg")  # error
Retry("busy", after=30)  # error
Wait("busy", after=0.5)  # error
album.submit("a").result()  # error
sheet.call(1)  # error
App(slot=1)  # error


small = app.bundle("small", retries=3)
app.bundle("other", retrys=3)  # error


@small.task
def resize(cx: Context, path: str, width: int = 200) -> str:
    return path


@small.task(name="send-mail", fail_on=[ValueError])
async def send_mail(to: str) -> int:
    return 1


@small.task
def mosaic(cx: Joined[str], title: str) -> str:
    return cx.results[0].output.upper()  # error


resize.submit()  # error
resize.submit(5)  # error
resize.submit("a.jpg", height=64)  # error
resize("a.jpg")  # error
send_mail.submit("a").result().upper()  # error
send_mail.using(tag="shop")  # error
mosaic.call(1)  # error


@small.task(retrys=3)  # error
def misspelt_in_a_bundle() -> None: ...


@app.task(retrys=3)  # error
def misspelt() -> None: ...


@app.task(timeout=30)  # error
def without_unit() -> None: ...


@app.task(retention="1d")  # error
def elsewhere() -> None: ...


chain(thumbnail, group(thumbnail.call("a.jpg")))  # error
group(thumbnail)  # error
album.handle("a").status()["stat"]  # error
album.handle("a").report("done")  # error
album.handle("a").retry(5)  # error
app.tasks.search(limit="5")  # error
app.schedules.upsert("a", cron="@daily")  # error
app.external("ci").submit(1)  # error


def handler(cx: Context) -> None:
    cx.then(thumbnail.map(["a"]))  # error
    cx.spawn(thumbnail)  # error
    cx.spawn(album, folder="a")  # error
    cx.then(sheet, heading="a")  # error
    cx.spawn(handler)  # error
    cx.spawn(resize, 5)  # error
    cx.then(mosaic, heading="a")  # error
