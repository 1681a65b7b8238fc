/** Thread of the watch over the event loop: interrupts a blocked one with the inspector, and passes its stack on. */

import { type Debugger, Session } from "node:inspector";
import { workerData } from "node:worker_threads";

/** As in `blocked.ts`, which this thread does not load. */
const HOOK = "kafleet.blocked";

/** Interval of the looks, in milliseconds. */
const LOOK_MS = 500;

const SDK = new URL(".", import.meta.url).href;

const shared = new Float64Array(workerData as SharedArrayBuffer);
let ticks = -1;
let nextLook = 0;
let session: Session | undefined;

setInterval(() => {
  const isBlocked = shared[0] === ticks;
  ticks = shared[0]!;
  if (!isBlocked) {
    nextLook = 0;
    close();
  } else if (!session && Date.now() > Math.max(nextLook, shared[1]!)) {
    look();
  }
}, LOOK_MS);

/** Interrupts the event loop, which goes on as soon as its stack is taken. */
function look(): void {
  session = new Session();
  session.connectToMainThread();
  const urls = new Map<string, string>();
  session.on("Debugger.scriptParsed", ({ params }) => urls.set(params.scriptId, params.url));
  session.once("Debugger.paused", ({ params }) => report(params.callFrames, urls));
  session.post("Debugger.enable");
  session.post("Debugger.pause");
}

function report(frames: Debugger.CallFrame[], urls: Map<string, string>): void {
  const named = frames.map((frame) => ({ ...frame, url: frame.url || (urls.get(frame.location.scriptId) ?? "") }));
  const own = named.filter(({ url }) => url && !url.startsWith("node:") && !url.startsWith(SDK)).map(text);
  const expression = `globalThis[Symbol.for(${JSON.stringify(HOOK)})](${JSON.stringify(own)})`;
  session?.post("Debugger.evaluateOnCallFrame", { callFrameId: frames[0]!.callFrameId, expression }, (error, answer) => {
    nextLook = Number(error ? Infinity : (answer?.result.value ?? Infinity));
    session?.post("Debugger.resume", close);
  });
}

function text({ functionName, url, location }: Debugger.CallFrame): string {
  const place = `${url}:${location.lineNumber + 1}:${(location.columnNumber ?? 0) + 1}`;
  return functionName ? `    at ${functionName} (${place})` : `    at ${place}`;
}

function close(): void {
  session?.disconnect();
  session = undefined;
}
