"""Web app that submits tasks and shows their progress, with the standard library and the SDK's client.

In `examples/python`, with the package `kafleet` installed:

    kafleet dev primes.tasks
    python -m primes.web            # http://127.0.0.1:8000

It needs no Kafka, and it keeps no state: the fleet knows the tasks, so a page can be reloaded, or opened on another machine.
"""

import json
import os
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, unquote

from kafleet import ApiError, Status

from .tasks import app, count_primes

FORM = b"""<!doctype html><meta charset=utf-8><title>Primes</title>
<form method=post action=/counts>Count the primes below <input name=limit type=number value=200000 min=1 max=2000000>
<button>Count</button></form>"""

PAGE = b"""<!doctype html><meta charset=utf-8><title>Primes</title>
<p><progress id=bar value=0></progress> <output id=text>waiting</output>
<p><button id=cancel>Cancel</button> <a href=/>Count more</a>
<script>
const events = new EventSource(location.pathname + "/events")
events.onmessage = ({data}) => {
  const {state, done, total, text} = JSON.parse(data)
  bar.max = total
  bar.value = done
  document.getElementById("text").value = text ?? `${done} of ${total} tasks: ${state}`
}
events.addEventListener("end", () => { events.close(); cancel.disabled = true })
cancel.onclick = () => fetch(location.pathname + "/cancel", {method: "POST"})
</script>"""


class Handler(BaseHTTPRequestHandler):
    """Pages `/` and `/counts/ID`, the progress as server-sent events, and two forms."""

    def do_GET(self) -> None:
        match self.path.split("/")[1:]:
            case [""]:
                self.answer(200, FORM)
            case ["counts", _]:
                self.answer(200, PAGE)
            case ["counts", id, "events"]:
                self.stream(unquote(id))
            case _:
                self.answer(404, b"there is no such page")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        try:
            match self.path.split("/")[1:]:
                case ["counts"]:
                    handle = count_primes.submit(limit=int(parse_qs(body.decode())["limit"][0]))
                    self.answer(303, b"", "location", f"/counts/{handle.id}")
                case ["counts", id, "cancel"]:
                    count_primes.handle(unquote(id)).cancel("cancelled in the web app")
                    self.answer(200, b"cancelled")
                case _:
                    self.answer(404, b"there is no such page")
        except (KeyError, ValueError):
            self.answer(400, b"`limit` is not a number")
        except ApiError as error:
            self.answer(503, str(error).encode())

    def stream(self, id: str) -> None:
        """Sends the progress of a task now and at every change, until it has ended."""
        try:
            statuses = count_primes.handle(id).watch()
            first = next(statuses)
        except ApiError as error:
            self.answer(404 if error.status == 404 else 503, str(error).encode())
            return
        self.answer(200, b"", "content-type", "text/event-stream")
        with suppress(ConnectionError):  # The page has been closed.
            for status in chain([first], statuses):
                self.send("message", progress(status))
            self.send("end", {})

    def send(self, event: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

    def answer(self, status: int, body: bytes, header: str = "content-type", value: str = "text/html") -> None:
        self.send_response(status)
        self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)


def progress(status: Status) -> dict[str, Any]:
    """Returns what the page shows of a status: the counts of the whole tree, and the result at its end."""
    tree, text = status["tree"], None
    if status["state"] == "succeeded":
        text = f"there are {count_primes.handle(status['id']).final_result(timeout=30)} primes"
    return {"state": status["state"], "done": tree["total"] - tree["pending"], "total": tree["total"], "text": text}


def main() -> None:
    host, _, port = os.environ.get("LISTEN", "127.0.0.1:8000").rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    print(f"http://{host}:{server.server_port} submits to {app.client.url}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
