/** What people see of failures: where an attempt was at its timeout, soft timeouts, and what was thrown. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { before, describe, test } from "node:test";

import { type Fields, newFile, Worker } from "./driver.ts";

const APP = "failing.ts";

/** Runs an attempt until its first log lines after the start of a limit. */
async function logOf(worker: Worker): Promise<string> {
  return ((await worker.next("log"))["lines"] as string[]).join("\n");
}

describe("timeout", () => {
  test("of an attempt that blocks the event loop shows the stack at that moment, while it is blocked", async (t) => {
    const worker = await Worker.ready(t, APP, { welcome: { dev: true } });
    // Again in the same process.
    for (const _ of [1, 2]) {
      const file = newFile();
      worker.begin("blocks", { file }, { left_ms: 100 });
      const log = await logOf(worker);
      assert.match(
        log,
        /^timeout of 100 ms: the event loop is blocked here\n(.*\n)* +at compute \(file:.*failing\.ts:\d+:\d+\)\n/,
      );
      assert.doesNotMatch(log, /node:|dist\//);
      writeFileSync(file, "");
      assert.equal((await worker.next("ok"))["output"], true);
    }
    worker.end();
    assert.equal(await worker.exited(0), "");
  });

  test("of an attempt that blocked the event loop counts from the timeout, not from when the block was found", async (t) => {
    const worker = await Worker.ready(t, APP, { welcome: { dev: true } });
    const { lines } = await worker.run("computes", { ms: 2500 }, { left_ms: 100 });
    const [, seconds] = /^stopped ([\d.]+) s later$/.exec(lines.at(-1)!) ?? [];
    assert.ok(Number(seconds) >= 2.3, lines.join("\n"));
  });

  test("of an attempt that computes within its timeout is not looked for", async (t) => {
    const worker = await Worker.ready(t, APP, { welcome: { dev: true } });
    assert.deepEqual((await worker.run("computes", { ms: 2500 })).lines, []);
  });

  test("of an attempt is not looked for while a debugger can be attached", async (t) => {
    const worker = await Worker.ready(t, APP, { arguments: ["--inspect=127.0.0.1:0"], welcome: { dev: true } });
    assert.deepEqual((await worker.run("computes", { ms: 2500 }, { left_ms: 100 })).lines, []);
  });

  test("of an attempt that waits names the place where it passed its signal on", async (t) => {
    const worker = await Worker.ready(t, APP);
    const n = worker.begin("waits", {}, { left_ms: 6000 });
    await worker.run("throws", { what: "text" });
    worker.send("cancel", { n, reason: "timeout" });
    const { message, stack: log } = await worker.next("error");
    assert.equal(message, "the attempt was cancelled: timeout of 6 s");
    assert.match(log, /^timeout of 6 s: Error: `cx\.signal` was last passed on here\n +at .*failing\.ts:\d+:\d+/);
    assert.doesNotMatch(log, /node:|dist\//);
  });

  test("of an attempt that waits without the signal says how to name the place, and its end says when", async (t) => {
    const worker = await Worker.ready(t, APP);
    const n = worker.begin("ignores-its-cancel", {}, { left_ms: 6000 });
    worker.send("cancel", { n, reason: "timeout" });
    assert.match(await logOf(worker), /^timeout of 6 s: the handler waits, .*; hint: pass `cx\.signal` to what it waits for/);
    assert.match(await logOf(worker), /^stopped \d+ ms later$/);
    assert.equal((await worker.next("ok"))["output"], "late");
  });
});

describe("soft timeout", () => {
  const soft = async (t: Parameters<typeof Worker.ready>[0], how: string): Promise<Fields> => {
    const worker = await Worker.ready(t, APP);
    return worker.run("soft", { how });
  };

  test("does not concern an attempt that ends before it", async (t) => {
    assert.equal((await soft(t, "quick"))["output"], "quick");
  });

  test("ends a wait with the signal, and is the kind of the failure", async (t) => {
    for (const how of ["unhandled", "reason"]) {
      const { outcome, kind, message } = await soft(t, how);
      assert.deepEqual([outcome, kind, message], ["retry", "SoftTimeout", "soft timeout of 50 ms"], how);
    }
  });

  test("is thrown by the next check, once", async (t) => {
    for (const how of ["check", "wait"]) {
      const { output } = await soft(t, how);
      assert.deepEqual(output, ["soft timeout of 50 ms", false, how === "wait"], how);
    }
  });

  test("is followed by the timeout", async (t) => {
    const worker = await Worker.ready(t, APP);
    const n = worker.begin("soft", { how: "check" });
    worker.send("cancel", { n, reason: "timeout" });
    assert.equal((await worker.next("error"))["kind"], "cancelled");
  });
});

describe("what a handler throws is shown", () => {
  let url = "";
  before(async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
    server.close();
    await once(server, "close");
  });

  const noError = 'which is no error; hint: write `throw new Error("…")`';
  for (const [what, kind, message] of [
    ["null", "error", `\`null\` was thrown, ${noError}`],
    ["undefined", "error", `\`undefined\` was thrown, ${noError}`],
    ["text", "error", "a text"],
    ["empty text", "error", `\`""\` was thrown, ${noError}`],
    ["object", "error", "{ code: 5, details: 'no such customer' }"],
    ["cause", "Error", "cannot load: disk full: sector 5"],
    ["cause that is named already", "Error", "cannot load: disk full"],
    ["circle", "Error", "around: and around"],
    ["aggregate", "AggregateError", "all failed: a; b; c"],
    ["aggregate without a message", "AggregateError", "a; b"],
    ["fetch", "TypeError", /^fetch failed: connect ECONNREFUSED 127\.0\.0\.1:\d+$/],
    ["several requests", "AggregateError", /^All promises were rejected: fetch failed: connect ECONNREFUSED 127.*; no answer$/],
  ] as const) {
    test(what, async (t) => {
      const answer = await (await Worker.ready(t, APP)).run("throws", { what, url });
      assert.equal(answer["kind"], kind);
      if (typeof message === "string") assert.equal(answer["message"], message);
      else assert.match(answer["message"], message);
    });
  }
});
