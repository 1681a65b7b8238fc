/**
 * Watch over the event loop. An attempt that computes beyond its timeout keeps this process from reading its cancel; a thread
 * then interrupts it, and its stack goes to the log of its task.
 */

import { url as debuggerUrl } from "node:inspector";
import { Worker } from "node:worker_threads";

import type { Attempt } from "./attempt.ts";
import { running } from "./context.ts";

/** Interval at which the event loop shows that it runs, in milliseconds: a fraction of that at which the thread looks. */
const TICK_MS = 125;

/** Name of the function that the thread calls in the interrupted event loop. */
const HOOK = "kafleet.blocked";

/** Watch over the attempts of a session. An attempt costs it one comparison. */
export class LoopWatch {
  /** Number of ticks, and the earliest timeout of a running attempt, in milliseconds since 1970. */
  readonly #shared = new Float64Array(new SharedArrayBuffer(16));
  readonly #attempts: ReadonlyMap<number, Attempt>;

  /** `send` sends the log lines of an attempt at once. */
  constructor(attempts: ReadonlyMap<number, Attempt>, send: (attempt: Attempt) => void) {
    this.#attempts = attempts;
    this.#shared[1] = Infinity;
    const hook = (frames: string[]) => this.#blocked(frames, send);
    Object.defineProperty(globalThis, Symbol.for(HOOK), { value: hook, configurable: true });
    setInterval(() => this.#tick(), TICK_MS).unref();
    const file = new URL(`./blocked_thread${import.meta.url.slice(-3)}`, import.meta.url);
    const resourceLimits = { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 2 };
    const thread = new Worker(file, { workerData: this.#shared.buffer, resourceLimits, execArgv: [] });
    thread.unref();
    // Without the thread, as in a bundled program, attempts run all the same.
    thread.on("error", () => {});
  }

  /** An attempt begins, with so many milliseconds until its timeout. */
  begin(leftMs: number): void {
    const deadline = debuggerUrl() ? Infinity : Date.now() + leftMs;
    if (deadline < this.#shared[1]!) this.#shared[1] = deadline;
  }

  #tick(): void {
    this.#shared[0]! += 1;
    let left = Infinity;
    for (const { cx } of this.#attempts.values()) left = Math.min(left, cx.leftMs);
    // At a breakpoint of a debugger nothing is to be resumed.
    this.#shared[1] = debuggerUrl() ? Infinity : Date.now() + left;
  }

  /** Reports the running attempt if it is over its timeout. Returns the time of the next look, in milliseconds since 1970. */
  #blocked(frames: string[], send: (attempt: Attempt) => void): number {
    const cx = running.getStore();
    const attempt = cx && this.#attempts.get(cx.n);
    // Something else ran at this moment.
    if (!attempt) return Date.now();
    if (attempt.cx.leftMs > 0) return Date.now() + attempt.cx.leftMs;
    attempt.blocked(frames);
    send(attempt);
    return Number.MAX_SAFE_INTEGER;
  }
}
