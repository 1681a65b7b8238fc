"""Error classes in `fail_on` and `retry_on`. The app matches them itself: the worker knows only the names of kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .outcomes import Outcome, kind_of

_LISTS = ("fail_on", "retry_on")


@dataclass(frozen=True)
class ErrorClasses:
    """Classes of errors that end a task, and of those that are retried. The one nearest to the class of an error decides.

    `named`: the policy for the worker has the names of the classes too, since its `on_error` or `*` would decide otherwise.
    """

    fail_on: tuple[type, ...] = ()
    retry_on: tuple[type, ...] = ()
    named: bool = False

    def within(self, bundle: ErrorClasses) -> ErrorClasses:
        """Returns the classes of a task in a bundle: for one class, the task's own list counts."""
        inherited = tuple(kind for kind in bundle.fail_on if kind not in self.retry_on)
        return ErrorClasses(self.fail_on + inherited, self.retry_on + bundle.retry_on, bundle.named)

    def decide(self, error: BaseException, outcome: str, kind: str) -> tuple[str, str]:
        """Returns the outcome of an error, and the kind by which the worker finds it in the policy."""
        listed = [base for base in type(error).__mro__ if base in self.fail_on or base in self.retry_on]
        if listed and outcome != "dead":
            again = "wait" if outcome == "wait" else "retry"
            outcome = "fail" if listed[0] in self.fail_on else again
        if not self.named:
            return outcome, kind
        if listed:
            return outcome, _name(listed[0])
        # Another class of the same name is not the one in the list.
        is_another = kind in map(_name, self.fail_on + self.retry_on)
        return outcome, f"{type(error).__module__}.{kind}" if is_another else kind


def _name(kind: type) -> str:
    """Returns the kind of errors of a class."""
    return kind.kind if issubclass(kind, Outcome) else kind_of(kind.__name__)


def split_classes(policy: dict[str, Any]) -> ErrorClasses:
    """Takes the classes out of a policy, and returns them. Their names stay where the worker has to know them."""
    given = {key: policy.pop(key, None) or () for key in _LISTS}
    classes = {key: tuple(kind for kind in kinds if isinstance(kind, type)) for key, kinds in given.items()}
    words = {key: [kind for kind in kinds if not isinstance(kind, type)] for key, kinds in given.items()}
    named = policy.get("on_error", "retry") != "retry" or any("*" in kinds for kinds in words.values())
    for key in _LISTS:
        names = [_name(kind) for kind in classes[key]] if named else []
        if kinds := list(dict.fromkeys(words[key] + names)):
            policy[key] = kinds
    return ErrorClasses(classes["fail_on"], classes["retry_on"], named)
