/** Handlers of a running fleet in the process of the test. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { after, before, test } from "node:test";

import { App, type TaskFailed } from "kafleet";
import { type Fleet, fleet } from "kafleet/testing";

import * as shop from "./apps/attached.ts";
import { APPS, newFile, until } from "./driver.ts";

const PATIENCE = { timeout: "60s" } as const;

let running: Fleet;
before(async () => {
  running = await fleet({ target: "attached.ts", cwd: APPS, inProcess: shop.app });
});
after(() => running?.stop());

test("mock of the test is seen by the handlers of a tree", async (t) => {
  const sizes = [undefined, 5, 7];
  t.mock.method(shop.services, "sizeOf", (name: string) => {
    const size = sizes.shift();
    if (size === undefined) throw new Error(`\`${name}\` is busy`);
    return size;
  });
  const handle = await shop.album.submit({ names: ["a.jpg", "b.jpg"] });
  assert.equal(await handle.result(PATIENCE), 2);
  assert.equal(await shop.total.handle(`${handle.id}:then`).result(PATIENCE), 12);
  const attempts: number[] = [];
  for await (const child of handle.children()) if (child.type === "measure") attempts.push(child.attempt);
  assert.deepEqual(attempts.sort(), [1, 2], "a retry");
});

test("handler runs in the process of the test", async () => {
  assert.equal(await shop.identity.run(undefined, PATIENCE), process.pid);
});

test("failure has the log of the task", async () => {
  const handle = await shop.measure.submit({ name: "c.jpg" }, { retries: 0 });
  await assert.rejects(handle.result(PATIENCE), /no service has `c\.jpg`\nlog of `.*`:\n {2}measures c\.jpg/);
});

test("attempt has no timeout", async () => {
  const handle = await shop.slow.submit();
  await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => error.kind === "awake");
});

test("reset cancels attempts, and the fleet serves again", async () => {
  const mark = newFile();
  const handle = await shop.waits.submit({ mark });
  await until(async () => (await handle.status()).state === "running", "the attempt starts");
  await running.reset();
  assert.ok(existsSync(mark), "the attempt was cancelled");
  assert.equal(await shop.identity.run(undefined, PATIENCE), process.pid);
});

test("death of the relay cancels attempts, and it is started again", async () => {
  const mark = newFile();
  const handle = await shop.waits.submit({ mark });
  await until(async () => (await handle.status()).state === "running", "the attempt starts");
  for (const pid of relays()) process.kill(pid, "SIGKILL");
  await until(() => existsSync(mark), "the attempt is cancelled");
  // The attempt has failed, or is repeated if the relay was younger than a second.
  await handle.cancel();
  assert.equal(await shop.identity.run(undefined, PATIENCE), process.pid);
});

/** Returns the process ids of the relays of this fleet: grandchildren of this process. */
function relays(): number[] {
  const lines = execFileSync("ps", ["-eo", "pid=,ppid=,args="], { encoding: "utf8" }).split("\n");
  const processes = lines.map((line) => line.trim().split(/\s+/));
  const fleets = processes.filter(([, parent]) => Number(parent) === process.pid).map(([pid]) => pid);
  const attached = processes.filter(([, parent, ...words]) => fleets.includes(parent) && words.includes("attach"));
  return attached.filter(([, , ...words]) => !words.includes("dev")).map(([pid]) => Number(pid));
}

test("app that cannot be served is an error of the test", async () => {
  await assert.rejects(fleet({ inProcess: new App() }), /the app declares no task types/);
  await assert.rejects(fleet({ inProcess: "tasks.ts" as never }), /no `App`; hint: import the app of the tasks/);
  await assert.rejects(fleet({ inProcess: shop.app, command: ["x"] }), /`command` or `inProcess`, not both/);
});
