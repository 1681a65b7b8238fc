/** Output: `console` goes to the log of the running task, and reports about errors without a task to stderr. */

import { Console } from "node:console";

import { running, type Stream } from "./context.ts";
import { attempted } from "./shown.ts";

type Write = (text: string | Uint8Array, ...rest: unknown[]) => boolean;

let isCaptured = false;

/** Sends what is written to stdout and stderr in an attempt to the log of its task, from now on. */
export function captureOutput(): void {
  if (isCaptured) return;
  isCaptured = true;
  capture(process.stdout, "stdout");
  capture(process.stderr, "stderr");
  const { deno, bun } = process.versions;
  // Their `console` does not write to the streams.
  if (deno || bun) globalThis.console = new Console(process.stdout, process.stderr);
}

function capture(stream: NodeJS.WriteStream, name: Stream): void {
  const original = stream.write as unknown as Write;
  const write: Write = (text, ...rest) => {
    const cx = running.getStore();
    if (!cx || cx.ended) return original.call(stream, text, ...rest);
    cx.write(typeof text === "string" ? text : Buffer.from(text).toString(), name);
    const done = rest.find((each) => typeof each === "function") as (() => void) | undefined;
    if (done) process.nextTick(done);
    return true;
  };
  stream.write = write as typeof stream.write;
}

/** Number of reports in a minute; further ones are counted. */
const MAX_REPORTS = 20;
const REPORTS_MS = 60_000;

/** Reports on stderr: so many in a minute, since what fails once may fail a million times. */
export class Reports {
  #begin = -Infinity;
  #count = 0;

  /** Writes a text, unless there were too many before. */
  write(text: string): void {
    const now = performance.now();
    if (now - this.#begin >= REPORTS_MS) {
      const omitted = this.#count - MAX_REPORTS;
      if (omitted > 0) writeError(`${omitted} further errors were not shown`);
      [this.#begin, this.#count] = [now, 0];
    }
    this.#count += 1;
    if (this.#count <= MAX_REPORTS) writeError(text);
    if (this.#count === MAX_REPORTS) writeError("further errors of this minute are counted only");
  }
}

/** Writes to stderr, also where the program has replaced `console` or the stream. */
function writeError(text: string): void {
  attempted(() => running.exit(() => process.stderr.write(`kafleet: ${text}\n`)));
}
