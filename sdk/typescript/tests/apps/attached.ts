/** Test app whose handlers run in the process of a test. */

import { writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { App, Fail, type Joined } from "kafleet";

export const app = new App();

/** Services that tests replace. */
export const services = {
  sizeOf(name: string): number {
    throw new Error(`no service has \`${name}\``);
  },
};

export const measure = app.task(
  "measure",
  { retries: 3, minBackoff: "10ms", maxBackoff: "20ms" },
  ({ name }: { name: string }) => {
    console.log("measures", name);
    return services.sizeOf(name);
  },
);

export const album = app.task("album", async ({ names }: { names: string[] }, cx) => {
  for (const name of names) await cx.spawn(measure, { name });
  cx.then(total, {});
  return names.length;
});

export const total = app.joined("total", (_: object, cx: Joined<number>) =>
  cx.results.reduce((sum, { output = 0 }) => sum + output, 0),
);

export const identity = app.task("identity", () => process.pid);

export const waits = app.task("waits", { retries: 0 }, async ({ mark }: { mark: string }, cx) => {
  try {
    await sleep(600_000, undefined, { signal: cx.signal });
  } finally {
    writeFileSync(mark, "");
  }
});

export const slow = app.task("slow", { retries: 0, timeout: "100ms" }, async () => {
  await sleep(400);
  throw new Fail("slept", { kind: "awake" });
});
