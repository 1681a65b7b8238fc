"""The smallest app: a loop that reads attempts from the socket and runs them one after another."""
import json
import os
import signal
import socket
import subprocess
import sys

line = socket.socket(fileno=os.dup(0)).makefile("rwb")  # a private copy: child processes do not inherit it
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nothing else can read the socket


def send(**message):
    line.write(json.dumps(message).encode() + b"\n")
    line.flush()


kept = []


def run(params):
    match params.get("do"):
        case "exit":
            print("about to exit", flush=True)
            os._exit(params["code"])
        case "kill":
            print("about to die", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()
        case "hang":
            signal.pause()
        case "garble":
            line.write(b"hello\n")
            line.flush()
            signal.pause()
        case "child":
            return subprocess.run(["cat"], capture_output=True, text=True).stdout
        case "grow":
            kept.append(b"x" * (params["mib"] << 20))
            if params.get("hang"):
                signal.pause()
            return os.getpid()
        case "parent":
            return os.getppid()
        case "pid":
            return os.getpid()
    return params["x"] * 2


send(ready={"protocol": 1, "types": [{"name": "double"}]})
for text in line:
    if attempt := json.loads(text).get("attempt"):
        send(ok={"n": attempt["n"], "output": run(attempt["params"])})
