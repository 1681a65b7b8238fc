"""Apps that break a rule of the protocol: `faulty.py RULE`."""
import json
import os
import socket
import sys

rule = sys.argv[1]
line = socket.socket(fileno=os.dup(0)).makefile("rwb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def send(**message):
    line.write(json.dumps(message).encode() + b"\n")
    line.flush()


if rule == "first-message":
    print("hello", file=sys.stderr, flush=True)
    line.write(b"hello\n")
    line.flush()
send(ready={"protocol": 1, "types": [{"name": "t-echo"}]})
for received in line:
    # `splitlines` splits at U+2028 too, with which a string may be sent.
    texts = received.decode().splitlines() if rule == "lines" else [received]
    for text in texts:
        attempt = json.loads(text).get("attempt")
        if attempt:
            answer = {"n": attempt["n"], "output": attempt["params"]}
            if rule == "kind":
                send(progres={"n": attempt["n"], "value": 1})
            for _ in range(2 if rule == "one-answer" else 1):
                send(ok=answer)
sys.exit(3 if rule == "exit-code" else 0)
