"""Options of tasks: durations."""

from datetime import timedelta

import pytest

from kafleet import App, Retry, Wait


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
