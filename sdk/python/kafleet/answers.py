"""Reading of responses: their documents, the problems of the API, and answers of something that is no kafleet."""

from __future__ import annotations

from typing import Any

from .errors import ApiError, Unavailable, problem
from .steps import Request, Response
from .values import decode, parse

_MEMBERS = {
    "POST /v1/tasks": "id", "POST /v1/batches": "items", "POST /v1/bulk": "id", "GET /v1/tasks": "tasks",
    "GET /v1/types": "types", "GET /v1/workers": "workers", "GET /v1/schedules": "schedules",
    "GET /v1/dead-letters": "letters",
}  # fmt: skip
"""Member that the document of the API has, by request."""
_MEMBERS_OF_TASK = {"": "state", "children": "tasks", "history": "events", "log": "lines", "params": "params", "why": "findings"}
"""The same for reads of a task, by the rest of the path."""
_MAX_EXCERPT_CHARS = 100


def accepted(url: str, request: Request, response: Response, *, exact: bool = False) -> Any:
    """Returns the document of a response, or its body if that is no JSON. Raises `ApiError`, also for something that is no
    kafleet. `exact`: numbers keep all their digits."""
    if response.status == 0:
        raise _unreachable(url, response)
    if not 200 <= response.status < 300:
        raise _refusal(url, request, response)
    if request.stream:
        if response.media and not response.media.startswith("text/event-stream"):
            raise _foreign(url, request, response)
        return None
    member = _member(request)
    if response.media and "json" not in response.media:
        if member or _is_page(request, response):
            raise _foreign(url, request, response)
        return response.body
    try:
        document = (parse if exact else decode)(response.body)
    except ValueError:
        raise _foreign(url, request, response, "no JSON" if response.body else "empty") from None
    if member and not (isinstance(document, dict) and member in document):
        raise _foreign(url, request, response, f"JSON without `{member}`")
    return document


def _member(request: Request) -> str | None:
    path = request.path.partition("?")[0]
    if path.startswith("/v1/tasks/"):
        return _MEMBERS_OF_TASK.get(path.split("/", 4)[4] if path.count("/") > 3 else "") if request.method == "GET" else None
    return _MEMBERS.get(f"{request.method} {path}")


def _is_page(request: Request, response: Response) -> bool:
    """Returns whether a response is a web page, which the API has only as an attachment."""
    return "html" in response.media and request.path.startswith("/v1/") and "/attachments/" not in request.path


def _unreachable(url: str, response: Response) -> ApiError:
    detail = f"the API at `{url}` cannot be reached: {response.body.decode()}"
    hint = "start `kafleet dev`, or set KAFLEET_API to the URL of an API"
    return problem(0, {"code": "unreachable", "detail": detail, "hint": hint})


def _refusal(url: str, request: Request, response: Response) -> ApiError:
    try:
        document = decode(response.body)
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(document.get("code"), str):
        return problem(response.status, document)
    if response.location:
        return _foreign(url, request, response, f"a redirect to {response.location}")
    return _foreign(url, request, response, _excerpt(response) if document is None else "JSON without `code`")


def _excerpt(response: Response) -> str:
    """Returns the beginning of a short text, such as that of a proxy."""
    words = "" if "html" in response.media else " ".join(response.body.decode(errors="replace").split())
    return words[:_MAX_EXCERPT_CHARS]


def _foreign(url: str, request: Request, response: Response, more: str = "") -> ApiError:
    """Returns the error for an answer that is not of kafleet."""
    media = response.media.partition(";")[0] or "without a media type"
    answer = f"{request.method} {request.path.partition('?')[0]}: {response.status} {media}{f', {more}' if more else ''}"
    where = "check the proxy in front of kafleet, and KAFLEET_API" if response.status in (502, 503, 504) else "check KAFLEET_API"
    document = {
        "code": "not_kafleet",
        "detail": f"`{url}` answered, but it is not kafleet ({answer})",
        "hint": f"{where}, or `api` of the app; `kafleet dev` prints its address",
    }
    return Unavailable(response.status, document)
