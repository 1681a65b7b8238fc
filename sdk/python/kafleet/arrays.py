"""Values of numpy and pandas as plain ones: exact, or refused. Neither is imported: their values exist only where they are."""

from __future__ import annotations

import sys
from datetime import date, timedelta
from typing import Any

_EXACT = "biuUSO"
"""Kinds of numpy whose values are plain ones: booleans, integers, text, bytes and objects."""
_MAX_FLOAT_BYTES = 8

_REMEDIES = {
    "f": "`float(…)`, or `str(…)` for all digits",
    "c": "`[value.real, value.imag]`",
    "M": '`pandas.Timestamp(value, tz="UTC")`, or `numpy.datetime_as_string(value)` for text',
    "m": '`value.astype("timedelta64[us]").item()`',
    "V": "a list of dicts with the names of the fields",
}


def is_numpy(value: object) -> bool:
    """Returns whether a value is a scalar or an array of numpy."""
    numpy = sys.modules.get("numpy")
    kinds = tuple(kind for name in ("generic", "ndarray") if isinstance(kind := getattr(numpy, name, None), type))
    return bool(kinds) and isinstance(value, kinds)


def plain(value: Any, max_items: int) -> Any:
    """Returns the plain value of a scalar of numpy, or lists of them. Raises if one has none of the same value."""
    kind, size = value.dtype.kind, value.dtype.itemsize
    if value.size > max_items:
        raise ValueError(f"an array has over {max_items} items")
    if kind in _EXACT or (kind == "f" and size <= _MAX_FLOAT_BYTES):
        if getattr(value, "mask", False) is not False:
            raise TypeError("a masked array has no JSON form; hint: `value.filled(…)`")
        return value.tolist()
    if value.ndim == 0 and kind in "mM":
        found = value.item()  # An integer, if the unit is finer than a microsecond, and `None` for NaT.
        if found is None:
            raise ValueError("`NaT` is not a time; hint: `None`")
        if isinstance(found, date | timedelta):
            return found
    raise TypeError(f"a value of numpy's type `{value.dtype}` has no JSON form; hint: {_REMEDIES.get(kind, '`value.tolist()`')}")


def refuse_inexact(value: Any) -> None:
    """Raises `ValueError` for a time or duration of pandas that is none, or has digits below a microsecond."""
    if value != value:
        raise ValueError(f"`{value}` is not a time; hint: `None`")
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ValueError(f'`{value}` has digits below a microsecond; hint: `value.floor("us")`')
