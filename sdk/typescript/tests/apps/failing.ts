/** Test app whose handlers are over their timeouts, or fail in unusual ways. */

import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { App, type Context, SoftTimeout } from "kafleet";

export const app = new App();

function compute(until: () => boolean): number {
  let rounds = 0;
  while (!until()) rounds++;
  return rounds;
}

app.task("blocks", ({ file }: { file: string }) => {
  return compute(() => existsSync(file)) > 0;
});

export const blocksFirst = app.task("blocks-first", async ({ file }: { file: string }, cx) => {
  compute(() => existsSync(file));
  await sleep(600_000, undefined, { signal: cx.signal });
});

export const aborts = app.task("aborts", () => {
  process.abort();
});

app.task("computes", ({ ms }: { ms: number }) => {
  const end = performance.now() + ms;
  return compute(() => performance.now() > end) > 0;
});

export const waits = app.task("waits", async (_: unknown, cx) => {
  await sleep(600_000, undefined, { signal: cx.signal });
});

app.task("ignores-its-cancel", async () => {
  await sleep(300);
  return "late";
});

app.task("soft", { softTimeout: "50ms" }, async ({ how }: { how: string }, cx) => {
  if (how === "quick") return "quick";
  if (how === "unhandled") await sleep(600_000, undefined, { signal: cx.signal });
  if (how === "wait") await sleep(600_000, undefined, { signal: cx.signal }).catch(() => {});
  if (how === "reason") {
    await new Promise((_, reject) => cx.signal.addEventListener("abort", () => reject(cx.signal.reason as Error)));
  }
  try {
    for (;;) {
      cx.check();
      await sleep(5);
    }
  } catch (error) {
    if (!(error instanceof SoftTimeout)) throw error;
    cx.check();
    return [error.message, cx.cancelled, cx.signal.aborted];
  }
});

class Busy extends Error {}
class VeryBusy extends Busy {}

const quickly = { retries: 3, minBackoff: "10ms", maxBackoff: "20ms" } as const;

function failsOnce({ error }: { error: string }, cx: Context): number {
  if (cx.number > 1) return cx.number;
  throw new { busy: Busy, "very busy": VeryBusy, other: RangeError }[error]!("no");
}

/** Types that retry the errors of one class only, and one that retries all but those. */
export const strict = {
  "failing errors": app.task("fails-others", { ...quickly, onError: "fail", retryOn: [Busy] }, failsOnce),
  "skipped errors": app.task("skips-others", { ...quickly, onError: "skip", retryOn: [Busy] }, failsOnce),
  "any other kind": app.task("fails-any", { ...quickly, failOn: ["*"], retryOn: [Busy] }, failsOnce),
};
export const lenient = app.task("retries-others", { ...quickly, retryOn: ["*"], failOn: [Busy] }, failsOnce);

/** What handlers throw, by name. */
const THROWN: Record<string, () => unknown> = {
  null: () => null,
  undefined: () => undefined,
  text: () => "a text",
  "empty text": () => "",
  object: () => ({ code: 5, details: "no such customer" }),
  cause: () => new Error("cannot load", { cause: new Error("disk full", { cause: "sector 5" }) }),
  "cause that is named already": () => new Error("cannot load: disk full", { cause: new Error("disk full") }),
  circle: () => {
    const error = new Error("around");
    error.cause = new Error("and around", { cause: error });
    return error;
  },
  aggregate: () => new AggregateError([new Error("a"), new RangeError("b"), "c"], "all failed"),
  "aggregate without a message": () => new AggregateError([new Error("a"), new Error("b")]),
};

app.task("throws", async ({ what, url = "" }: { what: string; url?: string }) => {
  if (what === "fetch") await fetch(url);
  if (what === "several requests") await Promise.any([fetch(url), Promise.reject(new Error("no answer"))]);
  throw THROWN[what]!();
});
