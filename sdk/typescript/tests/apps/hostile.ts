/** Test app whose handlers and hooks throw, return and log values that do unusual things. */

import { EventEmitter } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import { App, type Context } from "kafleet";

import { hostileValue, Random } from "../hostile_values.ts";

export const app = new App();

interface Params {
  seed: number;
  how: string;
}

const params = new WeakMap<Context<any>, Params>();

app.around(async (cx, next) => {
  const result = await next();
  const given = params.get(cx);
  if (given?.how === "hook throws") throw hostileValue(new Random(given.seed));
  return given?.how === "hook returns" ? hostileValue(new Random(given.seed)) : result;
});

/** Ways to use a value: before the attempt ends, and the outcome that is expected. */
const USES: Record<string, (value: any, cx: Context<any>) => unknown> = {
  throw: (value) => {
    throw value;
  },
  reject: (value) => new Promise((_, reject) => reject(value)),
  return: (value) => value,
  "timer throws": (value) => {
    setImmediate(() => {
      throw value;
    });
    return sleep(600_000);
  },
  "nobody catches": (value) => {
    void Promise.reject(value);
    return sleep(600_000);
  },
  "emits an error": (value) => {
    setImmediate(() => new EventEmitter().emit("error", new Error("emitted", { cause: value })));
    return sleep(600_000);
  },
  "late error": (value) => {
    setImmediate(() => {
      throw value;
    });
    return "done";
  },
  "late rejection": (value) => {
    void Promise.reject(value);
    return "done";
  },
  log: (value, cx) => (cx.log(value), cx.log([value, value]), "done"),
  warn: (value, cx) => (cx.warn(value), "done"),
  progress: (value, cx) => (cx.progress(value), cx.progress(1, value), "done"),
  attach: (value, cx) => (cx.attach("a", value), cx.attach(value, "a", { media: value }), "done"),
  "hook throws": () => "done",
  "hook returns": () => "done",
};

app.task("item", async ({ seed, how }: Params, cx) => {
  params.set(cx, { seed, how });
  return USES[how]!(hostileValue(new Random(seed)), cx);
});

app.task("neighbour", async (_: unknown, cx) => {
  cx.heartbeat();
  await sleep(600_000, undefined, { signal: cx.signal }).catch(() => {});
  return process.pid;
});
