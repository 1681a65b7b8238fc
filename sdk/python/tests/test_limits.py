"""Limits in annotations: each is in the schema, and checked, wherever the annotation stands."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import annotated_types as at
import jsonschema  # type: ignore[import-untyped]
import pydantic
import pytest
from pydantic import AfterValidator, Field, PositiveInt, StringConstraints

from kafleet import App, DeclarationError, Params
from kafleet.codec import Schemas, UnsupportedType
from kafleet.scalars import Mismatch
from kafleet.testing import trial
from kafleet.values import encode, parse

Width = Annotated[int, Field(gt=0, le=4096)]
LIMIT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Box:
    width: Width
    depth: int = Field(5, gt=0)


class Side(TypedDict):
    width: Width
    height: NotRequired[Annotated[float, at.Lt(10)]]


# Annotation, and JSON values that are inside and outside of it.
LIMITED: list[tuple[Any, list[Any], list[Any]]] = [
    (Width, [1, 4096], [0, -5, 4097]),
    (PositiveInt, [1], [0]),
    (pydantic.conint(ge=2, lt=4), [2, 3], [1, 4]),
    (Annotated[float, at.Interval(gt=0, lt=1)], [0.5], [0, 1]),
    (Annotated[float, at.MultipleOf(0.5)], [1.5, 1], [0.35]),
    (Annotated[int, at.MultipleOf(5)], [0, 10], [3]),
    (Annotated[int, at.Gt(0), at.Gt(5), Field(multiple_of=2)], [6], [5, 4, 7]),
    (Annotated[str, at.MaxLen(3)], ["abc", "äöü"], ["abcd"]),
    (Annotated[str, at.Len(1, 2)], ["a"], ["", "abc"]),
    (Annotated[str, StringConstraints(min_length=1, pattern="^[a-z]+$")], ["a"], ["", "A"]),
    (Annotated[str, Field(pattern="b")], ["abc"], ["acc"]),
    (Annotated[bytes, at.MaxLen(1)], ["AA=="], ["AAA="]),
    (Annotated[list[Width], at.MinLen(1)], [[1]], [[], [-5]]),
    (Annotated[set[int], Field(max_length=1)], [[1]], [[1, 2]]),
    (Annotated[tuple[int, ...], at.MaxLen(1)], [[1]], [[1, 2]]),
    (Annotated[dict[str, Width], at.MinLen(1)], [{"a": 1}], [{}, {"a": 0}]),
    (Annotated[int | None, Field(gt=0)], [None, 1], [0]),
    (Optional[Width], [None, 1], [0]),  # noqa: UP045
    (Annotated[int | str, Field(description="text")], [0, "a"], [None]),
    (Annotated[Decimal, at.Ge(0), Field(max_digits=4, decimal_places=2)], ["12.50", 0], ["-0.01", "123.45", "1.234"]),
    (Annotated[datetime, at.Ge(LIMIT)], ["2026-01-01T00:00:00Z"], ["2025-12-31T23:59:59Z"]),
    (Annotated[int, at.Predicate(lambda value: value % 2 == 1)], [1], [2]),
    (Annotated[str, at.Predicate(str.isupper)], ["A"], ["a"]),
    (Box, [{"width": 1}, {"width": 1, "depth": 1}], [{"width": 0}, {"width": 1, "depth": 0}]),
    (Side, [{"width": 1, "height": 9.5}], [{"width": 0}, {"width": 1, "height": 10}]),
    (list[Box | None], [[{"width": 1}, None]], [[{"width": -1}]]),
    (Annotated[int, "documented", {"unit": "px"}, at.Unit("px"), at.doc("A width.")], [-5], ["a"]),
]


@pytest.mark.parametrize(("annotation", "inside", "outside"), LIMITED, ids=[str(n) for n in range(len(LIMITED))])
def test_limit_is_checked_and_in_the_schema(annotation: Any, inside: list[Any], outside: list[Any]) -> None:
    schemas = Schemas()
    codec = schemas.codec(annotation)
    schema = schemas.complete(parse(encode(codec.schema)))
    jsonschema.Draft202012Validator.check_schema(schema)
    for value in inside:
        codec.load(parse(encode(value)))
        jsonschema.validate(value, schema)
    for value in outside:
        with pytest.raises(Mismatch):
            codec.load(parse(encode(value)))


@pytest.mark.parametrize("value", [-5, 5])
def test_limit_holds_wherever_the_annotation_stands(value: int) -> None:
    app = App()
    small = app.bundle("small")

    def whole(width: Params[Width]) -> int:
        return width

    def default(width: int = Field(5, gt=0)) -> int:
        return width

    def in_default(width: Annotated[int, Field(5, gt=0)]) -> int:
        return width

    def result(width: int) -> Width:
        return width

    def results(width: int) -> dict[str, list[Width]]:
        return {"a": [width]}

    def named(width: Width) -> int:
        return width

    def boxed(width: Box) -> int:
        return width.width

    async def later(width: Width) -> int:
        return width

    declared: list[Any] = [app.task(fn) for fn in (whole, default, in_default, result, results, named, boxed, later)]
    declared += [small.task(fn) for fn in (whole, default, result, named, later)]
    for task in declared:
        given: Any = {"width": value} if task.fn is boxed else value
        run = trial(task, given)
        kind = "bad_output" if task.fn in (result, results) else "bad_params"
        assert (run.failure.kind if run.failure else None) == (kind if value < 0 else None), task.fn
        if task.bundle is None and kind == "bad_params":
            params = task.call(given).params
            assert jsonschema.Draft202012Validator(task.declaration()["params"]).is_valid(params) == (value > 0), task.fn
    assert trial(declared[1]).output == 5 and declared[2].compiled.load({}) == {"width": 5}
    assert declared[1].declaration()["params"]["properties"]["width"] == {"type": "integer", "exclusiveMinimum": 0, "default": 5}


def test_multiple_of_a_decimal_fraction_counts_the_digits() -> None:
    load = Schemas().codec(Annotated[float, at.MultipleOf(0.1)]).load
    assert load(0.3) == 0.3
    exact = Schemas().codec(Annotated[Decimal, at.MultipleOf(Decimal("0.1"))]).load
    assert exact("0.3") == Decimal("0.3")
    with pytest.raises(Mismatch):
        exact("1e999999999")


REFUSED: list[Any] = [
    Annotated[int, AfterValidator(abs)],
    Annotated[int, object()],
    Annotated[list[int], slice(1, 2)],
    Annotated[bool, at.Gt(0)],
    Annotated[int, at.MaxLen(3)],
    Annotated[str, at.Gt(0)],
    Annotated[Literal[1, 2], at.Gt(1)],
    Annotated[Any, at.Gt(1)],
    Annotated[int | list[int], at.Gt(1)],
    Annotated[str, StringConstraints(strip_whitespace=True)],
    Annotated[str, Field(alias="other")],
    Annotated[list[int], Field(default_factory=list)],
    Annotated[datetime, at.Timezone("UTC")],
    Annotated[Box, at.MinLen(1)],
]


@pytest.mark.parametrize("annotation", REFUSED, ids=str)
def test_limit_that_is_not_understood_is_refused_at_the_import(annotation: Any) -> None:
    with pytest.raises(UnsupportedType):
        Schemas().codec(annotation)
    app = App()

    def resize(width: annotation) -> None: ...  # pyright: ignore[reportInvalidTypeForm]

    with pytest.raises(
        DeclarationError, match=r"test_limits.py:\d+: the parameter `width` of `resize` has the type .* limit .*hint"
    ):
        app.task(resize)


def test_limits_agree_with_pydantic() -> None:
    """Limits and values at random: the schema, the check, and pydantic accept the same."""
    chance = random.Random(16)
    numbers = [-5, 0, 1, 2, 3, 4.5, 6, 10]
    texts = ["", "a", "ab", "abc", "B", "b1"]
    limits: dict[Any, list[Callable[[], Any]]] = {
        int: [lambda: {chance.choice(["gt", "ge", "lt", "le"]): chance.randint(-3, 6)}, lambda: {"multiple_of": 2}],
        float: [lambda: {chance.choice(["gt", "ge", "lt", "le"]): chance.choice([-1, 0.5, 4.5])}],
        str: [lambda: {chance.choice(["min_length", "max_length"]): chance.randint(0, 3)}, lambda: {"pattern": "b$"}],
        list[int]: [lambda: {chance.choice(["min_length", "max_length"]): chance.randint(0, 3)}],
    }  # fmt: skip
    wrapped: list[Callable[[Any], tuple[Any, Callable[[Any], Any]]]] = [
        lambda kind: (kind, lambda value: value),
        lambda kind: (list.__class_getitem__(kind), lambda value: [value]),
        lambda kind: (dict.__class_getitem__((str, kind)), lambda value: {"a": value}),
        lambda kind: (kind | None, lambda value: value),
    ]
    for _ in range(400):
        base = chance.choice(list(limits))
        given = dict(itertools.chain(*(chance.choice(limits[base])().items() for _ in range(chance.randint(1, 2)))))
        annotation, wrap = chance.choice(wrapped)(Annotated[base, Field(**given)])
        schemas, adapter = Schemas(), pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(strict=True))
        codec = schemas.codec(annotation)
        validator = jsonschema.Draft202012Validator(schemas.complete(codec.schema))
        values: list[Any] = texts if base is str else numbers if base in (int, float) else [[0] * n for n in range(4)]
        for value in values:
            document = wrap(value)
            accepted = [validator.is_valid(document), _accepts(codec.load, document, Mismatch)]
            accepted.append(_accepts(adapter.validate_python, document, pydantic.ValidationError))
            assert len(set(accepted)) == 1, (annotation, given, document, accepted)


def _accepts(load: Callable[[Any], Any], value: Any, error: type[Exception]) -> bool:
    try:
        load(value)
    except error:
        return False
    return True


def test_models_of_one_name_keep_their_own_definitions() -> None:
    def model(name: str, kind: Any) -> Any:
        leaf = pydantic.create_model("Leaf", value=(kind, ...))
        middle = pydantic.create_model("Middle", leaf=(leaf, ...))
        return pydantic.create_model(name, middle=(middle, ...), others=(list[leaf], []))  # type: ignore[valid-type]

    @dataclass
    class Leaf:
        value: bool

    first, second, again = model("First", int), model("Second", str), model("Third", int)
    schemas = Schemas()
    for kind, right, wrong in ((first, 1, "a"), (second, "a", 1), (again, 1, "a")):
        schema = schemas.codec(kind).schema
        for value, valid in ((right, True), (wrong, False)):
            document = {"middle": {"leaf": {"value": value}}, "others": [{"value": value}]}
            assert jsonschema.Draft202012Validator(schemas.complete(schema)).is_valid(document) == valid
    assert sorted(schemas.defs) == ["Leaf", "Leaf2", "Middle", "Middle2"]
    schema = schemas.complete(schemas.codec(Leaf).schema)
    assert jsonschema.Draft202012Validator(schema).is_valid({"value": True})
    assert not jsonschema.Draft202012Validator(schema).is_valid({"value": 1})


def test_choice_of_models_by_a_member_keeps_its_definitions() -> None:
    def pets(of: Any) -> Any:
        create: Any = pydantic.create_model
        cat = create("Cat", kind=(Literal["cat"], ...), value=(of, ...))
        dog = create("Dog", kind=(Literal["dog"], ...), value=(of, ...))
        return create("Pets", pet=(Annotated[cat | dog, Field(discriminator="kind")], ...))

    schemas = Schemas()
    for of, name in ((int, "#/$defs/Cat"), (str, "#/$defs/Cat2")):
        assert schemas.codec(pets(of)).schema["properties"]["pet"]["discriminator"]["mapping"]["cat"] == name


def test_dataclass_of_pydantic_has_its_limits() -> None:
    @pydantic.dataclasses.dataclass
    class Checked:
        width: int = Field(5, gt=0)

    codec = Schemas().codec(Checked)
    assert codec.load({}).width == 5 and codec.schema["properties"]["width"]["exclusiveMinimum"] == 0
    with pytest.raises(Mismatch) as mismatch:
        codec.load({"width": -5})
    assert mismatch.value.pointer == "/width"
