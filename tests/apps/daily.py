"""An app with a blocking type beside others, and with a schedule. It logs, and fails on request."""
import json
import os
import socket
import subprocess
import threading

line = socket.socket(fileno=os.dup(0)).makefile("rwb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
lock = threading.Lock()
released = threading.Event()


def send(**message):
    with lock:
        line.write(json.dumps(message).encode() + b"\n")
        line.flush()


def run(n, attempt):
    params = attempt["params"]
    match params.get("do"):
        case "log":
            send(log={"n": n, "lines": ["hello " + params["name"]]})
        case "shell":
            subprocess.run(["sh", "-c", "echo one; echo two >&2"], check=True)
        case "crash":
            os.write(2, b"last words\nin two lines")
            os._exit(3)
        case "fail":
            return send(error={"n": n, "outcome": "fail", "kind": "broken", "message": "no paper"})
        case "block":
            released.wait()
        case "release":
            released.set()
    send(ok={"n": n, "output": attempt["number"]})


nightly = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task": {"type": "report", "params": {"do": "none"}}}
send(ready={
    "protocol": 1, "slots": 2, "threads": 1, "responsive": True,
    "types": [{"name": "report", "policy": {"concurrency": 7}}, {"name": "crunch", "sync": True}],
    "schedules": {"nightly": nightly},
})
for text in line:
    message = json.loads(text)
    if ping := message.get("ping"):
        send(pong={"at": ping["at"]})
    elif attempt := message.get("attempt"):
        threading.Thread(target=run, args=(attempt["n"], attempt), daemon=True).start()
