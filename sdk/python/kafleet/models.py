"""Classes of pydantic: their schemas, and values of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from .values import encode, has_number, settled


def is_model(kind: type) -> bool:
    """Returns whether a class is a model or a dataclass of pydantic."""
    return hasattr(kind, "model_json_schema") or hasattr(kind, "__pydantic_validator__")


class Model:
    """One class of pydantic."""

    def __init__(self, kind: type) -> None:
        self._adapter: Any = sys.modules["pydantic"].TypeAdapter(kind)
        # A field of this type takes a number with all its digits; others take the floats that they had to be.
        self._exact = "'decimal'" in str(self._adapter.core_schema)

    def schema(self, mode: str, defs: dict[str, Any]) -> dict[str, Any]:
        """Returns its schema, and adds the definitions of that to `defs`, with other names if theirs are taken."""
        schema: dict[str, Any] = self._adapter.json_schema(ref_template="#/$defs/{model}", mode=mode)
        own: dict[str, Any] = schema.pop("$defs", {})
        names = _free_names(own, defs)
        renamed: dict[str, Any] = _renamed(schema, names)
        defs.update({names[name]: _renamed(definition, names) for name, definition in own.items()})
        return renamed

    def load(self, value: Any, refuse: Callable[[str, str], Exception]) -> Any:
        """Returns an instance; raises what `refuse` makes of the message and the JSON pointer of the first error."""
        plain = value if self._exact else settled(value)
        try:
            return self._adapter.validate_python(plain)
        except sys.modules["pydantic"].ValidationError as error:
            found = self._load_strict(plain)
            if found is not self:
                return found
            first = error.errors()[0]
            pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in first["loc"])
            raise refuse(first["msg"], pointer) from None

    def _load_strict(self, value: Any) -> Any:
        """Returns the instance that a strict model makes of JSON, which has no times and sets; itself, if there is none."""
        with contextlib.suppress(ValueError):
            if not has_number(value):  # Its digits would be those of a float.
                return self._adapter.validate_json(encode(value))
        return self


def _free_names(own: dict[str, Any], taken: dict[str, Any]) -> dict[str, str]:
    """Returns a name for each definition: its own, unless it belongs to another one there, or refers to one that is renamed."""
    differing = {name for name in own if name in taken and taken[name] != own[name]}
    while more := {name for name in own.keys() - differing if name in taken and _refers(own[name], differing)}:
        differing |= more
    names = {name: name for name in own.keys() - differing}
    for name in sorted(differing):
        number = next(n for n in range(2, 1_000_000) if not {f"{name}{n}"} & (taken.keys() | own.keys() | set(names.values())))
        names[name] = f"{name}{number}"
    return names


def _refers(schema: Any, names: set[str]) -> bool:
    return bool(_renamed(schema, {name: f"{name} renamed" for name in names}) != schema)


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    """Replaces the references to definitions, also those by which a discriminator chooses."""
    references = {f"#/$defs/{old}": f"#/$defs/{new}" for old, new in names.items()}

    def replaced(part: Any, key: str = "") -> Any:
        if isinstance(part, dict):
            return {name: replaced(item, "$ref" if key == "mapping" else name) for name, item in part.items()}
        if isinstance(part, list):
            return [replaced(item) for item in part]
        return references.get(part, part) if key == "$ref" and isinstance(part, str) else part

    return replaced(schema)
