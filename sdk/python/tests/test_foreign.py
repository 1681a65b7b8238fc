"""Names of Celery and BullMQ, and paths of the REST API: each leads to the form that works."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import pytest
from driver import ROOT

from kafleet import App, Context, DeclarationError, Invalid, foreign
from kafleet.errors import in_python
from kafleet.testing import Trial

app = App()


@app.task
def other() -> None: ...


# Keywords of Celery and BullMQ with a value as users write it, and the remedy.
POLICY: list[tuple[str, Any, str]] = [
    ("retry_backoff", True, '`min_backoff="1s"`, which doubles'),
    ("retry_backoff", 5, '`min_backoff="5s"`'),
    ("retry_backoff_max", 600, '`max_backoff="600s"`'),
    ("default_retry_delay", 30, '`min_backoff="30s"`'),
    ("autoretry_for", (ConnectionError, OSError), '`on_error="fail", retry_on=[ConnectionError, OSError]`'),
    ("dont_autoretry_for", [KeyError], "`fail_on=[KeyError]`"),
    ("max_retries", 7, "`retries=7`"),
    ("attempts", 3, "`retries=2`"),
    ("backoff", {"type": "exponential", "delay": 1000}, '`min_backoff="1000ms"`'),
    ("rate_limit", "10/m", '`rate={"count": 10, "per": "1m"}`'),
    ("rate_limit", 5, '`rate={"count": 5, "per": "1s"}`'),
    ("limiter", {"max": 5, "duration": 1000}, '`rate={"count": 5, "per": "1000ms"}`'),
    ("time_limit", 60, '`timeout="60s"`'),
    ("soft_time_limit", 0.5, '`soft_timeout="0.5s"`'),
    ("bind", True, "annotate the first parameter: `cx: Context`"),
    ("acks_late", True, "remove it: a task is done when it has ended"),
    ("ignore_result", True, "remove it: results stay"),
    ("queue", "slow", "each type has its own topic"),
    ("priority", 5, "there are no priorities"),
    ("group", "shared", "set it in `[types.NAME]` of kafleet.toml"),
]
OPTIONS: list[tuple[str, Any, str]] = [
    ("countdown", 60, '`delay="60s"`'),
    ("eta", None, "`at=datetime.now(timezone.utc) + …`"),
    ("task_id", "a", "`id=…`: a second task"),
    ("jobId", "a", "`id=…`: a second task"),
    ("priority", 5, "there are no priorities"),
    ("queue", "slow", "each type has its own topic"),
    ("link_error", None, '`then=[other.using(on="failed").call()]`'),
    ("time_limit", 60, '`timeout="60s"`'),
    ("soft_time_limit", 5, '`soft_timeout="5s"` in the decorator'),
    ("max_retries", 3, "`retries=3`"),
    ("attempts", 1, "`retries=0`"),
    ("shadow", "a", "`name=…`"),
    ("repeat", {"every": 1000}, "`@app.schedule("),
]

MESSAGE: dict[str, Any] = {"n": 1, "type": "a", "id": "a", "run": 1, "number": 1, "left_ms": 1000}
LATER = [
    "soft_timeout",
    "schedule",
    "chain",
    "chord",
    "app.handle",
    "types()",
    "schedules",
    "tasks.search",
    "client.request",
    "include",
]
"""Parts of remedies that this version of the SDK does not have yet."""


def handler() -> None: ...


@pytest.mark.parametrize(("name", "value", "remedy"), POLICY)
def test_keyword_of_a_declaration_names_the_form_that_works(name: str, value: Any, remedy: str) -> None:
    small, text = App().bundle("small"), rf"test_foreign.py:\d+: `{name}` is not a key of a policy; hint: .*{re.escape(remedy)}"
    with pytest.raises(DeclarationError, match=text):
        App().task(**{name: value})(handler)
    with pytest.raises(DeclarationError, match=text):
        small.task(**{name: value})(handler)
    with pytest.raises(DeclarationError, match=text):
        App().bundle("other", **{name: value})


@pytest.mark.parametrize(("name", "value", "remedy"), OPTIONS)
def test_option_of_a_call_names_the_form_that_works(name: str, value: Any, remedy: str) -> None:
    for task in (other, app.remote("elsewhere")):
        with pytest.raises(TypeError, match=rf"`{name}` is not an option of a task; hint: .*{re.escape(remedy)}"):
            task.using(**{name: value})


def forms(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, form) for name in table for form in re.findall("`([^`]+)`", foreign.remedy(table, name))]


def is_later(form: str) -> bool:
    return any(part in form for part in LATER)


@pytest.mark.parametrize(("table", "of"), [(foreign.POLICY, "task"), (foreign.OPTIONS, "using")], ids=["policy", "options"])
def test_form_of_a_keyword_works(table: Mapping[str, str], of: str) -> None:
    """Each form such as `retries=3` or `using(delay="30s")` is accepted where it stands."""
    calls = {"task": lambda **policy: App().task(**policy)(handler), "using": other.using}
    count = 0
    for _, form in forms(table):
        if re.match(r"(using\()?\w+=", form) and not is_later(form):
            call = form if form.startswith("using") else f"{of}({form})"
            eval(re.sub("datetime.* …|…", "None", call).replace("[None]", "[]"), {**calls, "other": other})
            count += 1
    assert count > 6


ATTRIBUTES: list[tuple[Mapping[str, str], Any]] = [
    (foreign.TASK, other),
    (foreign.CONTEXT, Context(MESSAGE, Trial())),
    (foreign.HANDLE, other.handle("a")),
    (foreign.APP, app),
]


@pytest.mark.parametrize(("table", "owner"), ATTRIBUTES, ids=["task", "context", "handle", "app"])
def test_attribute_names_a_form_that_exists(table: Mapping[str, str], owner: Any) -> None:
    roots = {"cx": ATTRIBUTES[1][1], "app": app, "task": other}
    for name in table:
        with pytest.raises(AttributeError, match=rf"has no attribute `{name}`; hint: {re.escape(table[name])}"):
            getattr(owner, name)
    for name, form in forms(table):
        path = re.match(r"@?([\w.]+)\(|(\w+\.\w+)$|(id)$", form)
        if path and not is_later(form):
            root, _, rest = next(filter(None, path.groups())).partition(".")
            assert hasattr(roots[root], rest) if rest in dir(roots.get(root)) else hasattr(owner, root) or root in BEYOND, (
                name,
                form,
            )


BEYOND = {"App", "kafleet", "getattr"}


def test_attributes_that_nobody_knows_raise_the_usual_error() -> None:
    for _, owner in ATTRIBUTES:
        with pytest.raises(AttributeError, match=r"object has no attribute 'misspelt'"):
            _ = owner.misspelt
        assert not hasattr(owner, "misspelt")
    assert copy.copy(other).name == "other"


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("shop",), {}, "an app has no name in the code: `App('shop')`; hint: `App()`; `[apps.NAME]` in kafleet.toml names it"),
        ((), {"broker": "redis://"}, "`broker` is not an argument of `App`; hint: `[kafka]` and `[redis]` in kafleet.toml"),
        ((), {"backend": "redis://"}, "`backend` is not an argument of `App`; hint: "),
        ((), {"main": "shop"}, "`main` is not an argument of `App`; hint: `App()`"),
        ((), {"misspelt": 1}, "unexpected keyword argument 'misspelt'"),
    ],
)
def test_arguments_of_an_app_of_celery_name_the_remedy(arguments: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        App(*arguments, **named)


def hints_of_the_api() -> list[str]:
    """Texts with a request in the source of the API, with a value in place of each `{…}`."""
    sources = [path for path in (ROOT / "crates").glob("*/src/**/*.rs") if "tests" not in path.parts and path.stem != "tests"]
    lines = [line for path in sources for line in path.read_text().splitlines() if "hint" in line and "//" not in line]
    texts = [text for line in lines for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line)]
    return [re.sub(r"\{[\w.]*\}", "a:1", text) for text in texts if re.search(r"\b(GET|POST|PUT|PATCH|DELETE) /", text)]


def test_hints_of_the_api_name_calls_of_the_sdk() -> None:
    hints = hints_of_the_api()
    assert len(hints) >= 8
    for hint in hints:
        shown = str(Invalid(400, {"code": "bad", "detail": "no", "hint": hint}))
        calls = re.findall(r"`(app\.[\w.]+\([^`]*\))`", shown)
        assert calls, shown
        assert not re.search("[A-Z]{3,} /|/v1/", re.sub(r"`app\.client\.request\(.*?\)`", "", shown)), shown
        for call in calls:
            assert is_later(call) or hasattr(app, call[4:].partition("(")[0].partition(".")[0]), call
    assert in_python("GET /v1/types shows the schema of `a`") == "`app.types()` shows the schema of `a`"
    assert in_python("see GET /v1/tasks?q=a") == "see `app.tasks.search(…)`"
    assert in_python("a text of a user: GET /orders failed") == "a text of a user: GET /orders failed"
