"""Values of everyday, as params and as results: each arrives as it was, or is refused with its place and a remedy."""

import collections
import dataclasses
import enum
import fractions
import importlib
import random
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import jsonschema  # type: ignore[import-untyped]
import pydantic
import pytest

from kafleet import App, DeclarationError
from kafleet.codec import Schemas, UnsupportedType
from kafleet.testing import Trial, trial
from kafleet.values import decode, encode

numpy: Any = importlib.import_module("numpy")
pandas: Any = importlib.import_module("pandas")

T = TypeVar("T")
BERLIN, SUMMER, WINTER = ZoneInfo("Europe/Berlin"), timezone(timedelta(hours=2)), timezone(timedelta(hours=1))
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Level(enum.IntEnum):
    LOW = 1


class Size(enum.StrEnum):
    SMALL = "s"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    width: int


@dataclasses.dataclass
class Order:
    id: int
    at: datetime
    took: timedelta
    color: Color = Color.RED


class Model(pydantic.BaseModel):
    at: datetime
    took: timedelta
    clock: time
    color: Color
    text: bytes = b"text"


class Binary(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    tags: set[str]
    price: Decimal


class Free(pydantic.BaseModel):
    content: Any


class Word(str):
    pass


@dataclasses.dataclass
class Measured:
    x: float


class Renamed(pydantic.BaseModel):
    """A model that does not read what it writes."""

    model_config = pydantic.ConfigDict(extra="forbid")
    user_name: str = pydantic.Field(serialization_alias="userName")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.user_name)


def leaf(kind: Any) -> Any:
    class Leaf(pydantic.BaseModel):
        value: kind  # pyright: ignore[reportInvalidTypeForm]

    return Leaf


NUMBER, TEXT = leaf(int), leaf(str)


class Both(pydantic.BaseModel):
    number: NUMBER  # type: ignore[valid-type]
    text: TEXT  # type: ignore[valid-type]


@dataclasses.dataclass
class BothOf:
    number: NUMBER  # type: ignore[valid-type]
    text: TEXT  # type: ignore[valid-type]


# Annotation, and values that arrive as they are.
ARRIVES: list[tuple[Any, list[Any]]] = [
    (str, ["", "a\u2028b", "nul \0", "'"]),
    (int, [0, -1, 2**89 - 1]),
    (float, [0.1, -0.0, 1e300, 5e-324]),
    (bool, [True, False]),
    (None, [None]),
    (Decimal, [Decimal("12.50"), Decimal("1E+400")]),
    (bytes, [b"", b"\x00\xff"]),
    (datetime, [NOON, NOON.replace(microsecond=1), datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))]),
    (date, [date(2026, 1, 31), date.min, date.max]),
    (time, [time(12), time(23, 59, 59, 999999), time(12, tzinfo=UTC)]),
    (timedelta, [timedelta(0), timedelta(days=1), timedelta(microseconds=1), timedelta(seconds=90), timedelta(hours=-1)]),
    (timedelta, [timedelta.min, timedelta.max, timedelta(days=3, seconds=5, microseconds=120_000)]),
    (UUID, [UUID(int=1)]),
    (Path, [Path("/srv/a.jpg")]),
    (Color, list(Color)),
    (Level, list(Level)),
    (Size, list(Size)),
    (Right, list(Right)),
    (Literal["a", 1], ["a", 1]),
    (Options, [{"width": 1}]),
    (Order, [Order(1, NOON, timedelta(seconds=5), Color.TWO)]),
    (Model, [Model(at=NOON, took=timedelta(days=1, microseconds=3), clock=time(12), color=Color.TWO)]),
    (Binary, [Binary(data=b"\xfb\xef\xff"), Binary(data=b"")]),
    (Strict, [Strict(at=NOON, tags={"a"}, price=Decimal("12.50"))]),
    (Both, [Both(number=NUMBER(value=1), text=TEXT(value="1"))]),
    (BothOf, [BothOf(NUMBER(value=1), TEXT(value="1"))]),
    (pydantic.RootModel[list[int]], [pydantic.RootModel[list[int]]([1])]),
    (tuple[int, str], [(1, "a")]),
    (set[str], [{"a", "b"}]),
    (dict[int, timedelta], [{1: timedelta(1)}]),
]

# Annotation, a value of another class, and the value that arrives instead: the same in Python, or as the docs say.
BECOMES: list[tuple[Any, Any, Any]] = [
    (int, numpy.int64(5), 5),
    (int, numpy.uint64(2**64 - 1), 2**64 - 1),
    (bool, numpy.bool_(True), True),
    (float, numpy.float32(0.1), 0.10000000149011612),
    (float, numpy.float64(0.1), 0.1),
    (float, numpy.float16(0.5), 0.5),
    (str, numpy.str_("a"), "a"),
    (bytes, numpy.bytes_(b"a"), b"a"),
    (date, numpy.datetime64("2026-01-31"), date(2026, 1, 31)),
    (timedelta, numpy.timedelta64(5, "s"), timedelta(seconds=5)),
    (list[int], numpy.array([1, 2]), [1, 2]),
    (list[list[float]], numpy.array([[1.5], [2]]), [[1.5], [2.0]]),
    (list[Any], numpy.array([1, "a", None], dtype=object), [1, "a", None]),
    (int, numpy.array(5), 5),
    (datetime, pandas.Timestamp("2026-01-31T12:00:00Z"), NOON),
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), datetime(2026, 10, 25, 2, 30, tzinfo=SUMMER)),
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), datetime(2026, 10, 25, 2, 30, tzinfo=WINTER)),
    (time, time(2, 30, tzinfo=SUMMER), time(2, 30, tzinfo=SUMMER)),
    (timedelta, pandas.Timedelta(days=1), timedelta(1)),
    (bytes, bytearray(b"a"), b"a"),
    (float, 1, 1.0),
    (list[int], (1, 2), [1, 2]),
    (list[int], range(3), [0, 1, 2]),
    (list[int], collections.deque([1]), [1]),
    (tuple[int, int], Point(1, 2), (1, 2)),
    (dict[str, int], collections.Counter("aa"), {"a": 2}),
    (str, Size.SMALL, "s"),
    (str, Word("ab"), "ab"),
    (int, Level.LOW, 1),
]

# Value without JSON form, the JSON pointer below it, and a part of the reason.
NO_FORM: list[tuple[Any, str, str]] = [
    (float("nan"), "", "`nan` is not a number in JSON; hint: `None`"),
    ([1.0, float("-inf")], "/1", "`-inf` is not a number in JSON; hint"),
    ({"a": {"b": [{"c/d": float("nan")}]}}, "/a/b/0/c~1d", "`nan` is not a number"),
    (numpy.float64("nan"), "", "`nan` is not a number in JSON; hint: `None`"),
    (numpy.array([[1.0, float("nan")]]), "/0/1", "`nan` is not a number"),
    (numpy.longdouble("0.1"), "", "hint: `float(…)`, or `str(…)` for all digits"),
    (numpy.complex64(1j), "", "hint: `[value.real, value.imag]`"),
    (numpy.datetime64("2026-01-31", "ns"), "", "type `datetime64[ns]` has no JSON form; hint: `pandas.Timestamp"),
    (numpy.datetime64("2026-01-31T12:00:00", "us"), "", "has no time zone; hint"),
    (numpy.datetime64("NaT"), "", "`NaT` is not a time; hint: `None`"),
    (numpy.timedelta64("NaT"), "", "`NaT` is not a time; hint: `None`"),
    (numpy.timedelta64(5, "ns"), "", "hint: `value.astype("),
    (numpy.array(["2026-01-31"], dtype="datetime64[ns]"), "", "hint: `pandas.Timestamp"),
    (numpy.ma.array([1, 2], mask=[0, 1]), "", "a masked array has no JSON form; hint: `value.filled(…)`"),
    (numpy.zeros(1, dtype=[("a", "i4")]), "", "hint: a list of dicts"),
    (pandas.Timestamp("2026-01-31"), "", "has no time zone; hint"),
    (pandas.Timestamp("2026-01-31T12:00:00.123456789Z"), "", 'digits below a microsecond; hint: `value.floor("us")`'),
    (pandas.Timedelta(5, "ns"), "", 'digits below a microsecond; hint: `value.floor("us")`'),
    (pandas.NaT, "", "`NaT` is not a time; hint: `None`"),
    (pandas.NA, "", "`NAType` has no JSON form; hint: `None`"),
    (pandas.Series([1]), "", "`Series` has no JSON form; hint: `.tolist()`"),
    (pandas.DataFrame({"a": [1]}), "", '`DataFrame` has no JSON form; hint: `.to_dict("records")`'),
    (pandas.Period("2026-01"), "", "`Period` has no JSON form; hint"),
    ({numpy.int64(1): 2}, "", "a key of type `int64` has no JSON form: keys are text or numbers; hint: `int(…)`"),
    ({Color.RED: 2}, "", "a key of type `Color` has no JSON form: keys are text or numbers; hint: `.value`"),
    ({date(2026, 1, 31): 2}, "", "a key of type `date` has no JSON form: keys are text or numbers; hint: `str(…)`"),
    (datetime(2026, 1, 31), "", "has no time zone; hint: `datetime.now(timezone.utc)`"),
    (Order(1, datetime(2026, 1, 31), timedelta(1)), "/at", "has no time zone; hint"),
    (1j, "", "hint: `[value.real, value.imag]`"),
    (fractions.Fraction(1, 3), "", "`Fraction` has no JSON form; hint: "),
    (iter([1]), "", "has no JSON form; hint: `list(…)`"),
    ((n for n in [1]), "", "`generator` has no JSON form; hint: `list(…)`"),
    (ValueError("x"), "", "`ValueError` has no JSON form; hint: `str(…)`"),
    (object(), "", "`object` has no JSON form; hint: a dict or a dataclass"),
    (Free(content=float("inf")), "/content", "`inf` is not a number in JSON; hint"),
    (Free(content=[{"a": float("nan")}]), "/content/0/a", "`nan` is not a number in JSON; hint"),
    (Free(content=Free(content=float("inf"))), "/content/content", "`inf` is not a number in JSON; hint"),
    (Model(at=NOON, took=timedelta(1), clock=time(), color=Color.RED, text=b"\xff"), "/text", "hint: `model_config = Config"),
    (Free(content=[Measured(float("inf"))]), "/content/0/x", "`inf` is not a number in JSON; hint"),
    (Free(content={1: "a", "1": "b"}), "/content", "are both `1` in JSON"),
]


class Box(Generic[T]):
    pass


@dataclasses.dataclass
class Boxed(Generic[T]):
    content: T


@dataclasses.dataclass
class Hidden:
    seed: dataclasses.InitVar[int]
    value: int = 0


# Annotation without JSON form, and the annotation that the error names.
NO_TYPE: list[tuple[Any, str]] = [
    (numpy.int64, "`int`, `float` or `bool`"),
    (numpy.ndarray, "`list[float]` for an array, and `numpy.asarray(…)` in the function"),
    (numpy.typing.NDArray[numpy.float64], "`list[float]`"),
    (pandas.Timestamp, "`datetime`"),
    (pandas.DataFrame, "`list[dict[str, Any]]`"),
    (Iterable[int], "`list[…]`"),
    (collections.deque[int], "`list[…]`"),
    (collections.Counter[str], "`dict[str, …]`"),
    (collections.OrderedDict, "`dict[str, …]`"),
    (range, "`list[int]`"),
    (complex, "`tuple[float, float]`"),
    (bytearray, "`bytes`"),
    (fractions.Fraction, "`str`"),
    (ZoneInfo, "`str`"),
    (re.Pattern[str], "`str`"),
    (Point, "a dataclass"),
    (Boxed[int], "a class without type parameters"),
    (T, "a class without type parameters"),
    (Hidden, "an ordinary field"),
    (dict[date, int], "`dict[str, int]`"),
    (Callable[[], None], "a dataclass, or a path or an id"),
    (Box, "a dataclass, or a path or an id"),
    (enum.Enum("Pair", {"A": (1, 2)}), "values of these types"),
]


def given(annotation: Any, value: Any) -> tuple[Trial[Any], Any]:
    """Gives a value as params, and returns the attempt, and what the handler got."""
    seen: list[Any] = []

    def take(value: annotation) -> None:  # pyright: ignore[reportInvalidTypeForm]
        seen.append(value)

    task: Any = App().task(take)
    run = trial(task, value)
    return run, seen[0] if seen else None


def returned(annotation: Any, value: Any) -> Trial[Any]:
    """Returns a value from a handler."""

    def give() -> annotation:  # pyright: ignore[reportInvalidTypeForm]
        return value

    return trial(App().task(give))


def both_ways(annotation: Any, value: Any) -> list[tuple[Trial[Any], Any]]:
    """Gives a value as params and as a result, and returns the attempts, and what arrived."""
    run = returned(annotation, value)
    return [given(annotation, value), (run, run._output)]


# Annotation and value of a container with a value.
WITHIN: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("", lambda kind: kind, lambda value: value),
    ("/0", lambda kind: list.__class_getitem__(kind), lambda value: [value]),
    ("/a", lambda kind: dict.__class_getitem__((str, kind)), lambda value: {"a": value}),
    ("/1", lambda kind: tuple.__class_getitem__((int, kind)), lambda value: (1, value)),
    ("", lambda kind: kind | None if kind is not None else None, lambda value: value),
    (
        "/x",
        lambda kind: dataclasses.make_dataclass("Data", [("x", kind)], namespace={"__module__": __name__}),
        lambda value: {"x": value},
    ),
]


@pytest.mark.parametrize(("annotation", "values"), ARRIVES, ids=[str(n) for n in range(len(ARRIVES))])
def test_value_arrives_as_it_is(annotation: Any, values: list[Any]) -> None:
    for value in values:
        for _, around, wrap in WITHIN[:5]:  # Without the class, which is not what the value is in.
            for run, found in both_ways(around(annotation), wrap(value)):
                assert run.failure is None, (value, run.failure)
                assert found == wrap(value) and type(found) is type(wrap(value)), (found, value)
        for mode in (False, True):
            schemas = Schemas(of_results=mode)
            schema = decode(encode(schemas.complete(schemas.codec(annotation).schema)))
            jsonschema.Draft202012Validator.check_schema(schema)
            jsonschema.validate(decode(encode(value)), schema)


@pytest.mark.parametrize(("annotation", "value", "expected"), BECOMES, ids=[str(n) for n in range(len(BECOMES))])
def test_value_of_another_class_is_exact(annotation: Any, value: Any, expected: Any) -> None:
    for run, found in both_ways(annotation, value):
        assert run.failure is None, run.failure
        assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(("value", "pointer", "reason"), NO_FORM, ids=[str(n) for n in range(len(NO_FORM))])
def test_value_without_json_form_names_its_place_and_a_remedy(value: Any, pointer: str, reason: str) -> None:
    for below, _, wrap in WITHIN:
        run = returned(Any, wrap(value))
        place = f"{below}{pointer}"
        assert run.failure and (run.failure.outcome, run.failure.kind) == ("fail", "bad_output")
        assert run.failure.message.startswith(f"the result is not JSON: {place}{': ' if place else ''}"), run.failure.message
        assert reason in run.failure.message and ("hint" in reason or "both" in reason or "is not a number" in reason)
        with pytest.raises(ValueError, match=re.escape(f"not JSON: /value{place}: ")):
            given(Any, wrap(value))


@pytest.mark.parametrize(("annotation", "remedy"), NO_TYPE, ids=str)
def test_type_without_json_form_names_the_type_to_use(annotation: Any, remedy: str) -> None:
    for below, kind, _ in WITHIN[:4] if annotation is not T else WITHIN[:1]:
        with pytest.raises(
            DeclarationError, match=rf"the parameter `value` of `take` has the type .*; hint: use .*{re.escape(remedy)}"
        ):
            given(kind(annotation), None)
        with pytest.raises(DeclarationError, match=r"the result of `give` has the type .*; hint: use "):
            returned(kind(annotation), None)
        assert below in ("", "/0", "/a", "/1")


def test_result_is_right_or_refused_where_it_is_made() -> None:
    """Each value as a result of each type: the caller can read it as that type, with the same JSON, or it is `bad_output`."""
    values = [wrap(value) for _, rows in ARRIVES for value in rows for _, _, wrap in WITHIN] + [value for _, value, _ in BECOMES]
    # `Decimal` makes text of numbers, `float` the nearest one, and pydantic drops what it does not know.
    kinds = [kind for kind, _ in ARRIVES if kind not in (Decimal, float, Model, Binary, Strict, Both, BothOf)]
    chance, refused = random.Random(35), 0
    for _ in range(4000):
        annotation, value = chance.choice(WITHIN)[1](chance.choice(kinds)), chance.choice(values)
        run = returned(annotation, value)
        if run.failure:
            refused += 1
            assert run.failure.kind == "bad_output" and "does not fit its type: " in run.failure.message, run.failure
        else:
            assert decode(encode(run.output)) == decode(encode(value)), (annotation, value)
    assert 1000 < refused < 3900


WRONG: list[tuple[Any, Any, str]] = [
    (int, "5", "the value: `'5'` is not an integer"),
    (int, None, "the value: `None` is not an integer"),
    (None, 5, "the value: `5` is not null"),
    (list[int], [1, "a"], "/1: `'a'` is not an integer"),
    (dict[str, list[int]], {"a": [1.5]}, "/a/0: `1.5` is not an integer"),
    (Order, Order(1, NOON, timedelta(1), "green"), "/color: `'green'` is none of"),  # type: ignore[arg-type]
    (Color, "green", "the value: `'green'` is none of"),
    (timedelta, 5, "the value: `5` is not a duration such as `PT30S`"),
    (timedelta, "5s", "`'5s'` is not a duration such as `PT30S` or `P1DT12H`"),
    (timedelta, "P", "is not a duration"),
    (timedelta, "P1Y", "is not a duration"),
    (timedelta, "PT0.0000001S", "digits below a microsecond"),
    (Path, "", "the value: `''` is not a path"),
    (time, "noon", "is not a time such as `12:00:00`"),
    (time, "12.50", "is not a time such as `12:00:00`"),
    (datetime, "2026-01-31T12:30.5Z", "is not a time such as"),
    (Model, {"at": "yesterday"}, "/at: "),
    (Options, {"width": "a"}, "/width: "),
]


@pytest.mark.parametrize(("annotation", "value", "problem"), WRONG, ids=str)
def test_wrong_result_fails_as_bad_output_with_its_place(annotation: Any, value: Any, problem: str) -> None:
    failure = returned(annotation, value).failure
    assert failure and (failure.outcome, failure.kind) == ("fail", "bad_output")
    assert failure.message.startswith("the result does not fit its type: ") and problem in failure.message


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3


@pytest.mark.parametrize("value", [Right.READ | Right.WRITE, Right(0), Access.BOTH], ids=repr)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [value]}], ids=["itself", "within"])
def test_combination_of_flags_is_refused_without_an_annotation_too(value: enum.Flag, wrap: Any) -> None:
    app = App()

    @app.task
    def flags():  # type: ignore[no-untyped-def]
        return wrap(value)

    failure = trial(flags).failure
    assert failure and failure.kind == "bad_output", failure
    assert "has no JSON form; hint: `[flag.name for flag in value]`" in failure.message
    annotated = returned(type(value), value).failure
    assert annotated and (annotated.outcome, annotated.kind) == (failure.outcome, failure.kind)
    assert encode({"a": Right.READ}) == b'{"a":1}'


def test_model_that_does_not_read_what_it_writes_is_a_result() -> None:
    from kafleet.attempt import Attempt

    def give(right: bool) -> list[Renamed]:
        return [Renamed(user_name="ada")] if right else ["ada"]  # type: ignore[list-item]

    task = App().task(give)
    answers: list[Any] = []
    for right in (True, False):
        channel: Trial[Any] = Trial()
        message = {"n": 1, "type": "give", "id": "a", "run": 1, "number": 1, "left_ms": 1000, "params": {"right": right}}
        answers.append(decode(Attempt(task, message, channel).run().splitlines()[-1]))
    assert answers[0] == {"ok": {"n": 1, "output": [{"userName": "ada", "length": 3}]}}
    assert answers[1]["error"]["kind"] == "bad_output" and "/0: " in answers[1]["error"]["message"]


def test_handler_without_an_annotation_returns_any_json() -> None:
    app = App()

    @app.task
    def free(n: int):  # type: ignore[no-untyped-def]
        return {"n": n}

    assert trial(free, 1).output == {"n": 1}


def test_unsupported_types_of_two_libraries_have_no_codec() -> None:
    for kind in (numpy.float64, pandas.Timedelta):
        with pytest.raises(UnsupportedType):
            Schemas().codec(kind)
