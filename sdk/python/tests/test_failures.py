"""What people see of exceptions: outcomes and kinds by class, causes, and members of groups."""

import asyncio
from typing import Any

import pytest

from kafleet import App, Cancelled, Context, Dead, DeclarationError, Fail, Outcome, Retry, Wait
from kafleet.testing import Failure, trial


class Timeout(Exception): ...


class ReadTimeout(Timeout): ...


class Busy(Retry): ...


Another: Any = type("Timeout", (Exception,), {"__module__": "other.client"})


def failure_of(error: BaseException, **policy: Any) -> Failure:
    """Raises an exception in a handler, and returns the failure of the attempt."""

    def handler() -> None:
        raise error

    failure = trial(App().task(**policy)(handler)).failure
    assert failure
    return failure


def final(**policy: Any) -> dict[str, Any]:
    return {"on_error": "fail", **policy}


# Policy, exception, its outcome under the policy, and kind. With `on_error` or `*`, the worker finds the kind in the lists.
LISTED: list[tuple[dict[str, Any], BaseException, str, str]] = [
    ({}, ReadTimeout("a"), "retry", "ReadTimeout"),
    ({"fail_on": [Timeout]}, ReadTimeout("a"), "fail", "ReadTimeout"),
    ({"fail_on": [Timeout], "retry_on": [ReadTimeout]}, ReadTimeout("a"), "retry", "ReadTimeout"),
    ({"fail_on": [Timeout]}, Another("a"), "retry", "Timeout"),
    (final(retry_on=[Timeout]), Timeout("a"), "retry", "Timeout"),
    (final(retry_on=[Timeout]), ReadTimeout("a"), "retry", "Timeout"),
    (final(retry_on=[Timeout]), Another("a"), "fail", "other.client.Timeout"),
    (final(retry_on=[Timeout]), ValueError("a"), "fail", "ValueError"),
    (final(retry_on=[Timeout, ReadTimeout]), ReadTimeout("a"), "retry", "ReadTimeout"),
    (final(retry_on=[Exception]), ReadTimeout("a"), "retry", "Exception"),
    (final(retry_on=[Busy]), Busy("a"), "retry", "Busy"),
    (final(retry_on=[Timeout], fail_on=[ReadTimeout]), ReadTimeout("a"), "fail", "ReadTimeout"),
    ({"fail_on": ["*"], "retry_on": [Timeout]}, ReadTimeout("a"), "retry", "Timeout"),
    ({"retry_on": ["*"], "fail_on": [Timeout]}, ReadTimeout("a"), "fail", "Timeout"),
    ({"retry_on": ["*"], "fail_on": [Timeout]}, Fail("a", kind="bad"), "retry", "bad"),
    (final(retry_on=[Dead]), Dead("a"), "dead", "error"),
    (final(retry_on=[Wait]), Wait("a"), "wait", "error"),
]


@pytest.mark.parametrize(("policy", "error", "outcome", "kind"), LISTED, ids=[str(n) for n in range(len(LISTED))])
def test_class_in_a_list_decides(policy: dict[str, Any], error: BaseException, outcome: str, kind: str) -> None:
    failure = failure_of(error, **policy)
    assert (failure.outcome, failure.kind) == (outcome, kind)


def declared(**policy: Any) -> Any:
    return App().task(**policy)(lambda_).declaration().get("policy", {})


def lambda_() -> None: ...


def test_policy_names_classes_only_where_the_worker_would_overrule_them() -> None:
    assert declared(retry_on=[Timeout], fail_on=["bad", KeyError]) == {"fail_on": ["bad"]}
    assert declared(on_error="retry", retry_on=[Timeout]) == {"on_error": "retry"}
    assert declared(on_error="fail", retry_on=["bad", Timeout]) == {"on_error": "fail", "retry_on": ["bad", "Timeout"]}
    assert declared(on_error="skip", fail_on=[Timeout, "Timeout"]) == {"on_error": "skip", "fail_on": ["Timeout"]}
    assert declared(fail_on=["*"], retry_on=[Timeout]) == {"fail_on": ["*"], "retry_on": ["Timeout"]}


def test_task_of_a_bundle_has_no_classes_that_the_worker_would_overrule() -> None:
    small = App().bundle("small", on_error="fail", retry_on=[Timeout])
    message = (
        r"test_failures.py:\d+: `on_error` and `\*` of the bundle decide for all of its tasks, also about `KeyError`; hint: use"
    )
    with pytest.raises(DeclarationError, match=message):
        small.task(retry_on=[KeyError])(lambda_)
    small.task(retry_on=[Timeout], name="right")(lambda_)
    assert small.declaration()["policy"] == {"on_error": "fail", "retry_on": ["Timeout"]}


def test_cause_of_an_outcome_is_in_the_log() -> None:
    def cause(how: type[Outcome]) -> BaseException:
        error = how("no such customer")
        error.__cause__ = KeyError("customer-5")
        return error

    for how in (Fail, Retry, Dead):
        failure = failure_of(cause(how))
        assert failure.message == "no such customer"
        assert failure.stack and "KeyError: 'customer-5'" in failure.stack and "direct cause" in failure.stack
        assert failure_of(how("no such customer")).stack is None


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("unhandled errors", errors)


# Exception, and outcome, kind and message.
GROUPS: list[tuple[BaseException, str, str, str]] = [
    (group(Fail("no picture", kind="bad_width")), "fail", "bad_width", "no picture"),
    (group(group(ValueError("a"))), "retry", "ValueError", "a"),
    (group(Cancelled("timeout")), "cancelled", "cancelled", "the attempt was cancelled"),
    (
        group(ValueError("a"), KeyError("b")),
        "retry",
        "ExceptionGroup",
        "unhandled errors (2 sub-exceptions): ValueError: a; KeyError: 'b'",
    ),
]


@pytest.mark.parametrize(("error", "outcome", "kind", "message"), GROUPS, ids=[str(n) for n in range(len(GROUPS))])
def test_group_of_one_counts_as_its_member(error: BaseException, outcome: str, kind: str, message: str) -> None:
    failure = failure_of(error)
    assert (failure.outcome, failure.kind, failure.message) == (outcome, kind, message)


def test_outcome_in_a_task_group_is_that_of_the_attempt() -> None:
    async def fetch(n: int) -> None:
        if n == 3:
            raise Retry("busy", after="5s")
        await asyncio.Event().wait()

    @App().task
    async def fetches() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(10):
                group.create_task(fetch(n))

    failure = trial(fetches).failure
    assert failure and (failure.outcome, failure.message, failure.after_ms) == ("retry", "busy", 5000)


def test_large_group_shows_its_first_members_and_no_frames_of_the_sdk() -> None:
    @App().task
    def many(cx: Context) -> None:
        errors: list[Exception] = []
        for n in range(200):
            try:
                cx.spawn(None)  # type: ignore[call-overload]
            except TypeError:
                errors.append(ValueError(f"url {n}"))
                errors[-1].__cause__ = OSError(f"refused {n}")
        raise ExceptionGroup("fetches", errors)

    failure = trial(many).failure
    assert failure and failure.stack
    assert "fetches (200 sub-exceptions): ValueError: url 0; " in failure.message and failure.message.endswith("; and 190 more")
    assert "url 9" in failure.stack and "OSError: refused 9" in failure.stack and "url 10" not in failure.stack
    assert "of which these are the first" in failure.stack and "in many" in failure.stack
    group = ExceptionGroup("calls", [error_of_the_sdk(), ValueError("b")])
    stack = failure_of(group).stack
    assert stack and "does not take" not in stack and "/kafleet/" not in stack and "in error_of_the_sdk" in stack


def error_of_the_sdk() -> Exception:
    try:
        App().remote("a").using(misspelt=1)  # type: ignore[call-arg]
    except TypeError as error:
        return error
    raise AssertionError


HOSTILE = ["\x1b[31mred\x1b[0m", "nul \0", "half \ud83d", "line\nbreak\r\n\u2028", "x" * 5_000_000, "\u202eright to left", ""]


@pytest.mark.parametrize("text", HOSTILE, ids=[str(n) for n in range(len(HOSTILE))])
@pytest.mark.parametrize("how", ["alone", "cause", "member", "note"])
def test_hostile_text_is_kept_or_replaced(text: str, how: str) -> None:
    error: BaseException = ValueError(text)
    if how == "cause":
        error = ValueError("outer")
        error.__cause__ = KeyError(text)
    elif how == "member":
        error = group(ValueError(text), KeyError("b"))
    elif how == "note":
        error = ValueError("outer")
        error.add_note(text)
    failure = failure_of(error)
    assert failure.message and len(failure.message) <= 2000 and failure.stack and len(failure.stack) <= 16 << 10
    assert how != "alone" or failure.message == (text or "ValueError").replace("\ud83d", "?")[:2000]
