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

const small = app.bundle("small", { retries: 2, minBackoff: "10ms", maxBackoff: "20ms", failOn: [RangeError] });

const Thumb = z.object({
  path: z.string(),
  get parts() {
    return z.array(Thumb);
  },
});

export const resize = small.task(
  "resize",
  {
    params: z.object({ path: z.string(), width: z.int().default(200) }),
    output: z.object({ path: z.string(), made: z.iso.date().transform((text) => new Date(text)) }),
  },
  ({ path, width }) => ({ path: `${path} at ${width}`, made: "2026-01-31" }),
);

export const copies = small.task("copy-all", { params: z.array(Thumb) }, (thumbs) => thumbs);

export const bundledAlbum = small.task("album", async ({ paths }: { paths: string[] }, cx) => {
  for (const [number, path] of paths.entries()) await cx.spawn(resize, { path }, { id: `${number}` });
  cx.then(contactSheet, { title: "summer" });
});

export const contactSheet = small.joined(
  "contact-sheet",
  { params: z.object({ title: z.string() }), results: resize },
  ({ title }, cx) => [title, ...cx.results.map(({ output }) => `${output?.path}, ${output?.made.getFullYear()}`).sort()],
);

export const divides = small.task("divides", { failOn: [TypeError] }, ({ error }: { error: string }) => {
  throw error === "range" ? new RangeError("zero") : new TypeError("no number");
});

export const many = app.bundle("many");
for (let number = 0; number < 200; number++) {
  const params = z.object({ recipient: z.string(), subject: z.string() });
  many.task(`task-${number}`, { params }, () => number);
}
