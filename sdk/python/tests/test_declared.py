"""Functions that cannot run as tasks, and hooks that break their contract."""

import functools
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafleet import App, Context, DeclarationError, Fail
from kafleet.testing import trial


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def rows(n: int) -> Any:
    yield n


async def arows(n: int) -> Any:
    yield n


async def later(n: int) -> int:
    return n


@pytest.mark.parametrize("bundled", [False, True], ids=["type", "bundle"])
@pytest.mark.parametrize("function", [rows, arows, plain(rows), plain(arows), plain(plain(rows))])
def test_generator_is_refused_with_its_place(function: Any, bundled: bool) -> None:
    app = App()
    task = app.bundle("small").task if bundled else app.task
    place = inspect.getsourcelines(inspect.unwrap(function))[1]
    with pytest.raises(
        DeclarationError, match=rf"test_declared.py:{place}: `a?rows` is a generator function: .*hint: use `return`"
    ):
        task(function)


def returns_coroutine(n: int) -> Any:
    return later(n)


@pytest.mark.parametrize("function", [plain(later), returns_coroutine])
def test_async_function_behind_another_one_fails_with_the_reason(function: Any) -> None:
    failure = trial(App().task(function), 1).failure
    assert failure and (failure.outcome, failure.kind) == ("fail", "bad_output")
    assert f"`{function.__name__}` is `async` behind a decorator that is not, and has not run; hint: `await`" in failure.message


def test_decorated_functions_run() -> None:
    def awaits(fn: Any) -> Any:
        @functools.wraps(fn)
        async def wrapper(**params: Any) -> Any:
            return await fn(**params)

        return wrapper

    @plain
    def direct(n: int) -> int:
        return n

    app = App()
    assert trial(app.task(plain(direct)), n=1).output == 1
    assert [task.is_async for task in app.handlers] == [False]

    @app.task
    @awaits
    async def awaited(n: int) -> int:
        return n

    assert trial(awaited, n=1).output == 1


CUSTOMER, WITHOUT, SECOND = ("ValueError", "no such customer"), "has ended without a `yield`", "has a second `yield`"

# A hook, and the result, or the kind and a part of the message, of a handler that returns and of one that fails.
HOOKS: list[tuple[str, Any, Any]] = [
    ("yield", "done", CUSTOMER),
    ("try:\n    yield\nexcept ValueError:\n    pass", "done", None),
    ("try:\n    yield\nexcept BaseException:\n    return", "done", None),
    ("try:\n    yield\nfinally:\n    return", "done", None),
    ("return\nyield", ("RuntimeError", WITHOUT), ("RuntimeError", WITHOUT)),
    ("yield\nyield", ("RuntimeError", SECOND), CUSTOMER),
    ("try:\n    yield\nexcept ValueError:\n    pass\nyield", ("RuntimeError", SECOND), ("RuntimeError", SECOND)),
    ("yield\nraise KeyError('after')", ("KeyError", "after"), CUSTOMER),
    ("raise KeyError('before')\nyield", ("KeyError", "before"), ("KeyError", "before")),
    ("try:\n    yield\nexcept ValueError as e:\n    raise KeyError('other') from e", "done", ("KeyError", "other")),
    ("yield\nraise StopIteration", ("RuntimeError", "generator raised StopIteration"), CUSTOMER),
]


@pytest.mark.parametrize(("source", "returned", "failed"), HOOKS, ids=[str(n) for n in range(len(HOOKS))])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("inner", [False, True], ids=["alone", "inside another"])
def test_result_is_right_or_names_the_hook(source: str, returned: Any, failed: Any, kind: str, inner: bool) -> None:
    app = App()
    ends: list[str] = []
    if inner:

        @app.around
        def outer(cx: Context) -> Iterator[None]:
            try:
                yield
            finally:
                ends.append("outer")

    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Since Python 3.14, of `return` in `finally`.
        code = compile(f"def hook(cx):\n{textwrap.indent(source, '    ')}", "<hook>", "exec")
    exec(code, scope)
    app.around(scope["hook"])

    @app.task
    def sync(fails: bool):  # type: ignore[no-untyped-def]
        if fails:
            raise ValueError("no such customer")
        return "done"

    @app.task(name="async")
    async def asynchronous(fails: bool):  # type: ignore[no-untyped-def]
        return sync.fn(fails)

    for fails, expected in ((False, returned), (True, failed)):
        run = trial(sync if kind == "sync" else asynchronous, fails)
        if isinstance(expected, tuple):
            assert run.failure and run.failure.kind == expected[0] and expected[1] in run.failure.message
            named = expected[1] in (WITHOUT, SECOND)
            assert not named or "the hook `hook` (<hook>:1)" in run.failure.message
            assert not (fails and expected[1] == SECOND) or "no such customer" in str(run.failure.stack)
        else:
            assert run.failure is None and run._output == expected
    assert ends == ["outer"] * (2 if inner else 0)


def test_hook_that_is_no_generator_is_refused_or_named() -> None:
    def nothing(cx: Context) -> None: ...
    async def generator(cx: Context) -> Any:
        yield

    def hook(cx: Context) -> Iterator[None]:
        yield

    @functools.wraps(hook)
    def hidden(cx: Context) -> None: ...

    for wrong in (nothing, generator):
        with pytest.raises(DeclarationError, match="is not a generator function: `yield` once"):
            App().around(wrong)
    app = App()
    app.around(hidden)
    failure = trial(app.task(returns_none)).failure
    assert failure and "the hook `hook`" in failure.message and "returned a `NoneType` instead of a generator" in failure.message


def returns_none() -> None: ...


@pytest.mark.parametrize("error", [StopIteration("x"), GeneratorExit("x"), RuntimeError("x"), KeyboardInterrupt("x"), Fail("x")])
def test_error_passes_a_hook_as_it_is(error: BaseException) -> None:
    app = App()

    @app.around
    def hook(cx: Context) -> Iterator[None]:
        yield

    @app.task
    def raises() -> None:
        raise error

    failure = trial(raises).failure
    assert failure and failure.message == "x"
    assert failure.kind == ("error" if isinstance(error, Fail) else type(error).__name__)
