"""Test app with tasks that follow each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafleet import UPSTREAM, App, Context, Fail, Joined, Upstream, chain

app = App()


@dataclass
class Point:
    x: int


@app.task
def add(a: int, b: int = 1) -> int:
    print("adding", a, b)
    return a + b


@app.task
async def double(value: Upstream[int]) -> int:
    return 2 * value


@app.task
def total(label: str, values: Upstream[list[int]] = UPSTREAM, factor: int = 1) -> str:
    return f"{label}: {factor * sum(values)}"


@app.task
def sizes(values: Upstream[list[int]]) -> list[int]:
    return values


@app.task
def either(cx: Context | Joined[int], label: str = "alone") -> str:
    if isinstance(cx, Joined):
        return f"{label} after {cx.task.output} and {sorted(result.output or 0 for result in cx.results)}"
    return label


@app.task
def last(cx: Joined[int]) -> int:
    return sum(result.output or 0 for result in cx.results)


@app.task
def both(cx: Joined[int], value: int = UPSTREAM) -> list[Any]:
    return [value, cx.task.output]


@app.task
def point(x: int) -> Point:
    return Point(x)


@app.task
def moved(point: Upstream[Point] = UPSTREAM, by: int = 1) -> Point:
    return Point(point.x + by)


@app.task
def crowd(cx: Context, numbers: list[int], now: bool = False) -> None:
    if now:
        cx.spawn_now(add.map(numbers))
    else:
        cx.spawn(add.map(numbers))
    cx.then(chain(total.call("sum"), either.call("chained")))


@app.task
def chains(cx: Context) -> None:
    cx.spawn(chain(add.call(1), double))
    cx.spawn_now([chain(add.call(2), double.using(name="doubled"))])


@app.task(retries=0)
def fails(message: str = "no such picture") -> int:
    raise Fail(message, kind="gone")


@app.task
def parent_of_failed(cx: Context) -> None:
    cx.spawn(chain(add.call(1), fails.call()))


@app.task(retries=0)
def flaky(cx: Context) -> int:
    if cx.run == 1:
        raise ValueError("not yet")
    return cx.run


@app.task
def nightly(kind: str = "daily") -> str:
    return kind


small = app.bundle("small")


@small.task
def grown(value: Upstream[int], by: int = 10) -> Point:
    return Point(value + by)


@small.task
def listed(cx: Context | Joined[Point]) -> list[int]:
    return sorted(result.output.x for result in cx.results if result.output) if isinstance(cx, Joined) else []
