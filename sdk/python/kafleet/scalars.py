"""Scalar annotations: their JSON Schemas, and the conversion of JSON values to them."""

from __future__ import annotations

import base64
import math
import re
import sys
import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from .values import Number, settled, text_of

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


class Codec(NamedTuple):
    """Schema of an annotation, and the function that converts a JSON value to it."""

    schema: dict[str, Any]
    load: Load


_MAX_DIGITS = sys.int_info.default_max_str_digits
_TOO_FINE = re.compile(r"[.,]\d{6}\d*[1-9]")
_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:[.,](?P<fraction>\d+))?S)?)?",
    re.ASCII,
)


def _exactly(kind: type, name: str) -> Load:
    def load(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise Mismatch(f"{shown(value)} is not {name}")

    return load


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():  # 1.0 is an integer in JSON Schema.
        return int(value)
    if type(value) is Number and value.adjusted() > (sys.get_int_max_str_digits() or _MAX_DIGITS):
        raise Mismatch(f"{shown(value)} has more digits than Python reads; see `sys.set_int_max_str_digits`")
    if type(value) is Number and int(value) == value:
        return int(value)
    raise Mismatch(f"{shown(value)} is not an integer")


def _number(value: Any) -> float:
    if type(value) in (float, int, Number):
        number = _converted(float, value, "a number that a float can represent")
        if math.isfinite(number):
            return number
        raise Mismatch(f"{shown(value)} is not a number that a float can represent; hint: annotate it as `Decimal`")
    raise Mismatch(f"{shown(value)} is not a number")


def _decimal(value: Any) -> Decimal:
    if type(value) in (str, int, float, Number):
        number = Decimal(value) if type(value) is Number else _converted(Decimal, str(value), "a decimal number")
        if number.is_finite():
            return number
    raise Mismatch(f"{shown(value)} is not a decimal number")


def _time(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise Mismatch(f"{shown(text)} has no time zone; hint: append `Z`, or an offset such as `+02:00`")
    return _exact(text, value)


def _exact(text: str, value: T) -> T:
    """Returns a time, unless its text has digits that it does not keep."""
    if re.search("[.,]", text) and not re.search(r"\d\d:?\d\d:?\d\d[.,]|P", text):
        raise ValueError(text)  # Python 3.11 takes the half hour of `12.5` for half a second.
    if _TOO_FINE.search(text):
        kind = type(value).__name__
        raise Mismatch(f"{shown(text)} has digits below a microsecond, which a `{kind}` cannot keep; hint: annotate it as `str`")
    return value


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if not (found and any(found.groups()[1:])):
        raise ValueError(text)
    sign, seconds, fraction = found["sign"], int(found["seconds"] or 0), (found["fraction"] or "")[:6]
    parts = {unit: int(found[unit] or 0) for unit in ("weeks", "days", "hours", "minutes")}
    value = timedelta(**parts, seconds=seconds, microseconds=int(fraction.ljust(6, "0")))
    return _exact(text, -value if sign else value)


def whole(text: str) -> int:
    if not re.fullmatch("-?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def from_text(convert: Callable[[str], Any], name: str) -> Load:
    def load(value: Any) -> Any:
        if type(value) is str:
            return _converted(convert, value, name)
        raise Mismatch(f"{shown(value)} is not {name}")

    return load


def _converted(convert: Callable[[Any], T], value: Any, name: str) -> T:
    try:
        return convert(value)
    except Mismatch:
        raise
    except (ValueError, OverflowError, InvalidOperation):
        raise Mismatch(f"{shown(value)} is not {name}") from None


def shown(value: Any) -> str:
    text = text_of(value)
    return f"`{text[:40]}…`" if len(text) > 40 else f"`{text if isinstance(value, Number) else repr(value)}`"


def _text(format: str) -> dict[str, Any]:
    return {"type": "string", "format": format}


def _path(text: str) -> Path:
    if not text:  # It would be the working directory.
        raise ValueError(text)
    return Path(text)


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


SCALARS: dict[Any, Codec] = {
    Any: Codec({}, settled),
    object: Codec({}, settled),
    None: Codec({"type": "null"}, _exactly(types.NoneType, "null")),
    types.NoneType: Codec({"type": "null"}, _exactly(types.NoneType, "null")),
    bool: Codec({"type": "boolean"}, _exactly(bool, "a boolean")),
    str: Codec({"type": "string"}, _exactly(str, "a string")),
    int: Codec({"type": "integer"}, _integer),
    float: Codec({"type": "number"}, _number),
    bytes: Codec({"type": "string", "contentEncoding": "base64"}, from_text(_base64, "base64")),
    datetime: Codec(_text("date-time"), from_text(_time, "a time such as `2026-01-31T12:00:00Z`")),
    date: Codec(_text("date"), from_text(date.fromisoformat, "a date such as `2026-01-31`")),
    time: Codec(_text("time"), from_text(lambda text: _exact(text, time.fromisoformat(text)), "a time such as `12:00:00`")),
    timedelta: Codec(_text("duration"), from_text(_duration, "a duration such as `PT30S` or `P1DT12H`")),
    UUID: Codec(_text("uuid"), from_text(UUID, "a UUID")),
    Decimal: Codec({"type": ["string", "number"]}, _decimal),
    Path: Codec({"type": "string"}, from_text(_path, "a path")),
    PurePath: Codec({"type": "string"}, from_text(lambda text: PurePath(_path(text)), "a path")),
}
