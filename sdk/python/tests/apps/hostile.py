"""Test app whose handlers raise, return and publish objects that harm the code that looks at them, from a seed."""

import asyncio
import collections
import dataclasses
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NoReturn

from kafleet import App, Cancelled, Context, Dead, Fail, Retry, Unsuccessful, Wait

app = App(slots=int(os.environ.get("TEST_SLOTS", "1")))


class Text(str):
    """Text that cannot be used as text."""

    def __getitem__(self, *_: object) -> NoReturn:
        raise RuntimeError("text")

    __str__ = __len__ = __iter__ = __contains__ = encode = split = __add__ = __hash__ = __eq__ = __bool__ = __getitem__  # type: ignore


class Meta(type):
    """Class of classes without a name."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("equal")

    __hash__ = type.__hash__


def recurse() -> NoReturn:
    recurse()
    raise AssertionError


def raises(kind: type[BaseException]) -> Callable[..., NoReturn]:
    def misbehave(*_: object, **__: object) -> NoReturn:
        raise kind("misbehaves")

    return misbehave


RAISED: list[Any] = [
    RuntimeError, ValueError, TypeError, AttributeError, KeyError, StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit,
    MemoryError, Cancelled, asyncio.CancelledError, Fail,
]  # fmt: skip
VALUES: list[Any] = [
    None, 5, -1, 1 << 100, True, 1.5, float("nan"), b"x", "", "half \ud83d", "nul \0", "x" * 5_000_000, Text("text"), [], {},
    object(), Exception, Decimal("NaN"),
]  # fmt: skip
EXCEPTIONS: list[Any] = [
    Exception, Fail, Retry, Wait, Dead, Unsuccessful, BaseException, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration,
    StopAsyncIteration, ValueError, OSError, SyntaxError, NameError, UnicodeDecodeError, RecursionError, MemoryError, Cancelled,
    asyncio.CancelledError, KeyError, Warning,
]  # fmt: skip
CONTAINERS: list[Any] = [
    object,
    dict,
    list,
    tuple,
    set,
    str,
    int,
    float,
    Sequence,
    Mapping,
    Set,
    Decimal,
    collections.deque,
    bytes,
]
OF_EXCEPTIONS = [
    "__str__", "__repr__", "__getattribute__", "__init__", "__eq__", "__hash__", "__bool__", "__len__", "__class__", "__cause__",
    "__traceback__", "__notes__", "__dict__", "args", "kind", "message", "outcome", "after_ms", "name", "obj", "lineno",
    "filename",
]  # fmt: skip
OF_VALUES = [
    "__str__", "__repr__", "__getattribute__", "__iter__", "__len__", "__getitem__", "__contains__", "__eq__", "__hash__",
    "__bool__", "__class__", "__float__", "__int__", "__index__", "__await__", "__dict__", "items", "keys", "values",
    "value", "isoformat",
    "model_dump", "model_json_schema", "__dataclass_fields__", "utcoffset", "is_finite", "__format__", "encode", "split",
]  # fmt: skip


def member(name: str, chance: random.Random) -> Any:
    """A method or a property that raises, recurses, or returns something that nobody expects."""
    how = chance.choice(["raise", "raise", "recurse", "return"])
    value = chance.choice(VALUES)
    misbehave: Any = (
        raises(chance.choice(RAISED)) if how == "raise" else lambda *_, **__: recurse() if how == "recurse" else value
    )
    return (
        misbehave
        if name.startswith("__") and name not in ("__class__", "__dict__") and chance.random() < 0.9
        else property(misbehave)
    )


def hostile_class(bases: list[Any], names: list[str], chance: random.Random) -> Any:
    """A class with up to three members of that kind. The class itself is the base if Python refuses it."""
    base = chance.choice(bases)
    members = {name: member(name, chance) for name in chance.sample(names, chance.randint(0, 3))}
    meta: Any = type("HostileMeta", (Meta, type(base)), {}) if chance.random() < 0.1 else type(base)
    try:
        return meta("Hostile", (base,), members)
    except BaseException:
        return base


def exception(chance: random.Random) -> BaseException:
    """An exception, perhaps with a cause, notes, or in a group."""
    kind = hostile_class(EXCEPTIONS, OF_EXCEPTIONS, chance)
    try:
        error = kind(*chance.choice([(), ("text",), (chance.choice(VALUES),)]))
        if chance.random() < 0.2:
            error.__cause__ = exception(chance)
        if chance.random() < 0.1:
            error.__notes__ = chance.choice(VALUES)
        if chance.random() < 0.1:
            return BaseExceptionGroup("group", [error, exception(chance)])
    except BaseException as refused:
        return refused
    return error if isinstance(error, BaseException) else ValueError("no exception")


def value(chance: random.Random) -> Any:
    """A value, which JSON may or may not represent."""
    how = chance.random()
    if how < 0.2:
        return chance.choice(VALUES)
    if how < 0.3:
        return {chance.choice([1, "1", None, "null", True, Text("a"), 1.5, object()]): value(chance) for _ in range(3)}
    if how < 0.4:
        items: list[Any] = [value(chance)]
        items += [items] if chance.random() < 0.5 else []
        return items
    if how < 0.5:
        return dataclasses.make_dataclass("Data", ["x"])(value(chance))
    if how < 0.55:
        return chance.choice(
            [iter(()), map(int, ()), (x for x in "a"), range(3), exception(chance), int, type, raises, endless()]
        )
    try:
        return hostile_class(CONTAINERS, OF_VALUES, chance)()
    except BaseException as refused:
        return refused


class endless(Sequence[int]):
    """A sequence without an end, and objects whose JSON form is another such object."""

    def __getitem__(self, index: Any) -> Any:
        return endless() if index == 0 else index

    def __len__(self) -> int:
        return 1 << 40


def act(cx: Context, seed: int, how: str) -> Any:
    chance = random.Random(seed)
    if how == "raise":
        raise exception(chance)
    if how == "return":
        return value(chance)
    try:
        thing: Any = exception(chance) if chance.random() < 0.2 else value(chance)
    except BaseException as refused:
        thing = refused
    if how == "log":
        cx.log(thing, thing, silent=chance.random() < 0.5)
    elif how == "warn":
        cx.warn(thing)
    elif how == "progress":
        cx.progress(thing)
    elif how == "attach":
        cx.attach("name" if chance.random() < 0.5 else thing, thing, media="text/plain" if chance.random() < 0.5 else thing)
    elif how == "replace":
        sys.stdout = thing
    return "done"


SIDE = ("log", "warn", "progress", "attach")


@app.around
def around(cx: Context) -> Iterator[None]:
    yield
    if cx.id.endswith(":hook"):
        raise exception(random.Random(int(cx.id.split(":")[0])))


@app.task
def harm(cx: Context, seed: int, how: str) -> Any:
    out = sys.stdout
    try:
        return act(cx, seed, how)
    finally:
        sys.stdout = out


@app.task
def well() -> str:
    return "well"


@app.task
def wait(until_file: str) -> str:
    from mixed import hang  # pyright: ignore[reportMissingImports]

    return str(hang.fn(until_file))


if os.environ.get("TEST_ASYNC"):
    app.tasks.clear()
    app.handlers.clear()

    @app.task(name="harm")
    async def aharm(cx: Context, seed: int, how: str) -> Any:
        await asyncio.sleep(0)
        if how == "raise" and seed % 2:  # In a task of its own, whose exception passes through the loop.
            return await asyncio.create_task(asyncio.wait_for(_act(cx, seed, how), 60))
        return harm.fn(cx, seed, how)

    async def _act(cx: Context, seed: int, how: str) -> Any:
        return act(cx, seed, how)

    @app.task(name="well")
    async def awell() -> str:
        return "well"

    @app.task(name="wait")
    async def await_(until_file: str) -> str:
        while not os.path.exists(until_file):
            await asyncio.sleep(0.005)
        return "finished"

    @app.task
    async def subtask(how: str) -> str:
        """Does something to the loop that all attempts share."""
        if how == "stop":
            asyncio.get_running_loop().stop()
        elif how == "signal":
            signal.raise_signal(signal.SIGINT)
        elif how == "awaited":
            await asyncio.create_task(_raise(GeneratorExit))
        else:
            error: Any = {"exit": SystemExit, "interrupt": KeyboardInterrupt}[how]
            asyncio.create_task(_raise(error))  # noqa: RUF006
        await asyncio.sleep(0.05)
        return "survived"

    async def _raise(error: type[BaseException]) -> None:
        raise error
