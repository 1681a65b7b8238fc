"""Test app with exceptions of users: own constructors, and members that cannot be read."""

import asyncio
import os
from typing import Any, NoReturn

from kafleet import App, Dead, Fail, Retry, Unsuccessful, Wait

app = App(slots=int(os.environ.get("TEST_SLOTS", "1")))


def without_init(base: type[Exception]) -> type[Exception]:
    class NoItem(base):  # type: ignore[misc,valid-type]
        def __init__(self, name: str) -> None:
            self.name = name  # Without `super().__init__()`.

    # As if it were written so: the name of a class is that of its kind.
    return type(f"No{base.__name__}", (NoItem,), {})


class NoText(Exception):
    def __str__(self) -> NoReturn:
        raise KeyboardInterrupt("no text")


class NoString(Exception):
    def __str__(self) -> Any:
        return 5


class NoMessage(Fail):
    @property
    def message(self) -> NoReturn:
        raise RuntimeError("no message")


class Number(Fail):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.kind: Any = 5


class Strange(Retry):
    kind = "not a kind!"
    outcome: Any = 5
    after_ms: Any = "soon"


class Own(Fail):
    kind = "own_kind"


KINDS: dict[str, Any] = {f"No{kind.__name__}": without_init(kind) for kind in (Fail, Retry, Wait, Dead, Unsuccessful)}
KINDS |= {kind.__name__: kind for kind in (NoText, NoString, NoMessage, Number, Strange, Own)}
KINDS |= {kind.__name__: kind for kind in (KeyboardInterrupt, SystemExit, GeneratorExit)}


if os.environ.get("TEST_ASYNC"):

    @app.task(name="fails")
    async def afails(kind: str) -> None:
        raise KINDS[kind]("a")

    @app.task(name="nap")
    async def anap(until_file: str) -> str:
        while not os.path.exists(until_file):
            await asyncio.sleep(0.005)
        return "finished"

else:

    @app.task
    def fails(kind: str) -> None:
        raise KINDS[kind]("a")

    @app.task
    def nap(until_file: str) -> str:
        from mixed import hang  # pyright: ignore[reportMissingImports]

        return str(hang.fn(until_file))
