"""Tests of the task types: attempts and a tree in this process, and a fleet in memory."""

from kafleet.testing import Fleet, trial

import tasks


def test_order_spawns_a_task_for_each_item() -> None:
    run = trial(tasks.order, "ada", ["tea", "cups"])
    assert run.output == 2
    assert [child["name"] for child in run.children] == ["tea", "cups"]


def test_item_is_packed_in_the_second_attempt() -> None:
    first = trial(tasks.pack, "tea").failure
    assert first is not None
    assert first.kind == "ConnectionError"
    second = trial.using(number=2)(tasks.pack, "tea")
    assert second.output == 450
    assert second.log == ["packing tea"]


def test_unknown_item_is_not_retried() -> None:
    failure = trial(tasks.pack, "coffee").failure
    assert failure is not None
    assert (failure.outcome, failure.kind) == ("fail", "unknown_item")


def test_order_ends_with_a_receipt() -> None:
    tree = trial.tree(tasks.order, "ada", ["tea", "cups"])
    assert tree.final_output == "ada pays 16.50"
    assert tree.seconds >= 1  # The backoff before the second attempts, in virtual time.


def test_order_runs_on_a_fleet(kafleet_fleet: Fleet) -> None:
    handle = tasks.order.submit("ada", ["tea", "cups"])
    assert handle.result(timeout=60) == 2
    assert handle.then().result(timeout=60) == "ada pays 16.50"
