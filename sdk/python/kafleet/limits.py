"""Limits in annotations, such as `Annotated[int, Gt(0)]`: keywords of the schema, and checks of the values.

The classes of `annotated_types` and the `Field` of pydantic are understood, if these packages are installed. Any other
object that may limit a value is refused, because it would be ignored otherwise.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from .values import Number, class_name, text_of

WHOLE = object()
"""Marks the parameter whose value is all of the params."""

_MAX_EXPONENT = 5000
"""Numbers of a larger exponent are multiples of nothing: their digits would fill the memory."""

_NOTES = (str, int, float, bool, types.NoneType, dict, list, tuple)
"""Classes of metadata that says something to people or other libraries, and limits nothing."""

_IGNORED = {"title", "strict", "unit", "documentation", "allow_inf_nan", "fail_fast"}
"""Attributes that change nothing: values are never converted from text, and never infinite."""

_ORDERS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "gt": ("exclusiveMinimum", operator.gt, "greater than"),
    "ge": ("minimum", operator.ge, "at least"),
    "lt": ("exclusiveMaximum", operator.lt, "less than"),
    "le": ("maximum", operator.le, "at most"),
}
_LENGTHS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "min_length": ("min", operator.ge, "at least"),
    "max_length": ("max", operator.le, "at most"),
}
_COUNTED = {"text": "Length", "array": "Items", "object": "Properties", "bytes": ""}
"""End of the keyword for the length of a kind of value; the length of base64 text is not that of the bytes."""

_SCALARS = {
    int: "number", float: "number", Decimal: "decimal", str: "text", bytes: "bytes", datetime: "time", date: "time",
    time: "time", timedelta: "time",
}  # fmt: skip
_UNSENT = ("alias", "validation_alias", "serialization_alias", "discriminator", "exclude", "default_factory")
"""Attributes of a `Field` that only a model of pydantic carries out."""


class UnknownLimit(Exception):
    """An annotation has a limit that cannot be checked."""


class Limit(NamedTuple):
    """One limit: its keywords of JSON Schema, and the check of a loaded value."""

    keywords: dict[str, Any]
    holds: Callable[[Any], object]
    problem: str


def limits_of(base: Any, metadata: tuple[Any, ...]) -> list[Limit]:
    """Returns the limits in the metadata of an annotation. Raises `UnknownLimit`."""
    kind = _kind(base)
    return [_limit(kind, name, value) for item in metadata for name, value in _attributes(item)]


def has_limits(metadata: tuple[Any, ...]) -> bool:
    """Returns whether metadata limits or describes a value. Raises `UnknownLimit`."""
    return any(True for item in metadata for _ in _attributes(item))


def kept(schema: dict[str, Any], limits: list[Limit]) -> dict[str, Any]:
    """Returns a schema with the keywords of limits; a keyword that is there twice keeps both values."""
    schema = dict(schema)
    for limit in limits:
        for keyword, value in limit.keywords.items():
            if keyword in schema:
                schema["allOf"] = [*schema.get("allOf", ()), {keyword: value}]
            else:
                schema[keyword] = value
    return schema


def split_default(hint: Any, default: Any, missing: object) -> tuple[Any, Any, bool]:
    """Splits a default such as `Field(5, gt=0)` into limits and the value.

    Returns the annotation, the default, and whether Python does not know this default, so that the loader has to set it.
    """
    field_class = _field_class()
    if field_class and isinstance(default, field_class):
        hint, default = typing.Annotated[hint, default], missing
    if default is missing and field_class:
        for item in getattr(hint, "__metadata__", ()):
            if isinstance(item, field_class) and not (item.is_required() or item.default_factory):
                return hint, item.default, True
    return hint, default, False


def _field_class() -> Any:
    return getattr(sys.modules.get("pydantic.fields"), "FieldInfo", None)


def _kind(base: Any) -> str:
    origin = typing.get_origin(base) or base
    if isinstance(origin, typing.Hashable) and origin in _SCALARS:
        return _SCALARS[origin]
    if origin in (dict, Mapping, MutableMapping):
        return "object"
    arrays = (list, tuple, set, frozenset)
    is_array = isinstance(origin, type) and (origin in arrays or origin.__module__ == "collections.abc")
    return "array" if is_array else "other"


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    """Returns the limits of one object in the metadata by their names. Raises `UnknownLimit`."""
    known, field_class = sys.modules.get("annotated_types"), _field_class()
    if item is WHOLE or isinstance(item, _NOTES) or class_name(item) in ("Doc", "DocInfo"):
        return
    if field_class and isinstance(item, field_class):
        for name in _UNSENT:
            if getattr(item, name, None):
                raise UnknownLimit(f"`{name}` of `Field`")
        yield from (("description", item.description),) if item.description else ()
        for limit in item.metadata:
            yield from _attributes(limit)
    elif known and isinstance(item, known.Predicate):
        yield "predicate", item.func
    elif known and isinstance(item, known.GroupedMetadata):
        for limit in item:
            yield from _attributes(limit)
    elif known and isinstance(item, known.BaseMetadata):
        fields = [f.name for f in dataclasses.fields(item)] if dataclasses.is_dataclass(item) else list(vars(item))
        values = {name: getattr(item, name) for name in fields}
        yield from ((name, value) for name, value in values.items() if value is not None and value is not False)
    else:
        raise UnknownLimit(f"`{text_of(item)[:100]}`")


def _limit(kind: str, name: str, value: Any) -> Limit:
    numeric = kind in ("number", "decimal")
    if name in _IGNORED:
        return Limit({}, lambda _: True, "")
    if name == "description":
        return Limit({"description": str(value)}, lambda _: True, "")
    if name == "predicate":
        return Limit({}, value, f"does not satisfy `{getattr(value, '__name__', text_of(value))}`")
    if name in _ORDERS and (numeric or kind == "time"):
        keyword, order, words = _ORDERS[name]
        return Limit(_number(keyword, value), lambda loaded: order(loaded, value), f"is not {words} {value}")
    if name in _LENGTHS and kind in _COUNTED:
        keyword, order, words = _LENGTHS[name]
        keywords = {keyword + _COUNTED[kind]: value} if _COUNTED[kind] else {}
        return Limit(keywords, lambda loaded: order(len(loaded), value), f"does not have a length of {words} {value}")
    if name == "multiple_of" and numeric:
        return Limit(_number("multipleOf", value), lambda loaded: _is_multiple(loaded, value), f"is not a multiple of {value}")
    if name == "pattern" and kind == "text":
        pattern = re.compile(value)
        return Limit({"pattern": pattern.pattern}, pattern.search, f"does not match `{pattern.pattern}`")
    if name in ("max_digits", "decimal_places") and kind == "decimal":
        return Limit({}, lambda loaded: _digits(loaded)[name] <= value, f"has more than {value} digits (`{name}`)")
    raise UnknownLimit(f"`{name}={value!r}`")


def _number(keyword: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Decimal):
        return {keyword: Number(value)}
    return {keyword: value} if isinstance(value, int | float) else {}


def _is_multiple(value: Any, of: Any) -> bool:
    exact = Decimal(str(value))  # Of a float, the digits that it is written with.
    return abs(exact.adjusted()) <= _MAX_EXPONENT and Fraction(exact) % Fraction(str(of)) == 0


def _digits(value: Decimal) -> dict[str, int]:
    _, digits, exponent = value.as_tuple()
    places = max(-int(exponent), 0)
    return {"max_digits": max(len(digits) + max(int(exponent), 0), places), "decimal_places": places}
