"""Rules of a policy about a failed attempt, as the worker applies them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def listed(policy: Mapping[str, Any], kind: str) -> bool | None:
    """Returns whether errors of a kind are retried, if the policy lists it. A name counts before `*`."""
    lists = [(name, key) for name in (kind, "*") for key in ("fail_on", "retry_on")]
    return next((key == "retry_on" for name, key in lists if name in policy.get(key, ())), None)


def outcome_of(policy: Mapping[str, Any], outcome: str, kind: str) -> str:
    """Returns the outcome of an attempt under a policy, as long as there are retries left."""
    if outcome in ("cancelled", "dead"):
        return outcome
    is_retried = listed(policy, kind)
    if outcome == "wait":
        return "fail" if is_retried is False else "wait"
    if is_retried is None:
        is_retried = outcome == "retry" and policy.get("on_error", "retry") == "retry"
    return "retry" if is_retried else "fail"
