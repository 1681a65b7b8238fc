"""Whole trees in the process of a test."""

import asyncio
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from driver import ROOT

from kafleet import UPSTREAM, App, Cancelled, Context, Dead, Ended, Fail, Joined, Retry, Upstream, Wait, chain
from kafleet.testing import trial
from kafleet.tree_trial import _spawn_name
from kafleet.values import decode

app = App()
small = app.bundle("small", retries=1)


def fetch(url: str) -> str:
    raise ConnectionError(f"no network for {url}")


@app.task(retries=2, min_backoff="10s", max_backoff="15s")
def download(cx: Context, url: str) -> str:
    print("attempt", cx.number, "of", cx.name)
    return fetch(url)


@app.task
async def crawl(cx: Context, urls: list[str]) -> int:
    await asyncio.sleep(0)
    for url in urls:
        cx.spawn(download.using(name=f"page {url}"), url)
    cx.then(report, to="ada")
    return len(urls)


@app.task
def report(cx: Joined[str], to: str) -> str:
    return f"{to}: {cx.task.output} {[result.output or result.state for result in cx.results]}"


@app.task
def outcome(cx: Context, plan: list[Any]) -> str:
    """Does what the plan has for its attempts; the last entry is repeated."""
    step = plan[min(len(calls), len(plan) - 1)]
    calls.append(step)
    errors: dict[str, Any] = {
        "retry": Retry,
        "wait": Wait,
        "fail": Fail,
        "dead": Dead,
        "after": lambda _: Retry("after", after="7s"),
    }
    if step == "cancelled":
        raise Cancelled
    if step in errors:
        raise errors[step](step)
    return str(step)


calls: list[str] = []


@app.task
def family(
    cx: Context,
    children: list[list[Any]],
    then: dict[str, str] | None = None,
    options: dict[str, Any] | None = None,
    fails: bool = False,
) -> str:
    for n, (plan, more) in enumerate(children):
        cx.spawn(leaf.using(id=str(n), **more), plan)
    for on, name in (then or {}).items():
        cx.then(leaf.using(on=on, name=name), name)  # type: ignore[arg-type, call-overload]
    if fails:
        cx.spawn_now([leaf.using(id="kept").call("kept")])
        raise Fail("the parent fails")
    return "parent"


@app.task(retries=0)
def leaf(plan: str) -> str:
    if plan.startswith("fail"):
        raise Fail(plan, kind="broken")
    if plan == "cancelled":
        raise Cancelled
    return plan


@small.task
def member(cx: Context, n: int) -> int:
    if n > 0:
        cx.spawn(member, n - 1)
    return n


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def test_tree_runs_with_its_retries_children_and_continuation_under_a_mock() -> None:
    answers = [ConnectionError("refused"), "page a", "page b"]
    start = time.monotonic()
    with mock.patch(f"{__name__}.fetch", side_effect=answers):
        run = trial.tree(crawl, ["a", "b"])
    assert time.monotonic() - start < 5
    assert (run.state, run.output, run.final_output) == ("succeeded", 2, "ada: 2 ['page b', 'page a']")
    assert run["trial:then"].output == run.final_output
    first, second = run.root.children[:2]
    assert [len(first.attempts), len(second.attempts), first.ended, run.seconds] == [2, 1, 10.0, 10.0]
    assert first.log == ["attempt 1 of page a", "attempt 2 of page a"]
    assert list(run.tasks) == ["trial", first.id, second.id, "trial:then"]
    with pytest.raises(KeyError, match="no task `trial:x`, but `trial`, `trial:download-"):
        run["trial:x"]


def test_failed_tree_is_shown_with_logs_and_stacks() -> None:
    run = trial.tree(crawl, ["a"])
    assert run.state == "failed" and run.seconds == 25.0
    with pytest.raises(AssertionError) as failed:
        _ = run.output
    text = str(failed.value)
    assert "the tree ended as failed, after 25 s of virtual time:\n  trial (crawl): failed\n    trial:download-" in text
    assert "(download): failed, ConnectionError: no network for a\n" in text
    assert "│ attempt 3 of page a" in text and "in fetch" in text and "trial:then" not in text


def test_tree_on_an_event_loop() -> None:
    async def main() -> None:
        with mock.patch(f"{__name__}.fetch", return_value="page"):
            run = await trial.atree(crawl, ["a"])
        assert run.final_output == "ada: 1 ['page']"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("plan", "options", "state", "attempts", "seconds"),
    [
        (["ok"], {}, "succeeded", 1, 0),
        (["retry"], {"retries": 4}, "failed", 5, 1 + 2 + 3 + 3),
        (["retry"], {"retries": 3, "min_backoff": "5s"}, "failed", 4, 15),
        (["after", "ok"], {}, "succeeded", 2, 7),
        (["wait", "wait", "wait", "ok"], {"retries": 0}, "succeeded", 4, 1 + 2 + 4),
        (["wait"], {"retries": 1, "max_wait": "2s"}, "failed", 4, 1 + 2 + 4),
        (["fail"], {}, "failed", 1, 0),
        (["dead"], {}, "failed", 1, 0),
        (["cancelled"], {}, "cancelled", 1, 0),
        (["ok"], {"delay": timedelta(hours=1)}, "succeeded", 1, 3600),
    ],
)
def test_attempts_follow_the_policy(plan: list[Any], options: Any, state: str, attempts: int, seconds: float) -> None:
    run = trial.tree(outcome.using(**options), plan)
    assert (run.state, len(run.root.attempts), run.seconds) == (state, attempts, seconds)


@pytest.mark.parametrize(
    ("policy", "plan", "state", "attempts"),
    [
        ({"fail_on": ["error"]}, ["retry"], "failed", 1),
        ({"fail_on": ["error"]}, ["wait"], "failed", 1),
        ({"retry_on": ["error"], "retries": 2}, ["fail"], "failed", 3),
        ({"fail_on": ["*"], "retry_on": ["error"], "retries": 1}, ["retry"], "failed", 2),
        ({"on_error": "fail"}, ["retry"], "failed", 1),
        ({"on_error": "skip"}, ["retry"], "succeeded", 1),
        ({"on_error": "skip"}, ["dead"], "failed", 1),
    ],
)
def test_kinds_decide_as_the_policy_of_the_type_says(policy: Any, plan: list[Any], state: str, attempts: int) -> None:
    declared = App().task(name="outcome", **policy)(outcome.fn)
    run = trial.tree(declared, plan)
    assert (run.state, len(run.root.attempts)) == (state, attempts)


IGNORED = {"on_failure": "ignore"}


@pytest.mark.parametrize(
    ("children", "options", "state", "then"),
    [
        ([["ok", {}]], {}, "succeeded", {"succeeded", "ended"}),
        ([["ok", {}], ["fail", {}]], {}, "failed", {"failed", "ended"}),
        ([["ok", {}], ["cancelled", {}]], {}, "cancelled", {"ended"}),
        ([["cancelled", {}], ["fail", {}]], {}, "failed", {"failed", "ended"}),
        ([["fail", IGNORED], ["ok", {}]], {}, "succeeded", {"succeeded", "ended"}),
        ([["fail", {}], ["ok", {}]], {"max_failed": 1}, "succeeded", {"succeeded", "ended"}),
        ([["fail", {}], ["fail", {}]], {"max_failed": 1}, "failed", {"failed", "ended"}),
    ],
)
def test_state_of_a_parent_follows_from_its_children(children: Any, options: Any, state: str, then: set[str]) -> None:
    run = trial.tree(family.using(**options), children, {on: on for on in ("succeeded", "failed", "ended")})
    started = {task.output or task.error.message if task.error else task.output for task in run.root.children if task.is_then}
    # The continuation `failed` is a leaf that fails, and so does its task then.
    assert started == then
    assert run.state == ("failed" if "failed" in then else state)


def test_continuations_keep_their_numbers_and_may_fail_the_task() -> None:
    run = trial.tree(family, [], {"failed": "never", "succeeded": "fail later"})
    assert list(run.tasks) == ["trial", "trial:then-2"]
    assert (run.state, run["trial:then-2"].ended) == ("failed", 0.0)


def test_continuations_of_the_producer_come_before_those_of_the_handler() -> None:
    chained = leaf.using(then=[leaf.call("third")]).call("second")
    run = trial.tree(family.using(then=[chained]), [["first", {}]], {"succeeded": "own"})
    outputs = {id: task.output for id, task in run.tasks.items()}
    assert outputs == {
        "trial": "parent", "trial:0": "first", "trial:then": "second", "trial:then-2": "own", "trial:then:then": "third",
    }  # fmt: skip
    assert run.final_output == "own"


def test_failed_child_cancels_what_is_pending_if_the_parent_fails_fast() -> None:
    children = [["ok", {}], ["fail", {}], ["later", {"delay": "1h"}], ["never", {"delay": "2h"}]]
    run = trial.tree(family.using(fail_fast=True), children, {"failed": "clean up"})
    assert [task.state for task in run.root.children] == ["succeeded", "failed", "cancelled", "cancelled", "succeeded"]
    assert (run.state, run.seconds) == ("failed", 0.0)
    assert run.root.error and (run.root.error.kind, run.root.error.message) == ("child_failed", "child `trial:1` is failed: fail")


def test_failed_attempt_keeps_only_the_children_that_it_has_published_at_once() -> None:
    run = trial.tree(family, [["lost", {}]], fails=True)
    assert (list(run.tasks), run.state) == (["trial", "trial:kept"], "failed")
    assert run["trial:kept"].output == "kept"


def test_equal_children_are_numbered_and_repeated_attempts_create_none_again() -> None:
    @app.task(retries=1, min_backoff="1s")
    def twins(cx: Context) -> list[str]:
        ids = cx.spawn_now([leaf.call("same"), leaf.call("same")])
        if cx.number == 1:
            raise Retry("again")
        return ids

    run = trial.using(id="order-1")(twins)
    assert run.failure
    tree = trial.tree(twins.using(id="order-1"))
    assert tree.output[1] == f"{tree.output[0]}-2"
    assert list(tree.tasks) == ["order-1", *tree.output]


def test_children_have_the_names_that_workers_give_them() -> None:
    vectors = json.loads((ROOT / "schemas/spawn-hash.json").read_text())["vectors"]
    same = [vector for vector in vectors if vector["type"] != "numbers"]  # Unusual numbers have a canonical text.
    names = [_spawn_name(vector["type"], decode(vector["params"].encode())) for vector in same]
    assert names == [f"{vector['type']}-{vector['hash']}" for vector in same] and len(same) > 5


def test_bundles_and_types_of_other_programs_take_part() -> None:
    run = trial.tree(member, 2)
    assert run.output == 2 and [task.output for task in run.tasks.values()] == [2, 1, 0]

    @app.task(name="asks-others")
    def asks(cx: Context) -> None:
        cx.spawn(app.remote("elsewhere"), n=5)
        cx.then(report, to="ada")

    with pytest.raises(LookupError, match=r"`elsewhere` has no handler here: .*remotes={\"elsewhere\": lambda params: …}"):
        trial.tree(asks)
    assert (
        trial.using(remotes={"elsewhere": lambda params: f"n is {params['n']}"}).tree(asks).final_output == "ada: None ['n is 5']"
    )


def test_invalid_params_of_a_child_are_its_failure() -> None:
    @app.task(name="wrong-child")
    def wrong(cx: Context) -> None:
        cx.spawn(app.remote("leaf"), plan=5)

    run = trial.tree(wrong)
    (child,) = run.root.children
    assert child.error and (child.error.kind, run.state) == ("bad_params", "failed")


def test_ninth_continuation_fails_the_attempt() -> None:
    @app.task(name="many-continuations", retries=0)
    def many(cx: Context) -> None:
        for _ in range(9):
            cx.then(leaf, "a")

    run = trial.tree(many)
    assert run.root.error and run.root.error.kind == "bad_then" and list(run.tasks) == ["trial"]


def test_tree_without_an_end_is_bounded() -> None:
    @app.task(name="endless")
    def endless(cx: Context, n: int) -> None:
        cx.then(app.remote("endless"), n=n + 1)

    with pytest.raises(RuntimeError, match="the tree has not ended after 50 attempts; the next is one of `trial:then:then"):
        trial.using(max_attempts=50).tree(endless, 0)


def test_ten_thousand_children_take_seconds() -> None:
    @app.task(name="wide")
    def wide(cx: Context) -> None:
        for n in range(10_000):
            cx.spawn(leaf, str(n))

    start = time.monotonic()
    run = trial.using(max_attempts=10_001).tree(wide)
    assert run.state == "succeeded" and time.monotonic() - start < 60


def test_start_at_a_time_and_state_of_the_lifespan() -> None:
    @app.task(name="has-state")
    def has_state(cx: Context) -> str:
        return str(cx.state)

    at = datetime.now(UTC) + timedelta(days=1)
    run = trial.using(state="open").tree(has_state.using(at=at))
    assert run.output == "open" and 86_300 < run.seconds <= 86_400


def test_included_modules_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("shop_main")
    main.__dict__["app"] = App(include=["shop_included"])
    monkeypatch.setitem(sys.modules, "shop_main", main)
    (tmp_path / "shop_included.py").write_text("from shop_main import app\n@app.task\ndef sends() -> str:\n    return 'sent'\n")
    monkeypatch.syspath_prepend(tmp_path)

    def sells(cx: Context) -> None:
        cx.then(cx_app.remote("sends"))

    cx_app: App = main.__dict__["app"]
    assert trial.tree(cx_app.task(sells)).final_output == "sent"
    sys.modules.pop("shop_included")


def test_keyboard_interrupt_ends_the_tree() -> None:
    @app.task(name="interrupted")
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial.tree(interrupted)


def test_joined_outcome_of_a_failed_child_has_its_error() -> None:
    seen: list[Ended[Any]] = []

    @app.task(name="inspects")
    def inspects(cx: Joined[str]) -> None:
        seen.extend([cx.task, *cx.results])

    @app.task(name="has-failed-child")
    def has_failed_child(cx: Context) -> str:
        cx.spawn(leaf.using(id="0"), "fail")
        cx.then(inspects.using(on="ended"))
        return "done"

    trial.tree(has_failed_child)
    assert [(ended.id, ended.state, ended.output) for ended in seen] == [("trial", "failed", "done"), ("trial:0", "failed", None)]
    assert seen[1].error == {"kind": "broken", "message": "fail", "attempt": 1}


def test_chain_passes_results_to_the_parameters_that_take_them() -> None:
    @app.task(name="sizes")
    def sizes(cx: Context, count: int) -> None:
        cx.spawn(size.map(range(count)))

    @app.task(name="size")
    def size(n: int) -> int:
        return n * 10

    @app.task(name="total")
    def total(label: str, sizes: Upstream[list[int]] = UPSTREAM) -> str:
        return f"{label} {sum(sizes)}"

    @app.task(name="shout")
    def shout(text: Upstream[str]) -> str:
        return text.upper()

    call = chain(sizes.call(3), total.call("bytes:"), shout)
    assert trial.tree(call).final_output == "BYTES: 30"
    assert asyncio.run(trial.atree(call)).final_output == "BYTES: 30"
    with pytest.raises(TypeError, match="a group is no single task"):
        trial.tree(size.map([1]))  # type: ignore[call-overload]
