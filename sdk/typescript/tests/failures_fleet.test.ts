/** Failures on a real fleet: what the log of the task has, and which errors are retried. */

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { type Handle, TaskFailed } from "kafleet";
import { type Fleet, fleet } from "kafleet/testing";

import * as tasks from "./apps/failing.ts";
import { APPS, newFile, until } from "./driver.ts";

const PATIENCE = { timeout: "60s" } as const;

// Below this folder, so that the packages are found.
const folder = mkdtempSync(join(APPS, ".program-"));
let running: Fleet;
before(async () => {
  // On a busy machine the stack of a blocked attempt may take longer than the default, after which its process is killed.
  writeFileSync(join(folder, "kafleet.toml"), '[worker]\ngrace = "60s"\n');
  running = await fleet({ target: "../failing.ts", cwd: folder });
});
after(async () => {
  await running?.stop();
  rmSync(folder, { recursive: true });
});

/** Waits for a line of the log of a task, and returns the log. */
async function logWith(handle: Handle, line: RegExp): Promise<string> {
  let log = "";
  await until(async () => {
    const response = await fetch(`${running.api}/v1/tasks/${handle.id}/log`, { headers: { accept: "text/plain" } });
    log = await response.text();
    return line.test(log);
  }, `${line} in the log`);
  return log;
}

test("log of a timeout has the stack of an attempt that blocks the event loop", async () => {
  const file = newFile();
  const handle = await tasks.blocksFirst.submit({ file }, { timeout: "300ms", retries: 0 });
  assert.match(
    await logWith(handle, /blocked here/),
    /timeout of \d+ ms: the event loop is blocked here\n.* at compute \(.*failing\.ts/,
  );
  writeFileSync(file, "");
  await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => error.kind === "timeout");
});

test("log of a timeout has the place where an attempt waits", async () => {
  // Long enough for the handler to begin: a cancel that comes before it knows no place.
  const handle = await tasks.waits.submit(undefined, { timeout: "900ms", retries: 0 });
  await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => error.kind === "timeout");
  assert.match(await logWith(handle, /timeout of/), /timeout of \d+ ms: .*last passed on here\n.*failing\.ts:\d+/);
});

test("last output of a crash has no frames of Node", async () => {
  const handle = await tasks.aborts.submit(undefined, { retries: 0 });
  await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => {
    const [, output = ""] = /; last output: ([^]*?)(\nlog of |$)/.exec(error.message) ?? [];
    assert.match(output, /^1: .*failing\.ts:\d+:\d+\)?$/m);
    assert.doesNotMatch(output, /node:|0x/);
    return error.kind === "crashed";
  });
});

describe("class of errors that a policy lists", () => {
  for (const [others, task] of Object.entries(tasks.strict)) {
    test(`is retried beside ${others}, as its subclasses are`, async () => {
      for (const error of ["busy", "very busy"]) assert.equal(await task.run({ error }), 2, error);
      const handle = await task.submit({ error: "other" });
      if (others === "skipped errors") assert.equal(await handle.result(PATIENCE), null);
      else await assert.rejects(handle.result(PATIENCE), TaskFailed);
      assert.equal((await handle.status()).attempt, 1);
    });
  }

  test("is final beside any other kind, as its subclasses are", async () => {
    assert.equal(await tasks.lenient.run({ error: "other" }), 2);
    for (const error of ["busy", "very busy"]) {
      const handle = await tasks.lenient.submit({ error });
      await assert.rejects(handle.result(PATIENCE), TaskFailed);
      assert.equal((await handle.status()).attempt, 1, error);
    }
  });
});
