/** Tests of the task types: attempts and a tree in this process, and a fleet in memory. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { fleet, trial } from "kafleet/testing";

import { order, pack } from "./tasks.ts";

const params = { customer: "ada", items: ["tea", "cups"] };

test("order spawns a task for each item", async () => {
  const run = await trial(order, params);
  assert.equal(run.output, 2);
  assert.deepEqual(
    run.children.map((child) => child.name),
    ["tea", "cups"],
  );
});

test("item is packed in the second attempt", async () => {
  const first = await trial(pack, { item: "tea" });
  assert.equal(first.failure?.message, "the warehouse does not answer");
  const second = await trial(pack, { item: "tea" }, { number: 2 });
  assert.equal(second.output, 450);
  assert.deepEqual(second.log, ["packing tea"]);
});

test("unknown item is not retried", async () => {
  const { failure } = await trial(pack, { item: "coffee" });
  assert.deepEqual([failure?.outcome, failure?.kind], ["fail", "unknown_item"]);
});

test("order ends with a receipt", async () => {
  const tree = await trial.tree(order, params);
  assert.equal(tree.finalOutput, "ada pays 16.50");
  assert.ok(tree.elapsedMs >= 1000, "the backoff before the second attempts");
});

test("order runs on a fleet", async (t) => {
  const running = await fleet({
    target: "tasks.ts",
    cwd: import.meta.dirname,
  });
  t.after(() => running.stop());
  const handle = await order.submit(params);
  assert.equal(await handle.result({ timeout: "60s" }), 2);
  assert.equal(await handle.finalResult({ timeout: "60s" }), "ada pays 16.50");
});
