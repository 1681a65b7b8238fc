/** Output of handlers: `console` goes to the log of the running task. */

import { running } from "./context.ts";

type Write = (text: string | Uint8Array, ...rest: unknown[]) => boolean;

let isCaptured = false;

/** Sends what is written to stdout and stderr in an attempt to the log of its task, from now on. */
export function captureOutput(): void {
  if (isCaptured) return;
  isCaptured = true;
  for (const stream of [process.stdout, process.stderr]) capture(stream);
}

function capture(stream: NodeJS.WriteStream): void {
  const original = stream.write as unknown as Write;
  const write: Write = (text, ...rest) => {
    const cx = running.getStore();
    if (!cx || cx.ended) return original.call(stream, text, ...rest);
    cx.write(typeof text === "string" ? text : Buffer.from(text).toString());
    const done = rest.find((each) => typeof each === "function") as (() => void) | undefined;
    if (done) process.nextTick(done);
    return true;
  };
  stream.write = write as typeof stream.write;
}
