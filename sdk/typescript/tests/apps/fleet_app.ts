/** Test app that runs on a real fleet. */

import { writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { App, Fail, Retry } from "kafleet";
import { z } from "zod";

export const app = new App();

export const waits = app.task("waits", { retries: 0 }, async ({ mark }: { mark: string }, cx) => {
  writeFileSync(mark, "");
  await sleep(600_000, undefined, { signal: cx.signal });
  return "never";
});

export const diesOnce = app.task("dies-once", { retries: 2, minBackoff: "10ms", maxBackoff: "20ms" }, (_: unknown, cx) => {
  console.log("attempt", cx.number);
  if (cx.number === 1) process.kill(process.pid, "SIGKILL");
  return cx.number === 1 ? sleep(60_000, 0) : cx.number;
});

export const retries = app.task("retries", { retries: 1 }, (_: unknown, cx) => {
  if (cx.number === 1) throw new Retry("busy", { after: "10ms" });
  return cx.idempotencyKey;
});

export const reports = app.task("reports", (_: unknown, cx) => {
  console.log("printed");
  cx.progress({ done: 1 });
  cx.warn("careful");
  cx.attach("note.txt", "hello", { media: "text/plain" });
});

export const leaf = app.task("leaf", { params: z.object({ n: z.int() }), output: z.int() }, ({ n }) => n);

export const parent = app.task("parent", async ({ now = false }: { now?: boolean }, cx) => {
  const ids = now ? await cx.spawnNow([0, 1].map((n) => leaf.call({ n }, { id: `${n}` }))) : [];
  for (const n of [2, 3]) await cx.spawn(leaf, { n }, { id: `${n}` });
  cx.then(total, { factor: 10 });
  return ids;
});

export const total = app.joined("total", { params: z.object({ factor: z.int() }), results: leaf }, ({ factor }, cx) => {
  return factor * cx.results.reduce((sum, { output = 0 }) => sum + output, 0);
});

export const fails = app.task("fails", () => {
  throw new Fail("no such picture");
});

export const parentOfFailed = app.task("parent-of-failed", async (_: unknown, cx) => {
  await cx.spawn(fails, undefined, { id: "child" });
});

export const submits = app.task("submits", async () => {
  const handle = await leaf.submit({ n: 5 });
  const waited = await handle.result().catch((error: Error) => error.message);
  return { id: handle.id, waited };
});
