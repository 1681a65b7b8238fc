/**
 * Submission in transactions of a real Postgres with node-postgres: the row is there if and when the transaction commits.
 * `tests/typescript` starts the server; KAFLEET_TEST_POSTGRES=none leaves these tests out.
 */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { after, before, beforeEach, describe, test } from "node:test";

import { App } from "kafleet";
import pg from "pg";

const { KAFLEET_TEST_POSTGRES: server = "", KAFLEET_REQUIRE_SERVICES: isRequired, KAFLEET_BINARY: program } = process.env;
const isLeftOut = server === "none" || (!server && !isRequired);

const app = new App();
const invoice = app.task("invoice", async (_: { order: number }) => "sent");
const DROPPED = { id: "dropped" };
const KEPT = { id: "kept", key: "customer-7", tags: ["x"] };
const EXPECTED = [{ id: "kept", type: "invoice", key: "customer-7", params: { order: 2 }, fields: { tags: ["x"] } }];

describe("outbox in Postgres", { skip: isLeftOut && "KAFLEET_TEST_POSTGRES is not set, or none" }, () => {
  const name = `drivers_${randomUUID().replaceAll("-", "")}`;
  const url = server.replace(/[^/]+$/, name);
  let pool: pg.Pool;

  before(async () => {
    await onServer(`CREATE DATABASE ${name}`);
    pool = new pg.Pool({ connectionString: url });
    await pool.query(execFileSync(program!, ["outbox", "schema"], { encoding: "utf8" }));
  });
  beforeEach(() => pool.query("TRUNCATE kafleet_outbox"));
  after(async () => {
    await pool.end();
    await onServer(`DROP DATABASE ${name} WITH (FORCE)`);
  });

  /** Returns the committed rows, as another connection sees them. */
  const rows = async () => (await pool.query("SELECT id, type, key, params, fields FROM kafleet_outbox ORDER BY seq")).rows;

  async function submitsWith(client: pg.ClientBase): Promise<void> {
    await client.query("BEGIN");
    await invoice.submitIn(client, { order: 1 }, DROPPED);
    await client.query("ROLLBACK");
    await client.query("BEGIN");
    const handle = await invoice.submitIn(client, { order: 2 }, KEPT);
    assert.deepEqual([handle.id, await rows()], ["kept", []]);
    await client.query("COMMIT");
    assert.deepEqual(await rows(), EXPECTED);
  }

  test("a client commits its tasks", async () => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    await submitsWith(client).finally(() => client.end());
  });

  test("a client of a pool commits its tasks", async () => {
    const client = await pool.connect();
    await submitsWith(client).finally(() => client.release());
  });

  test("an id is made where none is given", async () => {
    const handle = await invoice.submitIn(pool, { order: 1 });
    assert.deepEqual(await rows(), [{ id: handle.id, type: "invoice", key: null, params: { order: 1 }, fields: null }]);
  });

  test("a failed transaction submits nothing", async () => {
    const client = await pool.connect();
    await client.query("BEGIN");
    await invoice.submitIn(client, { order: 1 });
    await assert.rejects(client.query("SELECT 1 / 0"), /division by zero/);
    await assert.rejects(invoice.submitIn(client, { order: 2 }), /current transaction is aborted/);
    await client.query("ROLLBACK");
    client.release();
    assert.deepEqual(await rows(), []);
  });
});

async function onServer(statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: server });
  await client.connect();
  await client.query(statement).finally(() => client.end());
}
