/** Tests of the example: a fleet for unique tasks and the adaptive limit, and a real Postgres for the outbox. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Handle } from "kafleet";
import { type Fleet, fleet, trial } from "kafleet/testing";
import pg from "pg";

import {
  app,
  charge,
  invoice,
  payments,
  placeOrder,
  refresh,
} from "./tasks.ts";

const PATIENCE = { timeout: "60s" } as const;
const POSTGRES = process.env["KAFLEET_TEST_POSTGRES"] ?? "";
const isLeftOut = POSTGRES === "" || POSTGRES === "none";

let running: Fleet;
before(async () => {
  running = await fleet({ target: "tasks.ts", cwd: import.meta.dirname });
});
after(() => running?.stop());

test("refreshes of a customer are unique", async () => {
  // The first one is open while its type is paused.
  const reason = "a test";
  await app.client.request("POST", "/v1/types/refresh/pause", { reason });
  const handles = [];
  for (const version of [1, 2, 3, 4, 5])
    handles.push(await refresh.submit({ customer: 7, version }));
  const verdicts = handles.map(({ verdict }) => verdict);
  assert.deepEqual(verdicts, ["started", "kept", "kept", "kept", "kept"]);
  const [first, kept] = handles;
  assert.equal(new Set(handles.slice(1).map(({ id }) => id)).size, 1);
  await app.client.request("POST", "/v1/types/refresh/resume");
  assert.equal(await first!.result(PATIENCE), 1);
  assert.equal(await kept!.result(PATIENCE), 5);
  const other = await refresh.submit({ customer: 8, version: 1 });
  assert.equal(other.verdict, "started");
});

test("all charges succeed until the limit is cut", async () => {
  const deadline = performance.now() + 60_000;
  const orders = Array.from({ length: 50 }, (_, order) => order);
  for (;;) {
    const found = (await app.types()).find(({ type }) => type === "charge");
    const { adaptive } = found as { adaptive?: { cut_at: string | null } };
    if (adaptive?.cut_at) break;
    assert.ok(performance.now() < deadline, JSON.stringify(adaptive));
    const handles = await app.submitMany(
      orders.map((order) => charge.call({ order })),
    );
    for (const [order, handle] of handles.entries()) {
      assert.ok(handle instanceof Handle);
      assert.equal(await handle.result(PATIENCE), `charged ${order}`);
    }
  }
});

test("a busy service is a wait", async () => {
  payments.running = payments.limit;
  const { failure } = await trial(charge, { order: 1 });
  payments.running = 0;
  assert.deepEqual([failure?.outcome, failure?.kind], ["wait", "overloaded"]);
});

const skip = isLeftOut && "KAFLEET_TEST_POSTGRES is not set, or none";
test("an invoice is committed with its order", { skip }, async () => {
  const client = new pg.Client({ connectionString: POSTGRES });
  await client.connect();
  try {
    await client.query(
      "CREATE TEMPORARY TABLE kafleet_outbox (id text, type text, key text, params json, fields json)",
    );
    await client.query(
      "CREATE TEMPORARY TABLE orders (id int GENERATED ALWAYS AS IDENTITY, customer int)",
    );
    await client.query("BEGIN");
    await placeOrder(client, 7);
    await client.query("ROLLBACK");
    await client.query("BEGIN");
    const { id } = await placeOrder(client, 8);
    await client.query("COMMIT");
    const orders = await client.query("SELECT customer FROM orders");
    assert.deepEqual(orders.rows, [{ customer: 8 }]);
    const { rows } = await client.query(
      "SELECT id, type, key, params FROM kafleet_outbox",
    );
    const params = { order: 2 };
    assert.deepEqual(rows, [
      { id, type: "invoice", key: "customer-8", params },
    ]);
    const run = await trial(invoice, params);
    assert.equal(run.output, "invoice of the order 2");
  } finally {
    await client.end();
  }
});
