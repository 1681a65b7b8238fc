"""Python in the documents: it runs as it is shown."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from driver import PATIENCE, ROOT, Worker

from kafleet import App
from kafleet.testing import fleet, trial

PAGES = [
    ROOT / "docs/python.md",
    ROOT / "docs/projects.md",
    ROOT / "docs/from-celery.md",
    ROOT / "sdk/python/README.md",
    ROOT / "docs/app-protocol.md",
]


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


ALBUM = """
from kafleet import App, Context, Joined
app = App()
def shrink(path): ...
@app.task
def thumbnail(path: str) -> str: return shrink(path)
@app.task
def album(cx: Context, paths: list[str]) -> int:
    for path in paths: cx.spawn(thumbnail, path)
    cx.then(sheet)
    return len(paths)
@app.task
def sheet(cx: Joined[str]) -> str: return "sheet of " + ", ".join(str(result.output) for result in cx.results)
"""


def test_example_of_a_tree_runs() -> None:
    module("shop", ALBUM)
    shown = module("shown", block_with("docs/python.md", "trial.tree(shop.album"))
    shown.test_album_survives_a_picture_that_is_busy()


def test_example_of_handlers_in_the_process_of_the_test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(ALBUM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module("shown", block_with("docs/python.md", "in_process=True)")).test_album_on_a_fleet(monkeypatch)


def test_project_of_several_files_runs(tmp_path: Path) -> None:
    page = "docs/projects.md"
    for file in ("shop/app.py", "shop/mail.py", "shop/orders.py", "shop/web.py", "tests/test_orders.py"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(block_with(page, f"# {file}\n"))
    (tmp_path / "shop/__init__.py").touch()
    renamed = block_with(page, "aliases=").replace("def send_mail", "def send_again").replace("send-mail", "send-again")
    mail = tmp_path / "shop/mail.py"
    mail.write_text(mail.read_text() + renamed.replace('["send"]', '["earlier"]'))
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    (file,) = re.findall(r"```toml\n(# kafleet.toml\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / "kafleet.toml").write_text(file.replace(".venv/bin/python", sys.executable))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_smallest_app_of_the_protocol_page_runs(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(blocks(ROOT / "docs/app-protocol.md")[0])
    with Worker("app.py", cwd=tmp_path, module=False) as worker:
        worker.welcome()
        assert worker.run("double", {"x": 21}) == {"ok": {"n": 1, "output": 42}}
        worker.end()
        assert worker.exit_code() == 0


SHOP_LIBRARY = """
def make_thumbnail(path, width): return f"{path} at {width}"
def make_sheet(title, thumbnails): return f"{title}: {', '.join(thumbnails)}"
def send_report(): pass
"""


def test_migration_from_celery_runs(tmp_path: Path) -> None:
    code = block_with("docs/from-celery.md", "from shop_lib")
    module("shop_lib", SHOP_LIBRARY)
    shop = module("shop", code)
    shown = module("shown", block_with("docs/from-celery.md", "def test_upload"))
    shown.test_upload_spawns_a_thumbnail_for_each_picture()
    shown.test_sheet_has_the_thumbnails_in_their_order()
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "shop_lib.py").write_text(SHOP_LIBRARY)
    paths = [f"{n}.jpg" for n in range(12)]
    with fleet("shop.py", cwd=tmp_path):
        sheet = shop.upload.submit(paths, title="summer").final_result(PATIENCE)
        passes_results_in_order = has_initial_state(shop.app)
    title, _, thumbnails = sheet.partition(": ")
    expected = [f"{path} at 200" for path in paths]
    assert title == "summer" and sorted(thumbnails.split(", ")) == sorted(expected)
    assert not passes_results_in_order or thumbnails.split(", ") == expected


def has_initial_state(app: App) -> bool:
    """Returns whether the fleet knows the state of a new external task. The order of results came with it."""
    schemas = app.client.request("GET", "/openapi.json")["components"]["schemas"]
    return "state" in schemas["CreateTask"]["properties"]


def test_chains_and_groups_of_python_are_accepted() -> None:
    page = module("canvas", block_with("docs/python.md", "chain(fetch.call"))
    assert repr(page.chain(page.fetch.call("a"), page.notify)) == "<Chain fetch -> notify>"
    run = trial(page.crawl, ["a", "b"])
    assert [child["params"] for child in run.children] == [{"url": "a"}, {"url": "b"}]
    assert run.then[0]["then"][0]["with_results"]
    assert trial.using(results=[2, 3])(page.total, "pages").output == 5
