"""Annotations: their JSON Schemas, and the conversion of params and results."""

import enum
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import jsonschema  # type: ignore[import-untyped]
import pydantic
import pytest

from kafleet import App, DeclarationError
from kafleet.codec import Schemas, UnsupportedType
from kafleet.scalars import Mismatch
from kafleet.values import encode


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Size(TypedDict):
    width: int
    height: NotRequired[int]


@dataclass
class Leaf:
    name: str
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    leaf: Leaf
    children: "list[Tree]" = field(default_factory=list)
    depth: int = 3


class Model(pydantic.BaseModel):
    name: str
    limit: int = pydantic.Field(default=1, ge=0)


Money = NewType("Money", Decimal)

# Annotation, JSON, value.
ACCEPTED: list[tuple[Any, Any, Any]] = [
    (Any, {"a": [None]}, {"a": [None]}),
    (None, None, None),
    (bool, True, True),
    (int, 5, 5),
    (int, 5.0, 5),
    (float, 1, 1.0),
    (float, 1.5, 1.5),
    (str, "a\u2028b", "a\u2028b"),
    (bytes, "AP8=", b"\x00\xff"),
    (datetime, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    (date, "2026-01-31", date(2026, 1, 31)),
    (UUID, "8a2f6f4e-0000-4000-8000-000000000001", UUID("8a2f6f4e-0000-4000-8000-000000000001")),
    (Decimal, "1.10", Decimal("1.10")),
    (Money, "1.10", Decimal("1.10")),
    (Path, "/srv/a.jpg", Path("/srv/a.jpg")),
    (list[int], [1, 2], [1, 2]),
    (Sequence[str], ["a"], ["a"]),
    (set[int], [1, 2], {1, 2}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (Mapping[str, list[int]], {"a": [1]}, {"a": [1]}),
    (int | None, None, None),
    (int | str, "a", "a"),
    (date | str, "2026-01-31", "2026-01-31"),
    (list[int] | dict[str, int], {"a": 1}, {"a": 1}),
    (Literal["a", 1], 1, 1),
    (Color, "red", Color.RED),
    (Color, 2, Color.TWO),
    (Annotated[int, {"unit": "px"}], 1, 1),
    (Size, {"width": 1}, {"width": 1}),
    (Leaf, {"name": "a"}, Leaf("a")),
    (Leaf, {"name": "a", "tags": ["b"], "unknown": 1}, Leaf("a", ["b"])),
    (Tree, {"leaf": {"name": "a"}, "children": [{"leaf": {"name": "b"}}]}, Tree(Leaf("a"), [Tree(Leaf("b"))])),
    (Model, {"name": "a"}, Model(name="a")),
]

# Annotation, JSON, JSON pointer of the invalid value.
REFUSED: list[tuple[Any, Any, str]] = [
    (None, 0, ""),
    (bool, 1, ""),
    (int, True, ""),
    (int, 1.5, ""),
    (int, "1", ""),
    (float, "1.5", ""),
    (str, 1, ""),
    (bytes, "no base64!", ""),
    (datetime, "yesterday", ""),
    (UUID, "1", ""),
    (Decimal, "a", ""),
    (list[int], [1, "a"], "/1"),
    (list[int], {"a": 1}, ""),
    (tuple[int, str], [1], ""),
    (dict[str, int], {"a/b": "c"}, "/a~1b"),
    (dict[int, str], {"a": "b"}, "/a"),
    (int | None, "a", ""),
    (Literal["a"], "b", ""),
    (Color, "green", ""),
    (Color, [], ""),
    (Size, {}, ""),
    (Leaf, {"name": "a", "tags": [1]}, "/tags/0"),
    (Tree, {"leaf": {"name": "a"}, "children": [{"leaf": {}}]}, "/children/0/leaf"),
    (Model, {"name": "a", "limit": -1}, "/limit"),
]


@pytest.mark.parametrize(("annotation", "document", "value"), ACCEPTED, ids=str)
def test_value_is_converted_and_matches_its_schema(annotation: Any, document: Any, value: Any) -> None:
    schemas = Schemas()
    codec = schemas.codec(annotation)
    loaded = codec.load(document)
    assert loaded == value and type(loaded) is type(value)
    schema = schemas.complete(codec.schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    assert codec.load(json.loads(encode(value))) == value


@pytest.mark.parametrize(("annotation", "document", "pointer"), REFUSED, ids=str)
def test_wrong_value_is_refused_with_its_place(annotation: Any, document: Any, pointer: str) -> None:
    with pytest.raises(Mismatch) as mismatch:
        Schemas().codec(annotation).load(document)
    assert mismatch.value.pointer == pointer


@pytest.mark.parametrize(
    "annotation", [Callable[[], None], range, object.__class__, dict[tuple[int], str], list[complex]], ids=str
)
def test_annotation_without_json_form_is_refused(annotation: Any) -> None:
    with pytest.raises(UnsupportedType):
        Schemas().codec(annotation)


def test_strict_objects_refuse_unknown_fields() -> None:
    codec = Schemas(strict=True).codec(Leaf)
    with pytest.raises(Mismatch, match="`colour` is not a field; allowed: name, tags"):
        codec.load({"name": "a", "colour": 1})


def test_member_of_a_union_is_the_class_that_knows_the_most_fields() -> None:
    @dataclass
    class Created:
        id: int

    @dataclass
    class Updated:
        id: int
        changes: list[str]

    codec = Schemas().codec(Created | Updated)
    assert codec.load({"id": 1, "changes": ["name"]}) == Updated(1, ["name"])
    assert codec.load({"id": 1}) == Created(1)
    assert codec.load({"id": 1, "other": 2}) == Created(1)


def test_pydantic_models_travel_under_their_aliases() -> None:
    class Person(pydantic.BaseModel):
        user_name: str = pydantic.Field(alias="userName")

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def length(self) -> int:
            return len(self.user_name)

    document = json.loads(encode(Person(userName="ada")))
    assert document == {"userName": "ada", "length": 3}
    assert Schemas().codec(Person).load(document) == Person(userName="ada")
    jsonschema.validate(document, Schemas(of_results=True).codec(Person).schema)
    assert "length" in Schemas(of_results=True).codec(Person).schema["required"]


def test_postponed_annotations_keep_the_markers_of_typed_dicts() -> None:
    source = "from __future__ import annotations\nfrom typing import NotRequired, TypedDict\n"
    names: dict[str, Any] = {"__name__": __name__}
    exec(source + "class Opt(TypedDict):\n    a: int\n    b: NotRequired[int]\n", names)
    schemas = Schemas()
    assert schemas.codec(names["Opt"]).load({"a": 1}) == {"a": 1}
    assert schemas.defs["Opt"]["required"] == ["a"]


def test_value_without_json_form_is_refused() -> None:
    for value in (float("nan"), object(), {1j: 2}, [set]):
        with pytest.raises(ValueError, match="not JSON"):
            encode(value)


def test_declaration_has_schemas_and_policy() -> None:
    app = App()

    @app.task(retries=5, timeout=timedelta(seconds=30), fail_on=[KeyError, "bad_width"])
    def resize_all(path: str, width: int = 200) -> Leaf:
        """Resizes."""
        return Leaf(path)

    declaration = resize_all.declaration()
    assert (declaration["name"], declaration["doc"]) == ("resize-all", "Resizes.")
    assert declaration["policy"] == {"retries": 5, "timeout": "30000ms", "fail_on": ["bad_width"]}
    properties = {"path": {"type": "string"}, "width": {"type": "integer", "default": 200}}
    assert declaration["params"] == {"type": "object", "properties": properties, "required": ["path"]}
    assert declaration["output"]["$ref"] == "#/$defs/Leaf"


def test_wrong_declarations_name_the_place_and_the_remedy() -> None:
    app = App()

    def no_annotation(path) -> None: ...  # type: ignore[no-untyped-def]
    def no_json(path: complex) -> None: ...
    def no_json_result() -> complex: ...  # type: ignore[empty-body]
    def variadic(*paths: str) -> None: ...
    def twice() -> None: ...

    app.task(twice)
    cases: list[tuple[Any, str]] = [
        (
            lambda: app.task(no_annotation),
            r"test_codec.py:\d+: the parameter `path` of `no_annotation` has no annotation; hint: use `path: str`",
        ),
        (lambda: app.task(no_json), "the parameter `path` of `no_json` has the type complex, which has no JSON form"),
        (lambda: app.task(no_json_result), "the result of `no_json_result` has the type complex"),
        (lambda: app.task(variadic), r"the parameter `paths` of `variadic` is `\*args`"),
        (lambda: app.task(twice), r"`twice` is declared twice, first in .*test_codec.py:\d+; hint"),
        (lambda: app.task(name="No Name")(twice), "`No Name` is not a name of a type"),
        (lambda: app.task(retrys=3)(twice), "`retrys` is not a key of a policy; hint: did you mean `retries`"),  # type: ignore[call-overload]
        (
            lambda: app.task(retention="1d")(twice),  # type: ignore[call-overload]
            r"`retention` is not a key of a policy; hint: set it in `\[types.NAME\]` of kafleet.toml",
        ),
        (lambda: app.task(group="shared")(twice), r"`group` is not a key of a policy; hint: set it in `\[types.NAME\]`"),  # type: ignore[call-overload]
        (lambda: app.task(bind=True)(twice), "`bind` is not a key of a policy; hint: annotate the first parameter"),  # type: ignore[call-overload]
        (lambda: app.task(timeout=30)(twice), r"test_codec.py:\d+: `timeout=30` is not a duration; hint: write \"30s\" or"),  # type: ignore[call-overload]
        (lambda: app.task(rate={"count": 5, "per": 60})(twice), "`per=60` is not a duration"),
        (lambda: app.task(5), "`5` is not a function"),  # type: ignore[call-overload]
        (lambda: app.around(twice), "`twice` is not a generator function"),
        (lambda: App(slots=0), "`slots` is 0: 1 to 1,000 are allowed"),
    ]
    for declare, message in cases:
        with pytest.raises(DeclarationError, match=message):
            declare()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` needs Python 3.12")
def test_alias_that_contains_itself_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("type Rec = int | list[Rec]", scope)
    with pytest.raises(UnsupportedType, match="Rec, which contains itself: only classes can"):
        Schemas().codec(scope["Rec"])
