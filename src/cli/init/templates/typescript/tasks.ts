/** Task types of this project: an order is packed in parallel, and gets a receipt. */

import { App, Fail } from "kafleet";
import { z } from "zod";

export const app = new App();

/** Prices in cents. */
const PRICES = new Map([
  ["cups", 1200],
  ["tea", 450],
]);

/** Packs each item in a task of its own, and has a receipt written at the end. */
export const order = app.task(
  "order",
  { params: z.object({ customer: z.string(), items: z.array(z.string()) }) },
  async ({ customer, items }, cx) => {
    for (const [number, item] of items.entries()) {
      await cx.spawn(pack, { item }, { id: `${number}`, name: item });
    }
    cx.then(receipt, { customer });
    return items.length;
  },
);

/** Packs one item and returns its price. */
export const pack = app.task(
  "pack",
  {
    params: z.object({ item: z.string() }),
    output: z.int(),
    retries: 3,
    timeout: "30s",
  },
  ({ item }, cx) => {
    const price = PRICES.get(item);
    // Not retried.
    if (!price) throw new Fail(`there is no ${item}`, { kind: "unknown_item" });
    // Shows a retry: any other error leads to the next attempt, after a second.
    if (cx.number === 1) throw new Error("the warehouse does not answer");
    console.log("packing", item); // Goes to the log of the task.
    return price;
  },
);

/** Adds up the prices, when all items of an order have been packed. */
export const receipt = app.joined(
  "receipt",
  { params: z.object({ customer: z.string() }), results: pack },
  ({ customer }, cx) => {
    const total = cx.results.reduce(
      (sum, { output }) => sum + (output ?? 0),
      0,
    );
    return `${customer} pays ${(total / 100).toFixed(2)}`;
  },
);

/** Reports the stock, on a schedule. */
export const report = app.task("report", () => {
  return `${PRICES.size} items are for sale`;
});

app.schedule("0 7 * * MON-FRI", report, { zone: "Europe/Berlin" });
