/** The SDK on a real fleet: what a user of the UI or the client sees. */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after, before, test } from "node:test";

import { Invalid, TaskFailed } from "kafleet";
import { type Fleet, fleet } from "kafleet/testing";

import * as tasks from "./apps/fleet_app.ts";
import { APPS, newFile, until } from "./driver.ts";

const PATIENCE = { timeout: "60s" } as const;

let running: Fleet;
before(async () => {
  running = await fleet({ target: "fleet_app.ts", cwd: APPS });
});
after(() => running?.stop());

test("running attempt is cancelled", async () => {
  const file = newFile();
  const handle = await tasks.waits.submit({ mark: file });
  await until(() => existsSync(file), "the attempt starts");
  await handle.cancel("not needed");
  await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => error.state === "cancelled");
});

test("attempt is stopped at its timeout", async () => {
  const handle = await tasks.waits.submit({ mark: newFile() }, { timeout: "200ms" });
  await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => error.state === "failed" && error.kind === "timeout");
});

test("death of the process uses one attempt", async () => {
  const handle = await tasks.diesOnce.submit();
  assert.equal(await handle.result(PATIENCE), 2);
  assert.equal((await handle.status()).attempt, 2);
});

test("retried attempt has the same idempotency key", async () => {
  const handle = await tasks.retries.submit();
  assert.equal(await handle.result(PATIENCE), `${handle.id}/1`);
});

test("output of the handler is stored with the task", async () => {
  const handle = await tasks.reports.submit();
  assert.equal(await handle.result(PATIENCE), null);
  assert.deepEqual((await handle.status()).progress, { done: 1 });
  const log = await (await fetch(`${running.api}/v1/tasks/${handle.id}/log`)).json();
  assert.deepEqual(
    (log as { lines: { text: string; stream: string | null }[] }).lines.map(({ text, stream }) => [text, stream]),
    [["printed", "stdout"]],
  );
  const note = await fetch(`${running.api}/v1/tasks/${handle.id}/attachments/note.txt`);
  assert.equal(await note.text(), "hello");
});

test("failure of a child is named as the reason", async () => {
  const handle = await tasks.parentOfFailed.submit();
  await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => {
    const place = `because of its descendant \`${handle.id}:child\`: error: no such picture`;
    assert.equal(error.message, `the task \`${handle.id}\` ended as failed ${place}`);
    return error.state === "failed" && error.kind === "error" && error.descendant === `${handle.id}:child`;
  });
  const child = tasks.fails.handle(`${handle.id}:child`);
  await assert.rejects(child.result(PATIENCE), /ended as failed: error: no such picture/);
});

for (const now of [false, true]) {
  test(`continuation has the results of the children, published ${now ? "at once" : "with the result"}`, async () => {
    const handle = await tasks.parent.submit({ now });
    assert.deepEqual(await handle.result(PATIENCE), now ? [`${handle.id}:0`, `${handle.id}:1`] : []);
    assert.equal(await tasks.total.handle(`${handle.id}:then`).result(PATIENCE), now ? 60 : 50);
  });
}

test("attempt can submit tasks of the same fleet, but not wait for them", async () => {
  const { id, waited } = await tasks.submits.run();
  assert.equal(await tasks.leaf.handle(id).result(PATIENCE), 5);
  assert.match(String(waited), /an attempt must not wait for another task.*cx\.then/);
});

test("params are checked when a task is submitted", async () => {
  await assert.rejects(tasks.app.remote("leaf").submit({ n: "five" }), (error: Invalid) => {
    assert.ok(error instanceof Invalid);
    assert.deepEqual([error.code, error.pointer], ["schema", "/params/n"]);
    return true;
  });
});

test("results of bundled tasks are typed", async () => {
  const handle = await tasks.resize.submit({ path: "a.jpg", width: 5 }, { tags: ["shop"] });
  assert.deepEqual(await handle.result(PATIENCE), { path: "a.jpg at 5", made: new Date("2026-01-31") });
  const { type, name, tags } = await handle.status();
  assert.deepEqual([type, name, tags], ["small", "resize", ["resize", "shop"]]);
  const thumbs = [{ path: "a.jpg", parts: [{ path: "b.jpg", parts: [] }] }];
  assert.deepEqual(await tasks.copies.run(thumbs), thumbs);
});

test("bundled continuation has the results of bundled children", async () => {
  const handle = await tasks.bundledAlbum.submit({ paths: ["a.jpg", "b.jpg"] });
  await handle.result(PATIENCE);
  const sheet = tasks.contactSheet.handle(`${handle.id}:then`);
  assert.deepEqual(await sheet.result(PATIENCE), ["summer", "a.jpg at 200, 2026", "b.jpg at 200, 2026"]);
  assert.equal((await sheet.status())["name"], "contact-sheet");
});

test("unknown task of a bundle waits for new code and is shown", async () => {
  const handle = await tasks.app.remote("small").submit({ task: "rezise", params: { path: 5 } });
  for await (const { waits, attempt, error } of handle.watch(PATIENCE)) {
    if (Number(waits ?? 0) < 2) continue;
    assert.equal(attempt, 0, "the attempts are not counted");
    const { kind, message } = error as { kind: string; message: string };
    assert.equal(kind, "unknown_task");
    assert.match(message, /the bundle `small` has no task `rezise`, but `resize`, `copy-all`, /);
    break;
  }
  await handle.cancel();
});

for (const error of ["range", "type"]) {
  test(`an error of class ${error} of a bundled task is not retried`, async () => {
    const handle = await tasks.divides.submit({ error });
    await assert.rejects(handle.result(PATIENCE), TaskFailed);
    assert.equal((await handle.status()).attempt, 1);
  });
}

const wrong: [unknown, string][] = [
  [{ task: "resize", params: { path: 5 } }, "/params/params/path"],
  [{ task: "copy-all", params: [{ path: "a", parts: [{ path: "b" }] }] }, "/params/params/0/parts/0"],
  [{ task: "resize" }, "/params"],
  [{ params: {} }, "/params"],
];
for (const [params, pointer] of wrong) {
  test(`params ${JSON.stringify(params)} of a bundled task are refused when it is submitted`, async () => {
    await assert.rejects(tasks.app.remote("small").submit(params), (error: Invalid) => {
      assert.deepEqual([error.code, error.pointer], ["schema", pointer]);
      return true;
    });
  });
}

test("schema of a bundle of two hundred tasks is known to the api", async () => {
  const many = tasks.app.remote("many");
  const params = { recipient: "a@example.org", subject: "hello" };
  await assert.rejects(many.submit({ task: "task-199", params: { ...params, subject: 1 } }), (error: Invalid) => {
    return error.pointer === "/params/params/subject";
  });
  assert.equal(await many.run({ task: "task-199", params }), 199);
});

test("results of many tasks are awaited together", async () => {
  const numbers = Array.from({ length: 30 }, (_, n) => n);
  assert.deepEqual(await Promise.all(numbers.map((n) => tasks.leaf.run({ n }))), numbers);
});
