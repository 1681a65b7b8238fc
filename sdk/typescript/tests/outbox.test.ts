/** Submission of tasks in transactions: the statement, and what a driver gets. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { App, outboxStatement } from "../src/index.ts";

const app = new App();
const invoice = app.task("invoice", async (_: { order: number }) => "sent");

describe("outbox", () => {
  test("statement has SQL and values", () => {
    const call = invoice.call({ order: 42 }, { id: "invoice-42", key: "customer-7", tags: ["a"] });
    const { id, sql, values } = outboxStatement(call);
    const places = "$1, $2, $3, CAST($4 AS json), CAST($5 AS json)";
    assert.equal(sql, `INSERT INTO kafleet_outbox (id, type, key, params, fields) VALUES (${places})`);
    assert.equal(id, "invoice-42");
    assert.deepEqual(values, ["invoice-42", "invoice", "customer-7", '{"order":42}', '{"tags":["a"]}']);
  });

  test("id is made, and absent columns are null", () => {
    const [first, second] = [1, 2].map((order) => outboxStatement(invoice.call({ order })));
    assert.match(first!.id, /^[0-9a-f]{8}-[0-9a-f]{4}-7/);
    assert.notEqual(first!.id, second!.id);
    assert.deepEqual(first!.values.slice(2), [null, '{"order":1}', null]);
  });

  test("MySQL has quotes and no nulls", () => {
    const { sql, values } = outboxStatement(invoice.call({ order: 1 }, { id: "a" }), "mysql");
    assert.equal(sql, "INSERT INTO kafleet_outbox (`id`, `type`, `key`, `params`, `fields`) VALUES (?, ?, ?, ?, ?)");
    assert.deepEqual(values, ["a", "invoice", "a", '{"order":1}', "{}"]);
  });

  test("task is inserted by the client of the transaction", async () => {
    const seen: unknown[] = [];
    const client = { query: async (...given: unknown[]) => void seen.push(given) };
    const handle = await invoice.submitIn(client, { order: 1 }, { id: "a" });
    assert.equal(handle.id, "a");
    assert.deepEqual((seen[0] as unknown[])[1], ["a", "invoice", null, '{"order":1}', null]);
  });

  test("error of the transaction is passed on, and what is no client is refused", async () => {
    const failing = { query: () => Promise.reject(new Error("aborted")) };
    await assert.rejects(invoice.submitIn(failing, { order: 1 }), /aborted/);
    await assert.rejects(
      invoice.submitIn({} as never, { order: 1 }),
      /has no method `query`; hint: give a client of node-postgres/,
    );
  });
});
