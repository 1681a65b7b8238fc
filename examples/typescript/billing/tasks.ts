/**
 * Unique tasks, an outbox, and a limit that adapts itself to a service.
 *
 *     npm ci --prefix ../../../sdk/typescript
 *     npm ci
 *     kafleet dev tasks.ts
 *     kafleet submit refresh '{"customer": 7, "version": 1}'   # several times: one runs, the newest other one is kept
 *     for n in $(seq 400); do echo "{\"order\": $n}"; done | kafleet submit charge -
 *     kafleet types                                            # the limit of `charge`, after some seconds
 *
 * An order and the task that sends its invoice are committed together: see `placeOrder`. On a fleet with Kafka, rows of the
 * table that `kafleet outbox schema | psql "$KAFLEET_POSTGRES"` makes become tasks by
 * `kafleet outbox --postgres "$KAFLEET_POSTGRES"`.
 */

import { setTimeout as sleep } from "node:timers/promises";

import { App, type Handle, Wait } from "kafleet";
import type { ClientBase } from "pg";
import { z } from "zod";

export const app = new App();

/** Computes the balance of a customer. `unique` in kafleet.toml keeps two of one customer apart. */
export const refresh = app.task(
  "refresh",
  { params: z.object({ customer: z.int(), version: z.int() }) },
  async ({ version }) => {
    await sleep(300);
    return version;
  },
);

/** Sends the invoice of an order. */
export const invoice = app.task(
  "invoice",
  { params: z.object({ order: z.int() }) },
  ({ order }) => `invoice of the order ${order}`,
);

/** Creates an order and the task that sends its invoice: both are there after the commit of the caller, or neither is. */
export async function placeOrder(
  client: ClientBase,
  customer: number,
): Promise<Handle<string>> {
  const { rows } = await client.query<{ id: number }>(
    "INSERT INTO orders (customer) VALUES ($1) RETURNING id",
    [customer],
  );
  const order = rows[0]!.id;
  return invoice.submitIn(
    client,
    { order },
    { id: `invoice-${order}`, key: `customer-${customer}` },
  );
}

/** Service that takes few calls at once and refuses the others. Here it is a part of the process. */
export const payments = {
  limit: 1,
  running: 0,
  async charge(order: number): Promise<string> {
    if (this.running >= this.limit)
      throw new Wait("the payment service is busy", {
        after: "100ms",
        kind: "overloaded",
      });
    this.running += 1;
    await sleep(100).finally(() => (this.running -= 1));
    return `charged ${order}`;
  },
};

/** Charges an order. The fleet learns how many calls the service takes, from the attempts that end as `overloaded`. */
export const charge = app.task(
  "charge",
  { params: z.object({ order: z.int() }), adaptive: { min: 1 } },
  ({ order }) => payments.charge(order),
);
