"""Targets: the module or file that declares an app."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from .app import App
from .session import Unable
from .tracebacks import stack_of

_SHOWN_NAMES = 5


def load(target: str, folder: Path | None = None) -> App:
    """Returns the app of a target: `tasks.py`, `shop.tasks` or `shop.tasks:app`. Raises `Unable`.

    `folder`: where the file or module is; default: the working directory.
    """
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or "/" in name:
        name = _module_of((folder or Path()) / name)
    else:
        _make_importable(str(folder or os.getcwd()))
    return complete(_app_in(_imported(name), attribute))


def complete(app: App) -> App:
    """Imports the modules that an app includes, and warns of tasks of other apps, which nothing runs. Raises `Unable`."""
    for name in app.include:
        try:
            _imported(name)
        except Unable as error:
            raise Unable(f"`{name}` in `include` of the app in {app.place}: {error}") from error
    for other in app.others():
        names = ", ".join(f"`{name}`" for name in list(other.tasks)[:_SHOWN_NAMES])
        twice = f"one file is imported as `{app.module}` and as `{other.module}`: start and import it by one name"
        hint = twice if other.place == app.place else f"use that one: `from {app.module} import …`"
        problem = f"tasks of a second `App` do not run: {names}, in {other.place}; served is the app in {app.place}"
        print(f"warning: {problem}; hint: {hint}", file=sys.stderr)
    for declared in app.tasks.values():
        if warning := declared.warning():
            print(f"warning: {warning}", file=sys.stderr)
    return app


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        raise Unable("".join(traceback.format_exception_only(error)).strip()) from error
    except ModuleNotFoundError as error:
        raise Unable(_missing(error, name)) from error
    except BaseException as error:
        raise Unable(stack_of(error)) from error


def _module_of(path: Path) -> str:
    """Returns the name under which a file is imported, and makes its folder importable."""
    if not path.is_file():
        raise Unable(f"`{path}` is not a file; hint: the app was started in `{os.getcwd()}`; set `cwd`")
    path = path.resolve()
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if not all(part.isidentifier() for part in parts):
        raise Unable(f"`{path.name}` cannot be imported: `{'.'.join(parts)}` is not a module name; hint: rename the file")
    _make_importable(str(folder))
    name = ".".join(parts)
    found = importlib.util.find_spec(parts[0])
    if len(parts) == 1 and found and found.origin and Path(found.origin).resolve() != path:
        raise Unable(f"`{path.name}` has the name of the module `{found.origin}`; hint: rename the file")
    return name


def _make_importable(folder: str) -> None:
    """Adds a folder to the path, behind the standard library and before installed packages: a file of the folder does not
    replace the standard module of its name, which other modules need."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
    library |= {os.path.join(path, "lib-dynload") for path in library}
    sys.path.insert(1 + max((n for n, path in enumerate(sys.path) if path in library), default=-1), folder)


def _missing(error: ModuleNotFoundError, target: str) -> str:
    python = f"this is Python {sys.version.split()[0]} at `{sys.executable}`"
    if error.name and (target == error.name or target.startswith(f"{error.name}.")):
        return f"ModuleNotFoundError: {error}; hint: the app was started in `{os.getcwd()}`; set `cwd`"
    hint = f"{python}; install the package there (`{sys.executable} -m pip install …`), or activate its virtual environment"
    return f"{stack_of(error)}\nhint: {hint}"


def _app_in(module: ModuleType, attribute: str) -> App:
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, App):
            raise Unable(f"`{attribute}` in `{module.__name__}` is not an `App`; hint: write `{attribute} = App()`")
        return found
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if "app" in apps:
        return apps["app"]
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise Unable(f"`{module.__name__}` has no `App`; hint: write `app = App()`, and `@app.task` above a function")
    names = ", ".join(f"`{name}`" for name in apps)
    raise Unable(f"`{module.__name__}` has several apps ({names}); hint: name one: `{module.__name__}:{next(iter(apps))}`")
