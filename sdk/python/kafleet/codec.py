"""JSON Schemas of annotations, and the conversion of values to and from JSON."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence, Set
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

T = TypeVar("T")
Load = Callable[[Any], Any]


class Mismatch(ValueError):
    """A JSON value does not have the annotated type; `pointer` locates it."""

    def __init__(self, problem: str, pointer: str = "") -> None:
        super().__init__(f"{pointer or 'the value'}: {problem}")
        self.problem, self.pointer = problem, pointer

    def below(self, key: object) -> Mismatch:
        """Returns the same error, seen from the container."""
        return Mismatch(self.problem, f"/{str(key).replace('~', '~0').replace('/', '~1')}{self.pointer}")


class UnsupportedType(TypeError):
    """An annotation has no JSON form."""


class Codec(NamedTuple):
    """Schema of an annotation, and the function that converts a JSON value to it."""

    schema: dict[str, Any]
    load: Load


class Field(NamedTuple):
    """Member of an object."""

    name: str
    codec: Codec
    required: bool
    default: Any = dataclasses.MISSING


# Values to JSON


def to_json(value: Any) -> Any:
    """Converts a value that the `json` module does not know; used as its `default`."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID | Decimal | PurePath):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Set):  # Sorted, so that equal sets are equal JSON.
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a value of type `{type(value).__qualname__}` has no JSON form")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_json).encode


def encode(value: Any) -> bytes:
    """Returns a value as compact JSON. Raises `ValueError` if it has no JSON form."""
    try:
        return _encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def encode_text(value: Any) -> bytes:
    """Returns text for people as JSON; characters that UTF-8 cannot represent are replaced."""
    return _encode(value).encode(errors="replace")


# JSON to values


def _anything(value: Any) -> Any:
    return value


def _exactly(kind: type, name: str) -> Load:
    def load(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise Mismatch(f"{_shown(value)} is not {name}")

    return load


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():  # 1.0 is an integer in JSON Schema.
        return int(value)
    raise Mismatch(f"{_shown(value)} is not an integer")


def _number(value: Any) -> float:
    if type(value) is float or type(value) is int:
        return _converted(float, value, "a number that a float can represent")
    raise Mismatch(f"{_shown(value)} is not a number")


def _decimal(value: Any) -> Decimal:
    if type(value) in (str, int, float):
        return _converted(Decimal, str(value), "a decimal number")
    raise Mismatch(f"{_shown(value)} is not a decimal number")


def _from_text(convert: Callable[[str], Any], name: str) -> Load:
    def load(value: Any) -> Any:
        if type(value) is str:
            return _converted(convert, value, name)
        raise Mismatch(f"{_shown(value)} is not {name}")

    return load


def _converted(convert: Callable[[Any], T], value: Any, name: str) -> T:
    try:
        return convert(value)
    except (ValueError, OverflowError, InvalidOperation):
        raise Mismatch(f"{_shown(value)} is not {name}") from None


def _shown(value: Any) -> str:
    text = repr(value) if len(str(value)) <= 40 else f"{str(value)[:40]}…"
    return f"`{text}`"


def _text(format: str) -> dict[str, Any]:
    return {"type": "string", "format": format}


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_SCALARS: dict[Any, Codec] = {
    Any: Codec({}, _anything),
    object: Codec({}, _anything),
    None: Codec({"type": "null"}, _exactly(types.NoneType, "null")),
    types.NoneType: Codec({"type": "null"}, _exactly(types.NoneType, "null")),
    bool: Codec({"type": "boolean"}, _exactly(bool, "a boolean")),
    str: Codec({"type": "string"}, _exactly(str, "a string")),
    int: Codec({"type": "integer"}, _integer),
    float: Codec({"type": "number"}, _number),
    bytes: Codec({"type": "string", "contentEncoding": "base64"}, _from_text(_base64, "base64")),
    datetime: Codec(_text("date-time"), _from_text(datetime.fromisoformat, "a time such as `2026-01-31T12:00:00Z`")),
    date: Codec(_text("date"), _from_text(date.fromisoformat, "a date such as `2026-01-31`")),
    UUID: Codec(_text("uuid"), _from_text(UUID, "a UUID")),
    Decimal: Codec({"type": ["string", "number"]}, _decimal),
    Path: Codec({"type": "string"}, _from_text(Path, "a path")),
    PurePath: Codec({"type": "string"}, _from_text(PurePath, "a path")),
}

_LISTS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list, Sequence: list, MutableSequence: list, set: set, frozenset: frozenset, Set: frozenset,
}  # fmt: skip


class Schemas:
    """Compiles annotations; classes become definitions, so that they can contain themselves."""

    def __init__(self, strict: bool = False, *, of_results: bool = False) -> None:
        self.strict = strict
        self.mode: Any = "serialization" if of_results else "validation"
        """Side of pydantic models that the schemas describe."""
        self.defs: dict[str, Any] = {}
        self._classes: dict[Any, Codec] = {}

    def complete(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Returns a schema with the definitions that it refers to."""
        return {**schema, "$defs": self.defs} if self.defs else schema

    def codec(self, annotation: Any) -> Codec:
        """Compiles an annotation. Raises `UnsupportedType` if it has no JSON form."""
        try:
            if annotation in _SCALARS:
                return _SCALARS[annotation]
        except TypeError:  # Unhashable, such as `Annotated[int, {}]`.
            pass
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired):
            return self.codec(arguments[0])
        if origin is typing.Literal:
            return _choice({value: value for value in arguments})
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if hasattr(annotation, "__supertype__"):  # NewType
            return self.codec(annotation.__supertype__)
        if hasattr(annotation, "__value__"):  # type X = …
            try:
                return self.codec(annotation.__value__)
            except RecursionError:
                raise UnsupportedType(f"{_name(annotation)}, which contains itself: only classes can") from None
        found = self._container(origin or annotation, arguments)
        if found is not None:
            return found
        if isinstance(annotation, type):
            return self._class(annotation)
        raise UnsupportedType(_name(annotation))

    def object(self, fields: list[Field]) -> Codec:
        """Codec of an object with these members, as a dict."""
        schema: dict[str, Any] = {"type": "object", "properties": {f.name: _with_default(f) for f in fields}}
        schema["required"] = [f.name for f in fields if f.required]
        if self.strict:
            schema["additionalProperties"] = False
        return Codec(schema, _object_loader(fields, self.strict))

    def _container(self, kind: Any, arguments: tuple[Any, ...]) -> Codec | None:
        if kind in _LISTS:
            item, unique = self.codec(arguments[0] if arguments else Any), not issubclass(kind, Sequence)
            schema = {"type": "array", "items": item.schema, **({"uniqueItems": True} if unique else {})}
            return Codec(schema, _list_loader(_LISTS[kind], item.load))
        if kind is tuple:
            return self._tuple(arguments)
        if kind in (dict, Mapping, MutableMapping):
            return self._dict(*(arguments or (str, Any)))
        return None

    def _tuple(self, arguments: tuple[Any, ...]) -> Codec:
        if not arguments or arguments[1:] == (Ellipsis,):
            item = self.codec(arguments[0] if arguments else Any)
            return Codec({"type": "array", "items": item.schema}, _list_loader(tuple, item.load))
        items = [self.codec(argument) for argument in arguments if argument != ()]
        size = {"minItems": len(items), "maxItems": len(items)}
        schema = {"type": "array", "prefixItems": [item.schema for item in items], **size}
        return Codec(schema, _tuple_loader([item.load for item in items]))

    def _dict(self, key: Any, value: Any) -> Codec:
        item = self.codec(value)
        if key is str:
            return Codec({"type": "object", "additionalProperties": item.schema}, _dict_loader(_anything, item.load))
        if key is int:
            schema = {"type": "object", "patternProperties": {"^-?[0-9]+$": item.schema}, "additionalProperties": False}
            return Codec(schema, _dict_loader(_from_text(int, "an integer"), item.load))
        raise UnsupportedType(f"dict[{_name(key)}, …]: keys are `str` or `int`")

    def _union(self, arguments: tuple[Any, ...]) -> Codec:
        options = [(argument, self.codec(argument)) for argument in arguments]
        exact = {argument for argument, _ in options if argument in (str, bool, int, float, types.NoneType)}
        names, members = ", ".join(_name(a) for a, _ in options), [_member_names(argument) for argument, _ in options]
        loads = [codec.load for _, codec in options]

        def load(value: Any) -> Any:
            if type(value) in exact:
                return value
            tried: Iterable[int] = range(len(loads))
            if type(value) is dict:
                # The class that knows the most of the members, since unknown ones are ignored.
                tried = sorted(tried, key=lambda n: len(value.keys() - (members[n] or value.keys())))
            for option in tried:
                try:
                    return loads[option](value)
                except Mismatch:
                    pass
            raise Mismatch(f"{_shown(value)} is none of {names}")

        return Codec({"anyOf": [codec.schema for _, codec in options]}, load)

    def _class(self, kind: type) -> Codec:
        if kind in self._classes:
            return self._classes[kind]
        if issubclass(kind, enum.Enum):
            return _choice({member.value: member for member in kind})
        if hasattr(kind, "model_json_schema"):
            return self._pydantic(kind)
        if not dataclasses.is_dataclass(kind) and not typing.is_typeddict(kind):
            raise UnsupportedType(_name(kind))
        name = _definition(kind.__name__, self.defs)
        self.defs[name] = {}
        loader: list[Load] = []
        self._classes[kind] = Codec({"$ref": f"#/$defs/{name}"}, lambda value: loader[0](value))
        codec = self.object(self._members(kind))
        self.defs[name] = codec.schema
        build = dict if typing.is_typeddict(kind) else kind
        loader.append(lambda value: build(**codec.load(value)))
        return self._classes[kind]

    def _members(self, kind: Any) -> list[Field]:
        hints = typing.get_type_hints(kind, include_extras=True)
        if typing.is_typeddict(kind):
            return [Field(name, self._member(kind, name, hint), _is_required(kind, name, hint)) for name, hint in hints.items()]
        members = []
        for field in dataclasses.fields(kind):
            if field.init:
                optional = field.default_factory is not dataclasses.MISSING
                required = field.default is dataclasses.MISSING and not optional
                members.append(Field(field.name, self._member(kind, field.name, hints[field.name]), required, field.default))
        return members

    def _member(self, kind: type, name: str, hint: Any) -> Codec:
        try:
            return self.codec(hint)
        except UnsupportedType as error:
            raise UnsupportedType(f"{error}, in the field `{name}` of `{kind.__name__}`") from None

    def _pydantic(self, kind: Any) -> Codec:
        schema = kind.model_json_schema(ref_template="#/$defs/{model}", mode=self.mode)
        self.defs.update(schema.pop("$defs", {}))
        invalid = sys.modules["pydantic"].ValidationError

        def load(value: Any) -> Any:
            try:
                return kind.model_validate(value)
            except invalid as error:
                first = error.errors()[0]
                pointer = "".join(f"/{part}" for part in first["loc"])
                raise Mismatch(first["msg"], pointer) from None

        self._classes[kind] = Codec(schema, load)
        return self._classes[kind]


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    # In modules with postponed annotations `__required_keys__` does not know the markers.
    marker = typing.get_origin(hint)
    return marker is typing.Required or (marker is not typing.NotRequired and name in kind.__required_keys__)


def _member_names(annotation: Any) -> set[str] | None:
    """Returns the members of a class in JSON; nothing if they are not known."""
    if hasattr(annotation, "model_fields"):
        fields = annotation.model_fields
        return {name for field in fields for name in (field, fields[field].alias) if name}
    if dataclasses.is_dataclass(annotation):
        return {field.name for field in dataclasses.fields(annotation)}
    return set(annotation.__annotations__) if typing.is_typeddict(annotation) else None


def _choice(choices: dict[Any, Any]) -> Codec:
    for value in choices:
        if not isinstance(value, str | int | float | types.NoneType):
            raise UnsupportedType(f"an enum with the value `{value!r}`, which is not a string, number, boolean or null")
    by_json = {(type(_plain(value)), _plain(value)): choice for value, choice in choices.items()}

    def load(value: Any) -> Any:
        try:
            return by_json[type(value), value]
        except (KeyError, TypeError):
            raise Mismatch(f"{_shown(value)} is none of {', '.join(_shown(_plain(v)) for v in choices)}") from None

    return Codec({"enum": [_plain(value) for value in choices]}, load)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _with_default(field: Field) -> dict[str, Any]:
    if field.default is dataclasses.MISSING:
        return field.codec.schema
    try:
        return {**field.codec.schema, "default": json.loads(encode(field.default))}
    except ValueError:
        return field.codec.schema


def _object_loader(fields: list[Field], strict: bool) -> Load:
    members = [(f.name, f.codec.load, f.required) for f in fields]
    names = {f.name for f in fields}

    def load(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(f"{_shown(value)} is not an object")
        loaded = {}
        for name, convert, required in members:
            if name in value:
                try:
                    loaded[name] = convert(value[name])
                except Mismatch as error:
                    raise error.below(name) from None
            elif required:
                raise Mismatch(f"`{name}` is missing")
        if strict and not names.issuperset(value):
            raise Mismatch(f"`{min(set(value) - names)}` is not a field; allowed: {', '.join(sorted(names))}")
        return loaded

    return load


def _list_loader(build: Callable[[Iterable[Any]], Any], convert: Load) -> Load:
    def load(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch(f"{_shown(value)} is not an array")
        return build(_items(value, [convert] * len(value)))

    return load


def _tuple_loader(converts: list[Load]) -> Load:
    def load(value: Any) -> Any:
        if type(value) is not list or len(value) != len(converts):
            raise Mismatch(f"{_shown(value)} is not an array of {len(converts)} items")
        return tuple(_items(value, converts))

    return load


def _items(values: list[Any], converts: list[Load]) -> list[Any]:
    loaded: list[Any] = []
    try:
        for value, convert in zip(values, converts, strict=True):
            loaded.append(convert(value))
    except Mismatch as error:
        raise error.below(len(loaded)) from None
    return loaded


def _dict_loader(convert_key: Load, convert: Load) -> Load:
    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"{_shown(value)} is not an object")
        loaded = {}
        for key, item in value.items():
            try:
                loaded[convert_key(key)] = convert(item)
            except Mismatch as error:
                raise error.below(key) from None
        return loaded

    return load


def _definition(name: str, taken: Mapping[str, Any]) -> str:
    names = [name, *(f"{name}{n}" for n in range(2, len(taken) + 3))]
    return next(candidate for candidate in names if candidate not in taken)


def _name(annotation: Any) -> str:
    if isinstance(annotation, type):
        module = annotation.__module__
        return annotation.__qualname__ if module in ("builtins", "__main__") else f"{module}.{annotation.__qualname__}"
    return str(annotation)
