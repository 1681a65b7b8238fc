"""An app that runs ten attempts at once, each on a thread, and reads the socket meanwhile."""
import ctypes
import json
import os
import socket
import threading
import time

line = socket.socket(fileno=os.dup(0)).makefile("rwb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
lock = threading.Lock()


def send(**message):
    with lock:
        line.write(json.dumps(message).encode() + b"\n")
        line.flush()


def run(n, params):
    match params.get("do"):
        case "exit":
            os._exit(params["code"])
        case "hang":
            time.sleep(3600)
        case "block":
            ctypes.PyDLL(None).sleep(3600)  # a hang in C, which holds the lock of the interpreter
        case "wait":
            while not os.path.exists(params["file"]):
                time.sleep(0.005)
    send(ok={"n": n, "output": os.getpid()})


types = [{"name": "work", "params": {"type": "object", "properties": {"do": {"type": "string"}}},
          "policy": {"retries": 0, "timeout": "1h"}}]
send(ready={"protocol": 1, "slots": 10, "responsive": True, "types": types})
for text in line:
    message = json.loads(text)
    if attempt := message.get("attempt"):
        threading.Thread(target=run, args=(attempt["n"], attempt["params"]), daemon=True).start()
    if ping := message.get("ping"):
        send(pong=ping)
