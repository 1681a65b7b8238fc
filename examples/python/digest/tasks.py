"""SHA-256 digests of all files under a directory, as a tree of tasks.

    pip install ../../../sdk/python
    kafleet dev tasks.py
    kafleet submit digest-tree '{"path": "/usr/share/doc"}' --id docs --wait
    kafleet tree docs

A directory spawns a child for each of its entries; it has succeeded when all descendants have, and failed if any file could
not be read. Ids are derived from names, so that running a directory again under the same id is the same tree.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from kafleet import App, Context

app = App()

CHUNK_BYTES = 128 << 10
PROGRESS_BYTES = 64 << 20


@dataclass
class Listed:
    """Number of entries of a directory."""

    directories: int = 0
    files: int = 0
    skipped: int = 0
    """Symbolic links, sockets, pipes and devices."""


@dataclass
class Digested:
    sha256: str
    bytes: int


@app.task(fail_on=[OSError, ValueError])
def digest_tree(cx: Context, path: Path) -> Listed:
    """Digests everything under a directory."""
    listed = Listed()
    for entry in path.iterdir():
        cx.check()
        # Symbolic links are not followed, so that there are no cycles.
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            listed.skipped += 1
        elif entry.is_dir():
            listed.directories += 1
            cx.spawn(digest_tree.using(id=segment(entry.name), name=entry.name[:200]), entry)
        else:
            listed.files += 1
            cx.spawn(digest_file.using(id=segment(entry.name), name=entry.name[:200]), entry)
    return listed


@app.task(fail_on=[OSError])
def digest_file(cx: Context, path: Path) -> Digested:
    """Digests one file."""
    sha, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            cx.check()
            sha.update(chunk)
            size += len(chunk)
            if size % PROGRESS_BYTES < len(chunk):
                cx.progress({"bytes": size})
    return Digested(sha.hexdigest(), size)


def segment(name: str) -> str:
    """Returns the name if it is valid in an id, otherwise a hash of it."""
    if len(name) <= 40 and re.fullmatch(r"[A-Za-z0-9._~@-]+", name):
        return name
    return "~" + hashlib.sha256(name.encode()).hexdigest()[:16]
