"""Python in the documents: it runs as it is shown."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from driver import ROOT, Worker

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
    tasks = module("tasks", first)
    shown = module("shown", tests.replace("from kafleet", "from tasks import greet\nfrom kafleet", 1))
    shown.test_greeting()
    vars(shown)["place_order"] = lambda name: tasks.greet.submit(name)
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


def test_migration_from_celery_runs() -> None:
    library: dict[str, Any] = {
        "make_thumbnail": lambda path, width: f"{path} at {width}",
        "make_sheet": lambda title, thumbnails: f"{title}: {thumbnails}",
        "send_report": lambda: None,
    }
    vars(module("shop_lib", "")).update(library)
    module("shop", block_with("docs/from-celery.md", "from shop_lib"))
    shown = module("shown", block_with("docs/from-celery.md", "def test_upload"))
    shown.test_upload_spawns_a_thumbnail_for_each_picture()
