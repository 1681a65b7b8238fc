/** Test app: the types of docs/app-protocol.md. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import { App, Cancelled, type CallOptions, Dead, Fail, Retry } from "kafleet";

export const app = new App({ slots: Number(process.env["TEST_SLOTS"] ?? 1) });

app.task("t-echo", (params: unknown) => params);

interface Failure {
  outcome: string;
  kind: string;
  message: string;
  after_ms?: number;
}

app.task("t-error", ({ outcome, kind, message, after_ms }: Failure) => {
  if (outcome === "cancelled") throw new Cancelled();
  if (outcome === "retry") throw new Retry(message, { kind, ...(after_ms !== undefined && { after: after_ms }) });
  throw outcome === "fail" ? new Fail(message, { kind }) : new Dead(message, { kind });
});

interface Output {
  progress?: unknown;
  log?: string[];
  warn?: string;
  attach?: { name: string; media: string; data: string };
  heartbeat?: boolean;
  silent?: boolean;
}

app.task("t-output", ({ progress, log, warn, attach, heartbeat, silent = false }: Output, cx) => {
  if (progress !== undefined) cx.progress(progress, { silent });
  if (log) cx.log(log, { silent });
  if (warn) cx.warn(warn, { silent });
  if (attach) cx.attach(attach.name, Buffer.from(attach.data, "base64"), { media: attach.media });
  if (heartbeat) cx.heartbeat();
});

type Child = { type: string; params?: unknown } & CallOptions;

app.task("t-spawn", async ({ tasks, call }: { tasks: Child[]; call?: boolean }, cx) => {
  if (call) return cx.spawnNow(tasks.map(({ type, params, ...options }) => app.remote(type).call(params, options)));
  for (const { type, params, ...options } of tasks) await cx.spawn(app.remote(type), params, options);
  return null;
});

app.task("t-then", ({ task }: { task: { type: string; params: unknown; with_results: boolean } }, cx) => {
  cx.then(app.remote(task.type), task.params, { withResults: task.with_results });
});

app.task("t-wait", async ({ ms }: { ms: number }, cx) => {
  await sleep(ms, undefined, { signal: cx.signal });
  return "waited";
});

app.task("t-exit", ({ code }: { code: number }) => process.exit(code));

app.task("t-child", async () => {
  const program = "process.stdin.on('data', (data) => process.stdout.write(data))";
  const child = spawn(process.execPath, ["-e", program], { stdio: ["inherit", "pipe", "inherit"] });
  let bytes = 0;
  child.stdout!.on("data", (chunk: Buffer) => (bytes += chunk.length));
  await once(child, "close");
  return bytes;
});

app.task("t-retire", ({ reason }: { reason: string }, cx) => cx.retire(reason));
