"""Values through JSON: exact, or refused."""

import asyncio
import dataclasses
import json
import random
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pydantic
import pytest

from kafleet import App, Context, Ended, Joined, Params
from kafleet.codec import Schemas
from kafleet.scalars import Mismatch
from kafleet.steps import Item, Response
from kafleet.testing import recorded, trial
from kafleet.values import decode, encode, parse

app = App(api="http://127.0.0.1:1")


@app.task
def echo(value: Params[Any]) -> Any:
    return value


def accept(value: Any) -> None: ...


child: Any = app.task(name="child")(accept)


# Text of a number, and the value that a handler gets.
NUMBERS: list[tuple[str, Any]] = [
    ("618970019642690137449562111", 2**89 - 1),
    ("9007199254740993", 2**53 + 1),
    ("0.1", 0.1),
    ("12.5", 12.5),
    ("12.50", 12.5),
    ("1e2", 100.0),
    ("-0.0", -0.0),
    ("0.1234567890123456789", Decimal("0.1234567890123456789")),
    ("12345678901234567.89", Decimal("12345678901234567.89")),
    ("1e400", Decimal("1E+400")),
    ("-1e-400", Decimal("-1E-400")),
]


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_number_keeps_its_value_or_is_a_decimal(text: str, value: Any) -> None:
    for document in (text, f'{{"a":[{text}]}}'):
        found = decode(document.encode())
        found = found["a"][0] if isinstance(found, dict) else found
        assert found == value and isinstance(found, type(value))
        assert Decimal(re.sub(r"[^0-9.eE+-]", "", encode({"a": [found]}).decode()[4:])) == Decimal(text)


def test_any_number_passes_an_app_with_its_value() -> None:
    """Numbers at random: through `Any`, `Decimal`, results, children and progress, none is near to what it was."""
    chance = random.Random(33)
    exact = Schemas().codec(Decimal).load
    for _ in range(3000):
        whole = str(chance.choice([0, 1, chance.randrange(10 ** chance.randint(1, 60))]))
        part = f".{chance.randrange(10 ** (size := chance.randint(1, 40))):0{size}d}" if chance.random() < 0.7 else ""
        exponent = (
            f"{chance.choice('eE')}{chance.choice(['', '+', '-'])}{chance.randint(0, 500)}" if chance.random() < 0.4 else ""
        )
        text = chance.choice(["", "-"]) + whole + part + exponent
        for document in (text, f'[{{"a":{text}}}]'):
            written: Any = json.loads(encode(decode(document.encode())), parse_float=Decimal, parse_int=Decimal)
            assert (written[0]["a"] if isinstance(written, list) else written) == Decimal(text), text
        assert str(exact(parse(text.encode()))) == str(Decimal(text)) or not (part or exponent), text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1e99999999999999999999", "the exponent of the number `1e99999999999999999999` is out of range"),
        ("NaN", "`NaN` is not JSON"),
        ("-Infinity", "`-Infinity` is not JSON"),
        ("1" * 5000, "Exceeds the limit"),
    ],
)
def test_number_that_python_cannot_keep_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(text.encode())


# Annotation, JSON text, value or reason of the refusal.
ANNOTATED: list[tuple[Any, str, Any]] = [
    (Decimal, "12.50", Decimal("12.50")),
    (Decimal, "1e400", Decimal("1e400")),
    (Decimal, '"0.10"', Decimal("0.10")),
    (Decimal, '"NaN"', "is not a decimal number"),
    (Decimal, '"Infinity"', "is not a decimal number"),
    (list[Decimal], "[12.50, 1e2]", [Decimal("12.50"), Decimal("1e2")]),
    (float, "0.1234567890123456789", 0.12345678901234568),
    (float, "1e2", 100.0),
    (float, "1e400", "not a number that a float can represent; hint: annotate it as `Decimal`"),
    (float, "1" + "0" * 400, "not a number that a float can represent"),
    (int, "1e2", 100),
    (int, "1.50", "is not an integer"),
    (int, "1e999999999", "has more digits than Python reads"),
    (float | Decimal, "0.1234567890123456789", Decimal("0.1234567890123456789")),
    (float | Decimal, "9007199254740993", Decimal(9007199254740993)),
    (float | Decimal, "0.5", 0.5),
    (int | float, "0.50", 0.5),
    (dict[str, Any], '{"a":12.50,"b":1e400}', {"a": 12.5, "b": Decimal("1e400")}),
    (dict[int, str], '{"1":"a","01":"b"}', "`1` is there twice"),
    (dict[int, str], '{"1_0":"a"}', "is not an integer"),
    (datetime, '"2026-01-31T12:00:00.123456Z"', datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)),
    (datetime, '"2026-01-31T12:00:00.1234560Z"', datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)),
    (datetime, '"2026-01-31T12:00:00.1234567Z"', "has digits below a microsecond"),
    (datetime, '"2026-01-31T12:00:00"', "has no time zone; hint: append `Z`, or an offset"),
    (datetime, '"2026-01-31"', "has no time zone"),
    (date, '"2026-01-31T00:00:00"', "is not a date"),
]


@pytest.mark.parametrize(("annotation", "text", "expected"), ANNOTATED)
def test_annotated_value_is_exact_or_refused(annotation: Any, text: str, expected: Any) -> None:
    load = Schemas().codec(annotation).load
    if isinstance(expected, str):
        with pytest.raises(Mismatch, match=expected):
            load(parse(text.encode()))
    else:
        found = load(parse(text.encode()))
        assert found == expected and str(found) == str(expected)


def test_model_with_decimals_gets_all_digits() -> None:
    class Price(pydantic.BaseModel):
        amount: Decimal
        rate: float = 0

    class Rate(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        rate: float
        other: Any

    assert str(Schemas().codec(Price).load(parse(b'{"amount":12.50,"rate":1e2}')).amount) == "12.50"
    rate = Schemas().codec(Rate).load(parse(b'{"rate":0.1234567890123456789,"other":1.50}'))
    assert (rate.rate, rate.other, type(rate.other)) == (0.12345678901234568, 1.5, float)


@app.task
def joins(cx: Joined[Decimal]) -> None:
    found = [cx.task.output, *(result.output for result in cx.results)]
    assert [(type(value), str(value)) for value in found] == [(float, "12.5"), (Decimal, "12.50")]


def test_results_before_a_continuation_are_exact() -> None:
    number = parse(b"12.50")
    assert trial.using(task=Ended("a", None, "succeeded", number), results=[number])(joins).failure is None


class Float32:
    """A number of another library, such as `numpy.float32`."""

    def __float__(self) -> float:
        return 1.0

    __repr__ = object.__repr__


class Money(NamedTuple):
    amount: Decimal


# Value, JSON text or reason of the refusal.
WRITTEN: list[tuple[Any, str]] = [
    (Decimal("12.50"), '"12.50"'),
    (Money(Decimal("0.10")), '["0.10"]'),
    (2**89 - 1, "618970019642690137449562111"),
    (10**5000, "Exceeds the limit"),
    (float("inf"), "`inf` is not a number in JSON; hint: `None`"),
    (Decimal("NaN"), "`NaN` is not a number in JSON"),
    (Decimal("-Infinity"), "is not a number in JSON"),
    (datetime(2026, 1, 31, 12, tzinfo=UTC), '"2026-01-31T12:00:00+00:00"'),
    (datetime(1890, 1, 1, 12, tzinfo=timezone(timedelta(minutes=53, seconds=28))), '"1890-01-01T11:06:32+00:00"'),
    (datetime(2026, 1, 31, 12), "`2026-01-31T12:00:00` has no time zone; hint: `datetime.now"),
    ([{"at": datetime(2026, 1, 31)}], "has no time zone"),
    (time(12), '"12:00:00"'),
    (timedelta(1), '"P1D"'),
    (bytearray(b"\0"), '"AA=="'),
    (memoryview(b"\0"), '"AA=="'),
    (object(), "a value of type `object` has no JSON form"),
    (ValueError("x"), "a value of type `ValueError` has no JSON form"),
    (Float32(), "a value of type `Float32` has no JSON form"),
    (map(int, []), "a value of type `map` has no JSON form"),
    ({1: "a", "1": "b"}, "the keys `1` and `'1'` are both `1` in JSON"),
    ([{"a": ({None: 1, "null": 2},)}], "the keys `None` and `'null'` are both `null`"),
    ({1.5: 1, "1.5": 2}, "are both `1.5`"),
    ({True: 1, "true": 2}, "are both `true`"),
    (pydantic.create_model("Keyed", content=(Any, None))(content={1: "a", "1": "b"}), "the keys `1` and `'1'` are both `1`"),
    ({(1, 2): 1}, "a key of type `tuple` has no JSON form: keys are text or numbers"),
    ({1: "a", "2": "b", None: "c", True: "d"}, '{"1":"d","2":"b","null":"c"}'),  # noqa: F601
    ({"\ud83d": 1}, "surrogates not allowed"),
]


@dataclasses.dataclass
class Holder:
    content: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    models: list["Model"] = []


@pytest.mark.parametrize(("value", "expected"), WRITTEN, ids=[str(n) for n in range(len(WRITTEN))])
def test_written_value_is_exact_or_refused(value: Any, expected: str) -> None:
    ways: list[Callable[[Any], Any]] = [lambda value: value, Holder, lambda value: {"a": [value]}]
    ways += [lambda value: Holder(Model(models=[Model(more=value)]))] if "the keys" in expected else []  # type: ignore[call-arg]
    refused = expected[0] not in '"[{' and not expected[0].isdigit()
    for way in ways:
        if refused:
            with pytest.raises(ValueError, match=f"not JSON: .*({expected})"):
                encode(way(value))
        else:
            assert expected in encode(way(value)).decode()


def test_equal_keys_are_refused_by_every_way_out() -> None:
    equal = {1: "a", "1": "b"}

    @app.task
    def keys(cx: Context, way: str) -> Any:
        if way == "progress":
            cx.progress(equal)
        elif way == "spawn":
            cx.spawn(child, equal)
        elif way == "then":
            cx.then(child, equal)
        elif way == "spawn_now":
            cx.spawn_now([child.call(equal)])
        return equal if way == "result" else way

    failures = {way: trial(keys, way).failure for way in ("result", "spawn", "then", "spawn_now")}
    for way, failure in failures.items():
        assert failure and "the keys `1` and `'1'` are both `1` in JSON" in failure.message, way
    assert failures["result"] and (failures["result"].outcome, failures["result"].kind) == ("fail", "bad_output")
    run = trial(keys, "progress")
    assert run.output == "progress"
    assert run.log == ["a progress value was dropped: not JSON: the keys `1` and `'1'` are both `1` in JSON"]
    with recorded(), pytest.raises(ValueError, match="are both `1` in JSON"):
        child.submit(equal)
    with recorded(), pytest.raises(ValueError, match="are both `1` in JSON"):
        app.submit_many([child.call(equal)])


SIDE: dict[str, tuple[Callable[[Context], Any], str]] = {
    "nan": (lambda cx: cx.progress({"loss": float("nan")}), "not JSON: /loss: `nan` is not a number in JSON; hint: `None`"),
    "half": (lambda cx: cx.progress({"title": "\ud83d"}), "a progress value was dropped: not JSON: /title: 'utf-8' codec"),
    "array": (lambda cx: cx.progress(Float32()), "a value of type `Float32` has no JSON form"),
    "object": (lambda cx: cx.progress(object()), "a value of type `object` has no JSON form"),
    "digits": (lambda cx: cx.progress(10**5000), "Exceeds the limit"),
    "log": (lambda cx: cx.log(5, None, [1]), "5"),
    "half line": (lambda cx: cx.log("\ud83d"), "?"),
    "attach": (lambda cx: cx.attach("a", "\ud83d"), "the attachment `a` was dropped: 'utf-8' codec"),
    "media": (lambda cx: cx.attach("a", b"x", media="\ud83d"), "the attachment `a` was dropped: not JSON"),
    "name": (lambda cx: cx.attach(5, b"x"), "the attachment `5` was dropped: its name and its media type are text"),  # type: ignore[arg-type]
    "large": (lambda cx: cx.attach("a", b"x" * 100_000), "the attachment `a` was dropped: it has 100000 bytes"),
    "child": (lambda cx: cx.spawn(child.using(name="\ud83d"), 1), "`name` of a child of type `child` was dropped"),
    "tags": (lambda cx: cx.then(child.using(tags=["\ud83d"]), 1), "`tags` of a continuation of type `child` was dropped"),
    "retire": (lambda cx: cx.retire(5), ""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", SIDE)
def test_unusable_value_beside_the_result_is_dropped_with_a_line(name: str) -> None:
    @app.task(name="side-" + name.replace(" ", "-"))
    def side(cx: Context) -> str:
        SIDE[name][0](cx)
        return "done"

    run = trial(side)
    assert run.output == "done" and run.progress == [] and run.attachments == {}
    assert SIDE[name][1] in "\n".join(run.log)
    assert [task["params"] for task in run.children + run.then] == [{"value": 1}] * (name in ("child", "tags"))


def test_warning_is_the_text_of_any_value() -> None:
    @app.task
    async def warns(cx: Context) -> None:
        await asyncio.sleep(0)
        cx.warn(ValueError("low on memory"))

    assert trial(warns).warnings == ["low on memory"]


@app.task
def priced() -> dict[str, Decimal]:
    return {}


def test_client_reads_results_and_statuses_with_all_digits() -> None:
    result = '{"price":12.50,"wei":0.1234567890123456789,"n":618970019642690137449562111}'
    status = f'{{"id":"a","state":"succeeded","position":null,"result":{result}}}'
    exact = [Decimal("12.50"), Decimal("0.1234567890123456789"), Decimal(2**89 - 1)]
    for task, values in ((app.remote("any"), [12.5, exact[1], 2**89 - 1]), (priced, exact)):
        handle: Any = task.handle("a")
        lines = [
            b"event: status\n",
            f"data: {status}\n".encode(),
            b"\n",
            b"event: end\n",
            b'data: {"reason":"finished"}\n',
            b"\n",
        ]
        seen, last = played(handle._watch(None), [Response(200), *lines])
        assert [str(value) for value in handle._loaded(last).values()] == [str(value) for value in values]
        assert [list(found["result"].values()) for found in seen] == [[12.5, exact[1], 2**89 - 1]]
        _, found = played(type(handle).status.__wrapped__(handle), [Response(200, status.encode())])
        assert found["result"]["wei"] == exact[1]


def played(steps: Any, answers: list[Any]) -> tuple[list[Any], Any]:
    """Carries out steps with these answers; returns the items for the user, and the result."""
    seen, step = [], next(steps)
    try:
        while True:
            if isinstance(step, Item):
                seen.append(step.value)
            step = next(steps) if isinstance(step, Item) else steps.send(answers.pop(0))
    except StopIteration as end:
        return seen, end.value
