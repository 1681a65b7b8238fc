"""Options of tasks: durations."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafleet import App, Retry, Wait, call
from kafleet.outcomes import Duration, Time


def test_durations_are_text_or_timedelta() -> None:
    task = App().remote("echo")
    limits = task.using(delay="1m", timeout=timedelta(seconds=1.5), checks=[{"after": timedelta(minutes=1)}])
    document = limits.call().document("submit")
    assert (document["delay"], document["timeout"], document["checks"]) == ("1m", "1500ms", [{"after": "60000ms"}])
    # As a bare number it would be refused, because it may be epoch seconds.
    assert task.using(expires=timedelta(days=20)).call().document("submit")["expires"] == "1728000000ms"
    assert [Retry(after=after).after_ms for after in (None, "2s", timedelta(seconds=2))] == [None, 2000, 2000]
    hint = 'hint: write "30s" or datetime.timedelta\\(seconds=30\\)'
    for number in (60, 0.5):
        with pytest.raises(TypeError, match=f"`delay={number}` is not a duration; {hint}"):
            task.using(delay=number)  # type: ignore[arg-type]
        for outcome in (Retry, Wait):
            with pytest.raises(TypeError, match=f"`after={number}` is not a duration; {hint}"):
                outcome("busy", after=number)  # type: ignore[arg-type]


DURATIONS = ["soon", "5", "-5s", "1.5h", "", "10 minutes", timedelta(seconds=-1), 5, 0.5, True]
TIMES = ["tomorrow", "2026-12-24T18:00", "18:00Z", "", datetime(2026, 1, 1), 5]


def keys_of(kinds: Mapping[str, Any], kind: Any) -> list[str]:
    return [key for key, hint in kinds.items() if hint == kind]


@pytest.mark.parametrize("value", DURATIONS, ids=repr)
def test_wrong_duration_is_refused_in_each_option(value: Any) -> None:
    """Text without a unit would be milliseconds; what is no duration would be refused much later."""
    declare: Any = App().task
    using: Any = App().remote("refresh").using
    for key in [*keys_of(call.POLICY, Duration), "soft_timeout"]:
        with pytest.raises(TypeError, match=rf"test_options.py:\d+: .*`({key}=)?.*` is not (a duration|between)"):
            declare(**{key: value})(plain)
    for key in keys_of(call.OPTIONS, Duration):
        with pytest.raises(TypeError, match=f"`{key}=.*` is not a duration"):
            using(**{key: value})
    for nested in ({"rate": {"count": 1, "per": value}}, {"unique": {"key": "a", "for": value}}):
        with pytest.raises(TypeError, match="is not a duration"):
            (using if "unique" in nested else lambda **rate: declare(**rate)(plain))(**nested)


@pytest.mark.parametrize("value", TIMES, ids=repr)
def test_wrong_time_is_refused_in_each_option(value: Any) -> None:
    using: Any = App().remote("refresh").using
    keys = keys_of(call.OPTIONS, Time)
    assert keys == ["at"]
    for key in keys:
        with pytest.raises(TypeError, match=f"`{key}=.*` is not a time with a time zone"):
            using(**{key: value})


def test_right_durations_and_times_are_taken() -> None:
    using: Any = App().remote("refresh").using
    for duration in ("0", "0s", "1500ms", "30s", "10m", "2h", "7d", " 5 s ", timedelta()):
        for key in keys_of(call.OPTIONS, Duration):
            using(**{key: duration})
    for time in ("2026-12-24T18:00:00Z", "2026-12-24T18:00:00.5+01:00", datetime.now(UTC)):
        using(at=time)
    using(expires="2026-12-24T18:00:00Z")


def plain() -> None: ...


def test_unique_is_an_option_of_submitted_tasks_alone() -> None:
    task = App().remote("refresh")
    rule = {"key": "customer-42", "mode": "latest"}
    for unique in ("customer-42", rule):
        assert task.using(unique=unique).call().document("submit")["unique"] == unique
        for scope in ("spawn", "then", "schedule"):
            with pytest.raises(TypeError, match="`unique` is not an option of"):
                task.using(unique=unique).call().document(scope)
    with pytest.raises(TypeError, match="at most one task of a key is open"):
        task.using(deduplication={"id": "customer-42"})  # type: ignore[call-arg]
