"""Values as JSON text and back: exact, or refused."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import enum
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import PurePath
from typing import Any
from uuid import UUID

from . import arrays
from .hints import of_key, of_value

_SHOWN_FLAGS = 5
_MAX_ITEMS = 1 << 20
"""Items of one container that is no list or dict: it may be one that never ends."""

_MAX_LEVELS = 64
"""Containers on the way to a value without JSON form that an error names."""
_MAX_KEY_CHARS = 100

_FLAT = frozenset((str, int, float, bool, type(None)))
_MARK = os.urandom(16).hex()
"""Marks text that is the digits of a number; `json` writes no numbers of other types than `int` and `float`."""
_MARKED = re.compile(f'"{_MARK}([^"]+)"')
_own_name = type.__dict__["__name__"].__get__


class Number(Decimal):
    """Number of a JSON text that is not written as Python writes a float. In JSON it is a number again, with the same digits."""

    def settled(self) -> float | Number:
        """Returns the float of the same value; itself, if there is none."""
        value = float(self)
        return value if math.isfinite(value) and Decimal(repr(value)) == self else self


# Text of any value


def class_name(value: object) -> str:
    """Returns the name of an object's class, also if its metaclass hides it."""
    name: str = _own_name(type(value))
    return name


def text_of(value: object) -> str:
    """Returns the text of any value; of one that has none, its class and the reason."""
    try:
        return str.__str__(str(value))  # Of a subclass of `str`, the text alone.
    except BaseException as error:
        return f"<{class_name(value)} without a text: {class_name(error)}>"


# Values to JSON


def to_json(value: Any) -> Any:
    """Converts a value that the `json` module does not know; used as its `default`."""
    plain = _plain(value)
    _check_keys(plain)
    return plain


def _plain(value: Any) -> Any:
    if _is_model(value):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, enum.Enum):
        return _member(value)
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, UUID | PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Set):  # Sorted, so that equal sets are equal JSON.
        return sorted(_items(value, value), key=repr)
    if isinstance(value, Mapping):
        return dict(_items(value, value.items()))
    if isinstance(value, Sequence):
        return _items(value, value)
    if arrays.is_numpy(value):
        return arrays.plain(value, _MAX_ITEMS)
    raise TypeError(f"a value of type `{type(value).__qualname__}` has no JSON form{of_value(value)}")


def _is_model(value: object) -> bool:
    return hasattr(type(value), "__pydantic_validator__") and hasattr(type(value), "model_dump")


def _member(value: enum.Enum) -> Any:
    """Returns the value of a member. A combination of flags is none, with an annotation and without one."""
    if isinstance(value, enum.Flag) and not any(value is member for member in type(value)):
        names = ", ".join(f"`{class_name(value)}.{member.name}`" for member in islice(value, _SHOWN_FLAGS))
        problem = f"a combination of `{class_name(value)}` ({names})" if names else f"no flag of `{class_name(value)}`"
        raise TypeError(f"{problem} has no JSON form; hint: `[flag.name for flag in value]`, or `value.value` for the number")
    return value.value


def _time(value: datetime) -> str:
    arrays.refuse_inexact(value)
    offset = value.utcoffset()
    if offset is None:
        raise ValueError(
            f"the time `{value.isoformat()}` has no time zone; hint: `datetime.now(timezone.utc)`, or `.astimezone()`"
        )
    # RFC 3339 has no seconds in offsets, as those of before 1900.
    return (value.astimezone(UTC) if offset % timedelta(minutes=1) else value).isoformat()


def _duration(value: timedelta) -> str:
    """Returns a duration as ISO 8601 text."""
    arrays.refuse_inexact(value)
    size = abs(value)
    fraction = f".{size.microseconds:06d}".rstrip("0") if size.microseconds else ""
    days, seconds = f"{size.days}D" if size.days else "", f"T{size.seconds}{fraction}S"
    return f"{'-' if value < timedelta() else ''}P{days}{'' if days and seconds == 'T0S' else seconds}"


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"`{value}` is not a number in JSON")
    return f"{_MARK}{value}" if isinstance(value, Number) else str(value)


def _items(value: object, items: Collection[Any]) -> list[Any]:
    kept = list(islice(items, _MAX_ITEMS + 1))
    if len(kept) > _MAX_ITEMS:
        raise ValueError(f"a `{class_name(value)}` has over {_MAX_ITEMS} items")
    return kept


def _check_keys(value: Any, model: Any = None) -> None:
    """Raises `ValueError` if two keys of a dict become equal text: one of their values would be lost."""
    pending, seen = [(value, model)], set[int]()
    while pending:
        box, model = pending.pop()
        if isinstance(box, dict):
            if not {*map(type, box)} <= {str}:
                _refuse_equal(box)
            items: Collection[Any] = box.values()
        elif isinstance(box, list | tuple):
            items = box
        elif _is_model(box):  # It drops one of the values itself.
            items, model = (*vars(box).values(), getattr(box, "__pydantic_extra__", None)), box
        elif model is not None and dataclasses.is_dataclass(box):
            items = vars(box).values()
        else:
            continue
        if model is not None:
            _refuse_dropped(items, model)
        if id(box) not in seen:
            seen.add(id(box))
            pending += [(item, model) for item in items if type(item) not in _FLAT]


def _refuse_dropped(items: Collection[Any], model: Any) -> None:
    """Raises `ValueError` for a number that a model writes as null, as it does in fields of the type `Any`."""
    for item in items:
        if isinstance(item, float) and not math.isfinite(item) and b"null" in _encode(_plain(model)).encode():
            raise ValueError(_infinite(item))


def _infinite(value: float) -> str:
    return f"`{float.__repr__(value)}` is not a number in JSON; hint: `None`"


def _refuse_equal(box: dict[Any, Any]) -> None:
    keys: dict[str, Any] = {}
    for key in box:
        text = _key_text(key)
        if text in keys:
            raise ValueError(f"the keys `{keys[text]!r}` and `{key!r}` are both `{text}` in JSON")
        keys[text] = key


def _key_text(key: object) -> str:
    """Returns a key as `json` writes it."""
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bool) or key is None:
        return {True: "true", False: "false", None: "null"}[key]
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return float.__repr__(key)
    raise TypeError(f"a key of type `{type(key).__qualname__}` has no JSON form: keys are text or numbers{of_key(key)}")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_json).encode


def _written(value: Any) -> bytes:
    if type(value) not in _FLAT:
        _check_keys(value)
    text = _encode(value)
    return (_MARKED.sub(r"\1", text) if _MARK in text else text).encode()


def encode(value: Any) -> bytes:
    """Returns a value as compact JSON. Raises `ValueError` if it has no JSON form, whatever its own code raises.

    The error names the JSON pointer of the innermost value without JSON form, and what to do.
    """
    try:
        return _written(value)
    except BaseException as error:
        raise ValueError(f"not JSON: {_located(value, error)}") from error


def _located(value: Any, error: BaseException) -> str:
    """Returns the JSON pointer of the innermost value that cannot be written, and the reason."""
    pointer = ""
    with contextlib.suppress(BaseException):  # Code of the values may raise anything.
        for _ in range(_MAX_LEVELS):
            key, value, error = next(_unwritten(value))
            pointer += f"/{key[:_MAX_KEY_CHARS].replace('~', '~0').replace('/', '~1')}"
    kind = "" if isinstance(error, TypeError | ValueError | RecursionError) else f"{class_name(error)}: "
    reason = f"{kind}{text_of(error)}"
    if issubclass(type(value), float) and not math.isfinite(value):
        reason = _infinite(value)
    elif type(value) is bytes:
        reason += '; hint: `model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")`'
    return f"{pointer}: {reason}" if pointer else reason


def _unwritten(value: Any) -> Iterator[tuple[str, Any, BaseException]]:
    """Yields the members of a container that cannot be written, by their names in JSON, with the reasons."""
    is_model = _is_model(value)
    for key, item in vars(value).items() if is_model else _members(value):
        try:
            if is_model:
                _check_keys([item], value)
                _encode(value.model_dump(mode="json", include={key}))
            else:
                _written(item)
        except BaseException as error:
            yield key, item, error


def _members(value: Any) -> Iterable[tuple[str, Any]]:
    box = _box(value)
    if isinstance(box, dict):
        return ((_key_text(key), item) for key, item in box.items())
    return ((str(index), item) for index, item in enumerate(box)) if isinstance(box, list | tuple) else ()


def _box(value: Any) -> Any:
    """Returns a container as a dict or a list; of other values, what JSON makes of them, or themselves."""
    return value if isinstance(value, dict | list | tuple | str | int | float | None) else _plain(value)


def encode_text(value: Any) -> bytes:
    """Returns text for people as JSON; characters that UTF-8 cannot represent are replaced."""
    return _encode(value).encode(errors="replace")


def with_models(value: Any) -> Any:
    """Returns a value as its JSON is read, but for models of pydantic, which stay: they have checked themselves."""
    if _is_model(value):
        return value
    box = _box(value)
    if isinstance(box, dict):
        return {_key_text(key): with_models(item) for key, item in box.items()}
    return [with_models(item) for item in box] if isinstance(box, list | tuple) else parse(encode(box))


# JSON to values


def _parse_float(text: str) -> float | Number:
    value = float(text)
    if repr(value) == text:
        return value
    try:
        return Number(text)
    except InvalidOperation:
        raise ValueError(f"the exponent of the number `{text[:40]}` is out of range") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"`{text}` is not JSON")


_decode = json.JSONDecoder(parse_float=_parse_float, parse_constant=_refuse_constant).decode


def parse(text: bytes) -> Any:
    """Returns the value of a JSON text; its numbers with all their digits, for the codec of an annotation."""
    return _decode(text.decode())


def decode(text: bytes) -> Any:
    """Returns the value of a JSON text. Numbers that a float would change are of the type `Decimal`."""
    return settled(parse(text))


def settled(value: Any) -> Any:
    """Replaces those numbers of a parsed value that are floats."""
    return _settled(value) if has_number(value) else value


def has_number(value: Any) -> bool:
    """Returns whether a parsed value has numbers that are not written as Python writes a float."""
    pending = [value]
    while pending:
        box = pending.pop()
        kind = type(box)
        if kind is Number:
            return True
        if kind is dict or kind is list:
            pending += [item for item in (box.values() if kind is dict else box) if type(item) not in _FLAT]
    return False


def _settled(value: Any) -> Any:
    kind = type(value)
    if kind is Number:
        return value.settled()
    if kind is dict:
        return {key: _settled(item) for key, item in value.items()}
    return [_settled(item) for item in value] if kind is list else value
