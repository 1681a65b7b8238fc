"""Thumbnails of all pictures in a folder, and a contact sheet of them.

    pip install ../../../sdk/python pillow
    kafleet dev tasks.py
    kafleet submit album '{"folder": "/home/ada/pictures", "out": "/tmp/album"}' --wait

An album spawns a thumbnail for each picture. When all of them have ended, its continuation pastes them into one picture. A
picture that cannot be read fails its own task, and the contact sheet is made without it.
"""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from kafleet import App, Context, Fail, Joined

app = App()


@dataclass
class Thumbnail:
    """A small copy of a picture."""

    path: Path
    width: int
    height: int


@app.task
async def album(cx: Context, folder: Path, out: Path, size: int = 160) -> int:
    """Makes thumbnails and a contact sheet of the pictures in a folder."""
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not pictures:
        raise Fail(f"there are no pictures in `{folder}`", kind="empty_folder")
    out.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures):
        # Named children: a repeated attempt, or a retry of the album, spawns the same tasks.
        child = thumbnail.using(id=f"{number}", name=picture.name, on_failure="ignore")
        cx.spawn(child, picture, out / f"{number}.png", size)
    cx.then(contact_sheet, out=out / "album.png", size=size)
    return len(pictures)


@app.task(retries=2, timeout="1m", fail_on=[FileNotFoundError, UnidentifiedImageError])
def thumbnail(picture: Path, out: Path, size: int = 160) -> Thumbnail:
    """Saves a small copy of a picture."""
    with Image.open(picture) as image:
        print(f"{picture}: {image.width} x {image.height}")
        small = image.convert("RGB")
        small.thumbnail((size, size))
        save(small, out)
        return Thumbnail(out, small.width, small.height)


@app.task(timeout="5m")
def contact_sheet(cx: Joined[Thumbnail], out: Path, size: int = 160, columns: int = 4) -> Path:
    """Pastes the thumbnails of an album into one picture."""
    thumbnails = [result.output for result in cx.results if result.output]  # In the order of the pictures.
    if not thumbnails:
        raise Fail("no thumbnail could be made", kind="no_thumbnails")
    rows = -(-len(thumbnails) // columns)
    sheet = Image.new("RGB", (size * min(columns, len(thumbnails)), size * rows), "white")
    for place, small in enumerate(thumbnails):
        cx.check()
        with Image.open(small.path) as image:
            sheet.paste(image, (place % columns * size, place // columns * size))
        cx.progress({"pasted": place + 1, "of": len(thumbnails)})
    save(sheet, out)
    return out


def save(image: Image.Image, out: Path) -> None:
    """Replaces a file as a whole: another attempt at the same task may write it too."""
    partial = out.with_suffix(".partial")
    image.save(partial, format="PNG")
    partial.replace(out)
