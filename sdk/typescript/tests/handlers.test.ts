/** Hooks, output, cancels, and unusual results and failures of handlers. */

import assert from "node:assert/strict";
import { existsSync, writeFileSync } from "node:fs";
import { describe, test } from "node:test";

import { type Fields, newFile, until, Worker } from "./driver.ts";

const APP = "mixed.ts";

test("number of slots is 10, or the configured one", async (t) => {
  const worker = await Worker.start(t, APP);
  assert.equal((await worker.welcome())["slots"], 10);
  const other = await Worker.start(t, APP);
  assert.equal((await other.welcome({ slots: 3 }))["slots"], 3);
});

test("ready declares types with schema and policy", async (t) => {
  const worker = await Worker.start(t, APP);
  const { types, responsive } = await worker.welcome({ types: ["checked", "fails"] });
  assert.equal(responsive, true);
  const { params, output } = types[0];
  assert.deepEqual([types[0].name, params.required, output.type], ["checked", ["n"], "string"]);
  const { source, ...declared } = types[1];
  assert.match(source, /^.*mixed\.ts:\d+$/);
  assert.deepEqual(declared, { name: "fails", policy: { fail_on: ["Problem"], retry_on: ["busy", "BadInput"] } });
});

test("hooks run around each attempt in their order", async (t) => {
  const worker = await Worker.ready(t, APP);
  const { lines, output } = await worker.run("state");
  assert.deepEqual(lines, ["outer begins", "inner", "outer ends"]);
  assert.deepEqual(output, ["state", true]);
});

test("hook can translate an error, and fail an attempt before its handler", async (t) => {
  const worker = await Worker.ready(t, APP);
  const { lines, kind, outcome } = await worker.run("state", { fails: true });
  assert.deepEqual([lines, kind, outcome], [["outer begins", "inner", "outer ends"], "translated", "fail"]);
  assert.equal((await worker.run("state", {}, { number: 7 }))["kind"], "refused");
});

test("output goes to the log of the task", async (t) => {
  const worker = await Worker.ready(t, APP);
  const { lines } = await worker.run("log");
  const printed = ["printed line", "error", "later 5", "bytes"];
  assert.deepEqual(lines, ["outer begins", "inner", ...printed, "outer ends", "without an end"]);
  worker.end();
  assert.equal(await worker.exited(0), "entered\nleft\n");
});

test("lines have the stream to which they were written", async (t) => {
  const worker = await Worker.ready(t, APP);
  worker.begin("log");
  const streams = new Map<string, string | undefined>();
  for (let message = await worker.receive(); message!["log"]; message = await worker.receive()) {
    const { lines, stream } = message!["log"];
    for (const line of lines) streams.set(line, stream);
  }
  assert.deepEqual(streams.get("outer begins"), undefined);
  assert.deepEqual([streams.get("printed line"), streams.get("error")], ["stdout", "stderr"]);
  assert.ok(streams.has("without an end"));
});

test("ten attempts run at once and log for themselves", async (t) => {
  const worker = await Worker.ready(t, APP);
  for (let n = 0; n < 10; n++) worker.begin("together", { count: 10 });
  const lines = new Map<number, string[]>();
  for (let answers = 0; answers < 10;) {
    const message = await worker.receive();
    if (message!["ok"]) answers += 1;
    const { n, lines: more } = message!["log"] ?? { n: 0, lines: [] };
    lines.set(n, [...(lines.get(n) ?? []), ...more]);
  }
  for (let n = 1; n <= 10; n++) assert.ok(lines.get(n)!.includes(`attempt ${n}`));
});

test("undeclared type is retried", async (t) => {
  const worker = await Worker.ready(t, APP, { welcome: { types: ["state"] } });
  const { kind, outcome } = await worker.run("log");
  assert.deepEqual([kind, outcome], ["unknown_type", "retry"]);
});

describe("cancel", () => {
  test("ends a handler that passes the signal on", async (t) => {
    const worker = await Worker.ready(t, APP);
    const n = worker.begin("forever");
    await worker.next("heartbeat");
    worker.send("cancel", { n, reason: "timeout" });
    const { outcome, kind, message } = await worker.next("error");
    assert.deepEqual([outcome, kind, message], ["cancelled", "cancelled", "the attempt was cancelled: timeout of 60 s"]);
  });

  test("before the handler asks for the signal ends it too", async (t) => {
    const worker = await Worker.ready(t, APP);
    const n = worker.begin("loops", { file: "/nowhere" });
    worker.send("cancel", { n, reason: "stalled" });
    assert.equal((await worker.next("error"))["message"], "the attempt was cancelled: stalled");
  });

  test("does not discard a result within the grace", async (t) => {
    const worker = await Worker.ready(t, APP);
    const n = worker.begin("forever", { swallow: true });
    await worker.next("heartbeat");
    worker.send("cancel", { n, reason: "cancelled" });
    assert.equal((await worker.next("ok"))["output"], "finished after cancelled");
  });

  test("ends the attempt whose listener throws, and no other", async (t) => {
    const worker = await Worker.ready(t, APP);
    const numbers = [worker.begin("forever"), worker.begin("listener-throws")] as const;
    for (const _ of numbers) await worker.next("heartbeat");
    worker.send("cancel", { n: numbers[1], reason: "cancelled" });
    const { n, kind } = await worker.next("error", "retire");
    assert.deepEqual([n, kind], [numbers[1], "RangeError"]);
    worker.send("cancel", { n: numbers[0], reason: "cancelled" });
    assert.equal((await worker.next("error"))["n"], numbers[0]);
  });

  test("of some attempts leaves the others alone", async (t) => {
    const worker = await Worker.ready(t, APP);
    const numbers = Array.from({ length: 10 }, () => worker.begin("forever"));
    for (const n of numbers.slice(5)) worker.send("cancel", { n, reason: "cancelled" });
    const ended: unknown[] = [];
    while (ended.length < 5) ended.push((await worker.next("error"))["n"]);
    // In any order: the attempts end independently of each other.
    assert.deepEqual(new Set(ended), new Set(numbers.slice(5)));
    assert.equal((await worker.run("state"))["n"], 11);
  });
});

test("blocked event loop answers pings late", async (t) => {
  const file = newFile();
  const worker = await Worker.ready(t, APP);
  worker.begin("blocked", { file });
  await worker.next("heartbeat");
  await new Promise((resolve) => setTimeout(resolve, 50));
  worker.send("ping", { at: 5 });
  await worker.expectSilence();
  writeFileSync(file, "");
  assert.deepEqual(await worker.next("pong"), { at: 5 });
});

describe("error that nobody catches", () => {
  for (const [type, kind] of [
    ["rejects", "TypeError"],
    ["throws", "SyntaxError"],
  ] as const) {
    test(`ends the attempt of the ${type} handler only`, async (t) => {
      const worker = await Worker.ready(t, APP);
      const other = worker.begin("forever", { swallow: true });
      await worker.next("heartbeat");
      const answer = await worker.run(type);
      assert.deepEqual([answer["outcome"], answer["kind"]], ["retry", kind]);
      worker.send("cancel", { n: other, reason: "cancelled" });
      assert.equal((await worker.next("ok"))["n"], other);
    });
  }

  test("is no error if a handler catches it", async (t) => {
    const worker = await Worker.ready(t, APP);
    assert.equal((await worker.run("rejects", { caught: true }))["output"], "caught");
  });

  test("after the end of its attempt is reported", async (t) => {
    const worker = await Worker.ready(t, APP);
    const file = newFile();
    assert.equal((await worker.run("rejects-later", { file }))["output"], "done");
    await until(() => existsSync(file), "the rejection");
    assert.equal((await worker.run("large", { bytes: 2 }))["output"], "xx");
    worker.end();
    assert.match(await worker.exited(0), /an error after the end of the attempt 1 at `task-1`: Error: too late/);
  });

  test("outside of all attempts lets them end, and the process of some age is replaced", async (t) => {
    const older = "const now = performance.now.bind(performance); performance.now = () => now() + 60_000";
    const worker = await Worker.ready(t, APP, { arguments: ["--import", `data:text/javascript,${older}`] });
    const n = worker.begin("rejects-outside");
    assert.equal((await worker.next("retire"))["reason"], "an error outside of all attempts: Error: outside");
    worker.send("cancel", { n, reason: "cancelled" });
    assert.equal((await worker.next("ok"))["output"], "finished");
    worker.end();
    const output = await worker.exited(0);
    assert.match(output, /an error outside of all attempts; the process is replaced .*: Error: outside\n +at .*mixed\.ts/);
    // A hundred at a time, every few milliseconds.
    assert.equal(output.match(/outside of all attempts/g)!.length, 20);
    assert.match(output, /further errors of this minute are counted only/);
  });

  test("outside of all attempts does not replace a process that has just started", async (t) => {
    const worker = await Worker.ready(t, APP);
    const n = worker.begin("rejects-outside");
    await worker.expectSilence();
    worker.send("cancel", { n, reason: "cancelled" });
    assert.equal((await worker.next("ok", "retire"))["output"], "finished");
  });
});

test("results without JSON form fail", async (t) => {
  const worker = await Worker.ready(t, APP, { welcome: { limits: { output: 1000 } } });
  for (const kind of ["nan", "map"]) {
    const { outcome, kind: found } = await worker.run("values", { kind });
    assert.deepEqual([outcome, found], ["fail", "bad_output"], kind);
  }
  assert.equal((await worker.run("values", { kind: "undefined" }))["output"], null);
  assert.equal((await worker.run("values", { kind: "bigint" }))["output"], 5);
  assert.equal((await worker.run("large", { bytes: 1000 }))["kind"], "result_too_large");
  assert.equal((await worker.run("large", { bytes: 998 }))["output"].length, 998);
});

test("params and results are checked against their schemas", async (t) => {
  const worker = await Worker.ready(t, APP);
  assert.equal((await worker.run("checked", { n: 1 }))["output"], "ok");
  const bad = await worker.run("checked", { n: "one" });
  assert.deepEqual([bad["outcome"], bad["kind"]], ["dead", "bad_params"]);
  assert.match(bad["message"], /the params do not fit the type: \/n: /);
  assert.equal((await worker.run("checked", { n: 5 }))["kind"], "bad_output");
});

test("class of an error decides the outcome", async (t) => {
  const worker = await Worker.ready(t, APP);
  const outcome = async (how: string): Promise<Fields> => {
    const { outcome, kind, message } = await worker.run("fails", { how });
    return [outcome, kind, message];
  };
  assert.deepEqual(await outcome("problem"), ["fail", "Problem", "p: the cause"]);
  assert.deepEqual(await outcome("bad input"), ["retry", "BadInput", "b"]);
  assert.deepEqual(await outcome("unsuccessful"), ["fail", "unsuccessful", "no such customer"]);
  assert.deepEqual(await outcome("dead"), ["dead", "broken_data", "d"]);
  assert.deepEqual(await outcome("outcome"), ["fail", "TooSmall", "too small"]);
  assert.deepEqual(await outcome("text"), ["retry", "error", "a text"]);
});

test("stack has the frames of the handler, and the cause", async (t) => {
  const worker = await Worker.ready(t, APP);
  const { stack } = await worker.run("fails", { how: "problem" });
  assert.match(stack, /apps\/mixed\.ts:\d+/);
  assert.match(stack, /caused by Error: the cause/);
  assert.doesNotMatch(stack, /dist\/|node:/);
});

test("children are published at once when asked, and the call fails at the end of the stream", async (t) => {
  const worker = await Worker.ready(t, APP);
  worker.begin("children");
  const { call, tasks } = await worker.next("spawn");
  assert.equal(tasks.length, 3);
  worker.send("reply", { call, ids: ["a", "b", "c"] });
  assert.equal((await worker.next("ok"))["output"], 3);
  worker.begin("children");
  await worker.next("spawn");
  worker.end();
  const { outcome, kind } = await worker.next("error");
  assert.deepEqual([outcome, kind], ["retry", "shutdown"]);
  await worker.exited(0);
});

test("number of unanswered calls is limited", async (t) => {
  const worker = await Worker.ready(t, APP, { welcome: { limits: { calls: 2 } } });
  for (let n = 0; n < 3; n++) worker.begin("children");
  const first = await worker.next("spawn");
  await worker.next("spawn");
  await worker.expectSilence();
  worker.send("reply", { call: first["call"], ids: ["a"] });
  await worker.next("spawn");
});

test("child processes cannot read the socket, and process.stdin is empty", async (t) => {
  const worker = await Worker.ready(t, APP);
  assert.equal((await worker.run("stdin"))["output"], true);
  assert.equal((await worker.run("imports-kafleet"))["output"], "imported");
});

test("context that is awaited names the mistake", async (t) => {
  const worker = await Worker.ready(t, APP);
  assert.match((await worker.run("awaits-context"))["message"], /a context is not a promise/);
});
