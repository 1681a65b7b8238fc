/** Test app with hooks, output, and handlers that end the process or ignore their cancel. */

import { execFileSync, execSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { App, type Context, current, Dead, Fail, Unsuccessful } from "kafleet";
import { z } from "zod";

export const app = new App({
  lifespan: async function* () {
    if (process.env["TEST_LIFESPAN"] === "fails") throw new Error("the database is down");
    console.log("entered");
    yield "state";
    console.log("left");
  },
});

app.around(async (cx, next) => {
  cx.log("outer begins");
  try {
    return await next();
  } catch (error) {
    if (error instanceof RangeError) throw new Fail(`translated: ${error.message}`, { kind: "translated" });
    throw error;
  } finally {
    cx.log("outer ends");
  }
});

app.around((cx, next) => {
  if (cx.number === 7) throw new Fail("refused before the handler", { kind: "refused" });
  cx.log("inner");
  return next();
});

app.task("state", ({ fails }: { fails?: boolean }, cx) => {
  if (fails) throw new RangeError("a");
  return [cx.state, current() === (cx as Context)];
});

app.task("log", async () => {
  process.stdout.write("printed");
  process.stdout.write(" line\n");
  console.error("error");
  await sleep(1);
  console.info("later %d", 5);
  await new Promise((written) => process.stderr.write(new TextEncoder().encode("bytes\nwithout an end"), written));
});

let arrived = 0;

app.task("together", async ({ count }: { count: number }, cx) => {
  arrived += 1;
  while (arrived < count) await sleep(1, undefined, { signal: cx.signal });
  console.log(`attempt ${cx.n}`);
  return "open";
});

app.task("end", ({ how }: { how: "kill" | "abort" | "exit" }) => {
  console.log("the end is near");
  if (how === "exit") process.exit(3);
  if (how === "abort") process.abort();
  process.kill(process.pid, "SIGKILL");
  return sleep(600_000);
});

app.task("forever", async ({ swallow }: { swallow?: boolean }, cx) => {
  cx.heartbeat();
  try {
    await sleep(600_000, undefined, { signal: cx.signal });
  } catch (error) {
    if (!swallow) throw error;
  }
  return `finished after ${cx.reason}`;
});

app.task("loops", async ({ file }: { file: string }, cx) => {
  while (!existsSync(file)) {
    cx.check();
    await sleep(1);
  }
});

app.task("blocked", ({ file }: { file: string }, cx) => {
  cx.heartbeat();
  setImmediate(() => {
    while (!existsSync(file));
  });
  return sleep(20);
});

app.task("rejects", async ({ caught }: { caught?: boolean }, cx) => {
  void Promise.reject(new TypeError("nobody awaits this")).catch((error) => {
    if (!caught) throw error;
  });
  await sleep(caught ? 1 : 600_000, undefined, { signal: cx.signal });
  return "caught";
});

app.task("throws", () => new Promise((_) => setTimeout(() => JSON.parse("{"), 1)));

app.task("rejects-later", ({ file }: { file: string }) => {
  setTimeout(() => {
    void Promise.reject(new Error("too late"));
    writeFileSync(file, "");
  }, 20);
  return "done";
});

let outside: () => void = () => {};
setTimeout(() => {
  outside = () => {
    for (let n = 0; n < 100; n++) void Promise.reject(new Error("outside"));
  };
}, 0);
app.task("rejects-outside", async (_: unknown, cx) => {
  // The timer of the module, not of the attempt, starts the rejections.
  pending = outside;
  await sleep(600_000, undefined, { signal: cx.signal }).catch(() => {});
  return "finished";
});
let pending: (() => void) | undefined;
setInterval(() => pending?.(), 5).unref();

app.task("listener-throws", (_: unknown, cx) => {
  cx.signal.addEventListener("abort", () => {
    throw new RangeError("listener");
  });
  cx.heartbeat();
  return sleep(600_000);
});

app.task("large", ({ bytes }: { bytes: number }) => "x".repeat(bytes));

app.task("values", ({ kind }: { kind: "nan" | "map" | "bigint" | "undefined" | "wrong" | "right" }) => {
  return { nan: [NaN], map: new Map(), bigint: 5n, undefined: undefined, wrong: 1, right: "ok" }[kind];
});

app.task("checked", { params: z.object({ n: z.int() }), output: z.string() }, ({ n }) =>
  n > 1 ? (n as unknown as string) : "ok",
);

class Problem extends Error {}
class BadInput extends Problem {}

app.task("fails", { failOn: [Problem], retryOn: [BadInput, "busy"] }, ({ how }: { how: string }) => {
  if (how === "problem") throw new Problem("p", { cause: new Error("the cause") });
  if (how === "bad input") throw new BadInput("b");
  if (how === "unsuccessful") throw new Unsuccessful("no such customer");
  if (how === "dead") throw new Dead("d", { kind: "broken data" });
  if (how === "outcome") throw new (class TooSmall extends Fail {})("too small");
  throw "a text";
});

app.task("children", async (_: unknown, cx) => {
  return (await cx.spawnNow([1, 2, 3].map((n) => app.remote("child").call(n)))).length;
});

app.task("many", async ({ count }: { count: number }, cx) => {
  for (let n = 0; n < count; n++) await cx.spawn(app.remote("child"), { n, text: "x".repeat(1000) });
});

app.task("chatters", async ({ count, file }: { count: number; file: string }, cx) => {
  for (let n = 1; n <= count; n++) {
    cx.progress({ n, text: "x".repeat(10_000) });
    console.log("x".repeat(10_000));
    if (n % 100 === 0) await sleep(1);
  }
  writeFileSync(file, "");
});

app.task("stdin", () => {
  const program = "let n = 0; process.stdin.on('data', (data) => (n += data.length)).on('end', () => process.exit(n))";
  execFileSync(process.execPath, ["-e", program], { stdio: "inherit" });
  execSync(`"${process.execPath}" -e "${program}"`, { stdio: [0, "inherit", "inherit"] });
  process.stdin.resume();
  return process.stdin === process.stdin;
});

app.task("imports-kafleet", () => {
  const program = "import('kafleet').then(() => process.stdout.write('imported'))";
  return execFileSync(process.execPath, ["-e", program], { input: "", encoding: "utf8" });
});

app.task("awaits-context", async (_: unknown, cx) => {
  await (cx as unknown as Promise<void>);
});
