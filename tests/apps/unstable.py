"""An app with one slot whose processes die 0.3 s after each start, as long as a file exists: `unstable.py FILE`."""
import json
import os
import socket
import sys
import threading
import time

line = socket.socket(fileno=os.dup(0)).makefile("rwb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def die():
    time.sleep(0.3)
    with open(sys.argv[1] + ".deaths", "a") as deaths:
        deaths.write(f"{os.getpid()}\n")
    os._exit(1)


if os.path.exists(sys.argv[1]):
    threading.Thread(target=die, daemon=True).start()
line.write(json.dumps({"ready": {"protocol": 1, "types": [{"name": "nap", "policy": {"retries": 0}}]}}).encode() + b"\n")
line.flush()
for text in line:
    if attempt := json.loads(text).get("attempt"):
        time.sleep(0.6)
        line.write(json.dumps({"ok": {"n": attempt["n"], "output": os.getpid()}}).encode() + b"\n")
        line.flush()
