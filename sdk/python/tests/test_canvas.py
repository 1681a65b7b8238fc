"""Chains, groups and chords: what they create, what they refuse, and what their tasks get on a real fleet."""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from driver import APPS
from test_client import Server, response

from kafleet import App, Context, DeclarationError, Group, Invalid, NotFound, Params, TaskFailed, Upstream, chain, chord, group
from kafleet.handle import GroupHandle
from kafleet.params import UPSTREAM
from kafleet.testing import fleet, recorded, trial

sys.path.insert(0, str(APPS))
import canvas_app as tasks  # pyright: ignore[reportMissingImports]

PATIENCE = 60.0
untyped: Any = (chain, group)
any_chain, any_group = untyped
any_tasks: Any = tasks


@pytest.fixture(scope="module")
def _fleet() -> Iterator[None]:
    with fleet("canvas_app.py", cwd=APPS):
        yield


def submitted(call: Any) -> list[dict[str, Any]]:
    with recorded() as documents:
        call.submit()
    return documents


# Documents


def test_chain_is_a_call_of_the_first_task_with_the_others_as_nested_continuations() -> None:
    call = chain(tasks.add.call(1), tasks.double, chain(tasks.add.call(5), tasks.total.call("sum")))
    (document,) = submitted(call)
    assert repr(call) == "<Chain add -> double -> add -> total>"
    assert document.pop("id") and document == {
        "type": "add",
        "params": {"a": 1},
        "then": [{
            "type": "double", "params": {}, "with_results": True,
            "then": [{
                "type": "add", "params": {"a": 5},
                "then": [{"type": "total", "params": {"label": "sum"}, "with_results": True}],
            }],
        }],
    }  # fmt: skip


def test_calls_joined_as_in_celery_lead_to_chain() -> None:
    calls: list[Any] = [tasks.double.call(1), group(tasks.double.call(1)), chain(tasks.double.call(1), tasks.double)]
    for call in calls:
        with pytest.raises(TypeError, match=r"hint: `chain\(a, b\)`"):
            _ = call | tasks.double.call(1)


def test_step_comes_before_the_continuations_that_its_predecessor_has_already() -> None:
    apology = tasks.add.using(on="failed").call(0)
    (document,) = submitted(chain(tasks.add.using(then=[apology]).call(1), tasks.double))
    assert [(then["type"], then.get("on")) for then in document["then"]] == [("double", None), ("add", "failed")]


def test_parameter_that_is_given_by_hand_is_not_filled() -> None:
    (document,) = submitted(chain(tasks.add.call(1), tasks.double.call(4)))
    assert document["then"] == [{"type": "double", "params": {"value": 4}}]
    assert submitted(tasks.double.call(value=4))[0]["params"] == {"value": 4}


@pytest.mark.parametrize(
    "call", [tasks.double.call, tasks.double.using(name="d").call, lambda: tasks.total.call("sum"), tasks.grown.call]
)
def test_task_alone_needs_the_parameter_that_a_chain_fills(call: Any) -> None:
    name = "values" if call().target.name == "total" else "value"
    with pytest.raises(TypeError, match=rf"lacks `{name}`, which only a chain fills: give it, or use `chain\(…, "):
        call().submit()
    with pytest.raises(TypeError, match="which only a chain fills"):
        group([call()]).submit()


def test_other_missing_params_are_named_as_ever() -> None:
    with pytest.raises(TypeError, match="`total`: missing a required argument: 'label'"):
        any_tasks.total.call()
    with pytest.raises(TypeError, match="`double`: too many positional arguments"):
        any_tasks.double.call(1, 2)


def test_group_is_one_atomic_batch_below_an_external_task() -> None:
    items = [{"index": n, "id": id, "outcome": "accepted", "position": f"0:{n}"} for n, id in enumerate(["g", "g:0", "g:b"])]
    server = Server(response(200, {"items": items}), response(400, {"code": "unknown_field", "pointer": "/0/state"}))
    app = App(api=server.url)
    calls = [app.remote("a").call(n=1), app.remote("b").using(id="b").call(n=2)]
    handle = group(calls).using(id="g", tags=["shop"]).submit()
    assert isinstance(handle, GroupHandle) and (handle.id, handle.position) == ("g", "0:2")
    assert [member.id for member in handle.members] == ["g:0", "g:b"]
    with pytest.raises(Invalid, match=r"unknown_field.*/0/state"):
        chord(group(calls), app.remote("c").using(with_results=True).call()).submit()
    (line, first), (_, second) = ((r.split(b"\r\n")[0], json.loads(r.split(b"\r\n\r\n", 1)[1])) for r in server.requests)
    assert line.startswith(b"POST /v1/batches?atomic=true ")
    root = {"type": "group", "id": "g", "tags": ["shop"], "external": True, "state": "waiting_for_children"}
    assert [item for item in first if item.pop("params", 1) is not None] == [
        {"type": "a", "id": "0", "parent": "g"},
        {"type": "b", "id": "b", "parent": "g"},
    ] and first[0] == root
    assert second[0]["then"] == [{"type": "c", "params": {}, "with_results": True}]
    assert second[1]["parent"] == second[0]["id"]


def test_group_in_an_attempt_has_the_same_ids_when_the_attempt_is_repeated() -> None:
    app = App()

    @app.task
    def places() -> list[str]:
        return [group(app.remote("a").call(n) for n in numbers).submit().id for numbers in ([1, 2], [1, 2], [3])]

    def ids() -> list[str]:
        with recorded():
            return trial(places).output

    assert ids() == ids() and len(set(ids())) == 3


def test_group_below_a_parent_has_the_path_of_its_parent() -> None:
    for id in ("g", "p:g"):
        documents = submitted(group(tasks.add.call(1), tasks.add.call(1)).using(parent="p", id=id))
        assert [(document.get("parent"), document["id"]) for document in documents] == [("p", id), ("p:g", "0"), ("p:g", "1")]


def test_map_starmap_and_chunks_are_groups() -> None:
    def params(calls: Any) -> list[Any]:
        return [call.params for call in calls]

    assert params(tasks.add.map(range(2))) == [{"a": 0}, {"a": 1}]
    assert params(tasks.add.using(tags=["t"]).starmap([(1, 2), (3,)])) == [{"a": 1, "b": 2}, {"a": 3}]
    assert params(tasks.sizes.chunks(range(5), 2)) == [{"values": [0, 1]}, {"values": [2, 3]}, {"values": [4]}]
    assert params(tasks.sizes.chunks([None, []], 1)) == [{"values": [None]}, {"values": [[]]}]
    assert next(iter(tasks.add.using(tags=["t"]).map([1]))).options == {"tags": ["t"]}
    assert params(group(tasks.add.call(1), chain(tasks.add.call(2), tasks.double), *tasks.add.map([3]))) == [
        {"a": 1}, {"a": 2}, {"a": 3},
    ]  # fmt: skip
    assert len(group(tasks.add.map([1, 2]), tasks.add.call(3))) == 3
    assert trial(tasks.crowd, []).children == [] == list(group())
    with pytest.raises(ValueError, match="at least 1 item: not `0`"):
        tasks.sizes.chunks([1], 0)


def test_chord_is_a_chain_that_begins_with_a_group() -> None:
    calls = [tasks.add.call(1), tasks.add.call(2)]
    forms = [chord(calls, tasks.sizes), chord(group(calls), tasks.sizes), chain(group(calls), tasks.sizes)]
    forms.append(chain(group(calls).using(name="sum"), tasks.sizes))
    documents = [submitted(form)[0] for form in forms]
    assert all(document["then"] == [{"type": "sizes", "params": {}, "with_results": True}] for document in documents)
    assert documents[-1]["name"] == "sum"
    assert [then["type"] for then in submitted(chain(forms[0], tasks.add.call(1)))[0]["then"][0]["then"]] == ["add"]
    assert repr(forms[0]) == "<Group of 2 calls -> sizes>"


# Refusals


def test_chain_of_more_than_sixteen_continuations_is_refused_with_the_remedy() -> None:
    steps = [tasks.add.call(n) for n in range(18)]
    assert len(chain(*steps[:17]).parts) == 17 and chain(group(steps[0]), *steps[1:17]).following
    for first in (steps[0], group(steps[0])):
        with pytest.raises(ValueError, match=r"18 tasks: at most 16 can follow the first; hint: .* `cx.then\(chain\(…\)\)`"):
            chain(first, *steps[1:])


def test_group_of_more_than_999_calls_is_refused_with_the_remedy() -> None:
    assert len(submitted(tasks.add.map(range(999)))) == 1000
    with pytest.raises(ValueError, match=r"1000 calls: at most 999 can be submitted at once; hint: .*`cx.spawn\(group\)`"):
        submitted(tasks.add.map(range(1000)))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: tasks.add.map([]).submit(), "the group is empty, and nothing would follow it; hint: skip it"),
        (lambda: chord([], tasks.sizes).submit(), "the group is empty"),
        (lambda: any_group([1, 2]), r"`1` is no call; hint: write `group\(greet.call\(…\), …\)`"),
        (lambda: any_chain(tasks.add.call(1), print), "is no call; hint: write `chain"),
        (lambda: any_chain(), "at least one call"),
        (lambda: any_chain(tasks.add.call(1), tasks.add.map([1])), r"only the first of a chain; hint: .*`cx.spawn\(group\)`"),
        (lambda: chain(tasks.add.call(1), tasks.add.using(id="a").call(1)), "`id` is not an option of a continuation"),
        (lambda: group(chord([tasks.add.call(1)], tasks.sizes)), r"`cx.spawn` the group and `cx.then` the body"),
        (lambda: group(tasks.add.using(parent="p").call(1)).submit(), "`parent='p'` of a task in a group"),
        (lambda: group(tasks.add.call(1), tasks.add.using(id="0").call(1)).submit(), "two tasks of the group have the same id"),
        (lambda: any_tasks.app.submit_many([tasks.add.map([1])]), "a group is no single task"),
        (lambda: any_tasks.app.external("ci").call(1), "is external and has no params"),
    ],
)  # fmt: skip
def test_what_cannot_be_created_is_refused_with_the_remedy(make: Any, problem: str) -> None:
    with recorded() as documents, pytest.raises((TypeError, ValueError), match=problem):
        make()
    assert not documents


def test_chord_is_refused_in_an_attempt_with_the_remedy() -> None:
    app = App()

    @app.task
    def spawns(cx: Context) -> None:
        cx.spawn(chord([app.remote("a").call()], app.remote("b")))

    @app.task
    def continues(cx: Context) -> None:
        cx.then(any_group(app.remote("a").call()))

    for task, problem in ((spawns, "`cx.spawn` the group and `cx.then` the body"), (continues, "a group is no single task")):
        failure = trial(task).failure
        assert failure and failure.kind == "TypeError" and problem in failure.message


def test_declarations_that_a_chain_could_not_fill_are_refused() -> None:
    app = App()

    def two(a: Upstream[int], b: Upstream[int]) -> None: ...
    def whole(a: Params[Upstream[int]]) -> None: ...
    def taken(params: Upstream[int], task: str, results: int) -> None: ...
    def nested(a: list[Upstream[int]]) -> None: ...

    problems = [(two, "marks more than one parameter"), (whole, "`Upstream` and `Params`"), (taken, "another name for one")]
    for fn, problem in (*problems, (nested, "Upstream")):
        with pytest.raises(DeclarationError, match=problem):
            app.task(fn)  # type: ignore[call-overload]
    assert repr(UPSTREAM) == "Upstream"


# Attempts


def test_params_of_each_form_are_loaded() -> None:
    assert trial(tasks.double, 4).output == 8
    assert trial.using(task=4)(tasks.double, value=5).output == 10
    run = trial.using(results=[1, 2])(tasks.total, "sum", factor=2)
    assert run.output == "sum: 6"
    assert trial(tasks.either, "a").output == "a"
    assert trial.using(results=[2, 1])(tasks.either, "b").output == "b after None and [1, 2]"
    assert trial.using(task=7)(tasks.both).output == [7, 7]
    assert trial.using(task=7, results=[1])(tasks.both, value=5).output == [5, 7]
    assert trial.using(task={"x": 3})(tasks.moved).output == tasks.Point(4)


def test_result_that_does_not_fit_the_parameter_is_named() -> None:
    failure = trial.using(task="x")(any_tasks.double).failure
    assert failure and (failure.outcome, failure.kind) == ("dead", "bad_params")
    assert "/value: `'x'` is not an integer, in the result of `trial`" in failure.message
    failure = trial.using(results=[1, "x"])(any_tasks.sizes).failure
    assert failure and "/values/1: `'x'` is not an integer, in the results of the children of `trial`" in failure.message


def test_declared_schema_accepts_both_forms() -> None:
    schema = tasks.double.declaration()["params"]
    assert schema["else"]["required"] == ["value"] and schema["then"]["properties"]["params"]["required"] == []
    assert schema["then"]["required"] == ["params", "task", "results"]
    assert "if" not in tasks.add.declaration()["params"]


# On a fleet


@pytest.mark.usefixtures("_fleet")
class TestOnAFleet:
    def test_chain_passes_results_on(self) -> None:
        handle = chain(tasks.add.call(1, 2), tasks.double, tasks.add.call(40), tasks.double).submit()
        assert handle.result(PATIENCE) == 3
        assert [handle.then().result(PATIENCE), handle.then().then().result(PATIENCE)] == [6, 41]
        assert handle.final_result(PATIENCE) == 82
        assert tasks.add.submit(1).final_result(PATIENCE) == 2

    def test_chain_passes_results_on_in_a_bundle_and_as_annotated(self) -> None:
        handle = chain(tasks.point.call(1), tasks.moved.call(by=5)).submit()
        assert handle.final_result(PATIENCE) == tasks.Point(6), "the app declares the type of the last task"
        grown = chain(tasks.add.call(1), tasks.grown, tasks.listed.call()).submit()
        assert grown.then().result(PATIENCE) == tasks.Point(12)
        assert grown.final_result(PATIENCE) == []
        assert tasks.grown.submit(5).result(PATIENCE) == tasks.Point(15)
        assert tasks.listed.submit().result(PATIENCE) == []

    @pytest.mark.parametrize("now", [False, True])
    def test_group_in_an_attempt_is_its_children(self, now: bool) -> None:
        handle = tasks.crowd.submit([3, 4, 4], now)
        assert handle.then().result(PATIENCE) == "sum: 14"
        assert handle.final_result(PATIENCE) == "chained after sum: 14 and []"
        assert sum(1 for _ in handle.children()) == 4

    @pytest.mark.parametrize(
        ("name", "params", "pointer"),
        [
            ("double", {"value": "x"}, "/params/value"),
            ("double", {}, "/params"),
            ("total", {"label": "a", "values": [1, "x"]}, "/params/values/1"),
            ("either", {"label": 1}, "/params/label"),
            ("either", {"params": {"label": 1}, "task": {"id": "a", "state": "failed"}, "results": []}, "/params/params/label"),
            ("small", {"task": "grown", "params": {"value": "x"}}, "/params/params/value"),
        ],
    )
    def test_wrong_params_of_either_form_are_refused_with_their_pointer(self, name: str, params: Any, pointer: str) -> None:
        with pytest.raises(Invalid) as invalid:
            tasks.app.remote(name).submit(params)
        assert (invalid.value.code, invalid.value.pointer) == ("schema", pointer)

    def test_chains_are_children(self) -> None:
        handle = tasks.chains.submit()
        assert handle.result(PATIENCE) is None
        results = [tasks.app.handle(child["id"]).final_result(PATIENCE) for child in handle.children()]
        assert sorted(results) == [4, 6]

    def test_chain_in_a_batch_and_on_an_event_loop(self) -> None:
        async def main() -> None:
            (handle,) = await tasks.app.asubmit_many([chain(tasks.add.call(1), tasks.double)])
            other = await chain(tasks.add.call(2), tasks.double).asubmit()
            assert not isinstance(handle, Exception)
            assert [await each.afinal_result(PATIENCE) for each in (handle, other)] == [4, 6]

        asyncio.run(main())

    def test_group_ends_with_the_list_of_results_and_its_chord_with_the_result_of_the_body(self) -> None:
        made: list[Group[Any]] = [
            group(tasks.point.call(n) for n in (9, 4, 7, 0)),
            chord(tasks.add.map([1, 2]), tasks.total.call("sum")),
        ]
        handles = [call.submit() for call in made]
        assert handles[0].result(PATIENCE) == handles[0].final_result(PATIENCE) == [tasks.Point(n) for n in (9, 4, 7, 0)]
        assert handles[1].result(PATIENCE) == [2, 3]
        assert handles[1].final_result(PATIENCE) == handles[1].then().result(PATIENCE) == "sum: 5"

    def test_results_of_a_group_are_those_of_the_tasks_that_succeeded(self) -> None:
        calls = group(tasks.add.call(1), tasks.fails.call(), tasks.add.call(3))
        handle: Any = chain(calls.using(max_failed=1), tasks.sizes).submit()
        assert handle.result(PATIENCE) == [2, 4]
        assert sorted(handle.final_result(PATIENCE)) == [2, 4]

    def test_failed_descendant_is_named(self) -> None:
        handle = tasks.parent_of_failed.submit()
        for wait in (handle.result, handle.final_result, lambda patience: asyncio.run(handle.aresult(patience))):
            with pytest.raises(TaskFailed) as failed:
                wait(PATIENCE)
            assert (failed.value.id, failed.value.state) == (handle.id, "failed")
            assert (failed.value.kind, failed.value.message) == ("gone", "no such picture")
            assert failed.value.descendant and failed.value.descendant.endswith(":then")
            reason = f"because of its descendant `{failed.value.descendant}`: gone: no such picture"
            assert str(failed.value) == f"the task `{handle.id}` ended as failed {reason}"
        crowd = group(tasks.add.call(1), tasks.fails.call("second")).submit()
        with pytest.raises(TaskFailed, match=f"because of its descendant `{crowd.id}:1`: gone: second"):
            crowd.result(PATIENCE)
        with pytest.raises(TaskFailed, match="ended as failed: gone: alone") as alone:
            chain(tasks.fails.call("alone"), tasks.double).submit().final_result(PATIENCE)
        assert alone.value.descendant is None

    def test_continuation_of_an_earlier_run_does_not_count(self) -> None:
        handle = tasks.flaky.using(then=[tasks.nightly.using(on="failed").call("sorry")]).submit()
        with pytest.raises(TaskFailed):
            handle.result(PATIENCE)
        assert handle.then().result(PATIENCE) == "sorry"
        handle.retry()
        assert handle.final_result(PATIENCE) == 2

    def test_continuation_is_awaited_before_it_exists(self) -> None:
        handle = chain(tasks.add.using(delay="300ms").call(1), tasks.double).submit()
        assert handle.then().result(PATIENCE) == 4
        with pytest.raises(NotFound, match=f"`{handle.id}:then-2`"):
            handle.then(1).result(PATIENCE)
        with pytest.raises(TaskFailed, match="ended as failed: gone: first"):
            chain(tasks.fails.using(delay="300ms").call("first"), tasks.double).submit().then().result(PATIENCE)
        apology = tasks.nightly.using(on="failed").call("sorry")
        assert tasks.fails.using(then=[apology]).submit().then().result(PATIENCE) == "sorry"
        with pytest.raises(ValueError, match="the continuations 0 to 7: `8` is none of them"):
            handle.then(8)


def test_failure_whose_reason_cannot_be_read_is_still_a_failure() -> None:
    failed = {"id": "a", "state": "failed", "own_state": "succeeded", "position": "0:3", "error": None, "result": None}
    body = b'event: status\ndata: %b\n\nevent: end\ndata: {"reason": "finished"}\n\n' % json.dumps(failed).encode()
    stream = b"HTTP/1.1 200 X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    server = Server(stream, response(404, {"code": "not_found"}))
    with pytest.raises(TaskFailed, match="because of a descendant; hint: `kafleet why a` names that task"):
        App(api=server.url).handle("a").result(PATIENCE)
