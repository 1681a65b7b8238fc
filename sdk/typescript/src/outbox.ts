/**
 * Tasks that are submitted in a transaction of a database: as rows of the outbox, which `kafleet outbox` publishes. No driver is
 * imported: the statement is a text with values.
 */

import type { Call } from "./canvas.ts";
import { identified } from "./ids.ts";
import { encode } from "./json.ts";
import { textOf } from "./shown.ts";

/** Database with the outbox. */
export type Dialect = "postgres" | "mysql";

/** Statement that submits a task in the transaction in which it is executed. */
export interface OutboxStatement {
  /** Id of the task. */
  id: string;
  /** With the placeholders of the dialect: `$1` or `?`. */
  sql: string;
  values: (string | null)[];
}

/** Client of a database in a transaction, such as a `Client` or `PoolClient` of node-postgres, or a connection of mysql2. */
export interface Transaction {
  query(sql: string, values: (string | null)[]): PromiseLike<unknown>;
}

const COLUMNS = ["id", "type", "key", "params", "fields"];

/** Returns the statement for a call such as `invoice.call({ order: 42 })`, for drivers that `submitIn` does not fit. */
export function outboxStatement(call: Call<unknown, unknown>, dialect: Dialect = "postgres"): OutboxStatement {
  const document = call.document("submit");
  const id = identified(document);
  const { type, params, key, ...fields } = document;
  delete fields["id"];
  const isMysql = dialect === "mysql";
  // Debezium takes the key as it is, and headers are not null.
  const ofKey = typeof key === "string" ? key : isMysql ? id : null;
  const ofFields = isMysql || Object.keys(fields).length > 0 ? encode(fields) : null;
  const columns = COLUMNS.map((name) => (isMysql ? `\`${name}\`` : name)).join(", ");
  const places = isMysql ? "?, ?, ?, ?, ?" : "$1, $2, $3, CAST($4 AS json), CAST($5 AS json)";
  const sql = `INSERT INTO kafleet_outbox (${columns}) VALUES (${places})`;
  return { id, sql, values: [id, String(type), ofKey, encode(params), ofFields] };
}

/** Executes the statement in a transaction, and returns the id of the task. */
export async function insert(tx: Transaction, call: Call<unknown, unknown>, dialect: Dialect): Promise<string> {
  if (typeof (tx as Partial<Transaction> | undefined)?.query !== "function") {
    const hint = "hint: give a client of node-postgres, or execute `outboxStatement(task.call(…))` yourself";
    throw new TypeError(`${textOf(tx)} has no method \`query\`; ${hint}`);
  }
  const { id, sql, values } = outboxStatement(call, dialect);
  await tx.query(sql, values);
  return id;
}
