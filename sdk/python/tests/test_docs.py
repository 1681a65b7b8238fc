"""Python in the documents: it runs as it is shown."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from driver import PATIENCE, ROOT, Worker

from kafleet.testing import fleet

PAGES = [ROOT / "docs/python.md", ROOT / "docs/from-celery.md", ROOT / "sdk/python/README.md", ROOT / "docs/app-protocol.md"]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def block_with(page: str, text: str) -> str:
    (found,) = (block for block in blocks(ROOT / page) if text in block)
    return found


def module(name: str, code: str) -> ModuleType:
    found = ModuleType(name)
    sys.modules[name] = found
    # Not inherited: the annotations of this file are not those of the documents.
    exec(compile(code, f"{name}.py", "exec", dont_inherit=True), vars(found))
    return found


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    earlier = dict(sys.modules)
    yield
    sys.modules.clear()
    sys.modules.update(earlier)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_python(page: Path) -> None:
    assert blocks(page)
    for block in blocks(page):
        compile(block, str(page), "exec", dont_inherit=True)


def test_first_example_of_python_and_its_tests_run(tmp_path: Path) -> None:
    first, tests = blocks(ROOT / "docs/python.md")[0], block_with("docs/python.md", "def test_greeting()")
    module("tasks", first)
    module("shop", "from tasks import greet\ndef place_order(name): greet.submit(name)")
    shown = module("shown", tests)
    shown.test_greeting()
    shown.test_order_greets()
    (tmp_path / "tasks.py").write_text(first)
    with fleet("tasks.py", cwd=tmp_path) as running:
        shown.test_greeting_on_a_fleet(running)


def test_smallest_app_of_the_protocol_page_runs(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(blocks(ROOT / "docs/app-protocol.md")[0])
    with Worker("app.py", cwd=tmp_path, module=False) as worker:
        worker.welcome()
        assert worker.run("double", {"x": 21}) == {"ok": {"n": 1, "output": 42}}
        worker.end()
        assert worker.exit_code() == 0


SHOP_LIBRARY = """
def make_thumbnail(path, width): return f"{path} at {width}"
def make_sheet(title, thumbnails): return f"{title}: {thumbnails}"
def send_report(): pass
"""


def test_migration_from_celery_runs(tmp_path: Path) -> None:
    code = block_with("docs/from-celery.md", "from shop_lib")
    module("shop_lib", SHOP_LIBRARY)
    shop = module("shop", code)
    shown = module("shown", block_with("docs/from-celery.md", "def test_upload"))
    shown.test_upload_spawns_a_thumbnail_for_each_picture()
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "shop_lib.py").write_text(SHOP_LIBRARY)
    paths = [f"{n}.jpg" for n in range(12)]
    with fleet("shop.py", cwd=tmp_path):
        handle = shop.upload.submit(paths, title="summer")
        assert handle.result(PATIENCE) is None
        sheet = shop.contact_sheet.handle(f"{handle.id}:then").result(PATIENCE)
    assert sheet == f"summer: {[f'{path} at 200' for path in paths]}"
