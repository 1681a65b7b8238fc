/** Test app whose handlers start child processes and threads, which fail in all ways. */

import { type ChildProcess, exec, execFile, execFileSync, fork, spawn } from "node:child_process";
import cluster from "node:cluster";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

import { App } from "kafleet";

export const app = new App();

const NODE = process.execPath;
const READS_STDIN = "let n = 0; process.stdin.on('data', (data) => (n += data.length)).on('end', () => process.exit(n))";

/** Module of a child process, as a file that `fork` can run. */
const module = (code: string) => `data:text/javascript,${encodeURIComponent(code)}`;
const forked = (code: string) => fork("--eval", [code], { execArgv: [], silent: true });

async function exitOf(child: ChildProcess): Promise<unknown> {
  const [code, signal] = await once(child, "exit");
  return code ?? signal;
}

async function endOf(thread: Worker): Promise<unknown> {
  return (await once(thread, "exit"))[0];
}

const thread = (code: string) => new Worker(new URL(module(code)));
const never = () => sleep(600_000);

/** Handlers by the name of what their children do. */
const CHILDREN: Record<string, () => unknown> = {
  "fork exits": () => exitOf(forked("process.exit(3)")),
  "fork throws": () => exitOf(forked("throw new Error('child')")),
  "fork rejects": () => exitOf(forked("Promise.reject(new Error('child'))")),
  "fork aborts": () => exitOf(forked("process.abort()")),
  "fork is killed": () => exitOf(forked("process.kill(process.pid, 'SIGKILL')")),
  "fork of the program of the app": () => exitOf(fork(process.argv[1]!, { silent: true })),
  "fork reads stdin": () =>
    exitOf(fork("--eval", [READS_STDIN], { execArgv: [], stdio: ["inherit", "inherit", "inherit", "ipc"] })),
  "fork sends a message": async () => (await once(forked("process.send('hello')"), "message"))[0],
  "listener of a message throws": () => {
    forked("process.send('hello')").on("message", () => {
      throw new RangeError("listener");
    });
    return never();
  },
  "spawn reads stdin": () => exitOf(spawn(NODE, ["-e", READS_STDIN], { stdio: "inherit" })),
  "spawn of no program": () => (spawn("/does/not/exist"), never()),
  "spawn lives longer": () => {
    const child = spawn(NODE, ["-e", "setTimeout(() => process.exit(1), 100)"]);
    child.on("exit", () => {
      throw new Error("after the attempt");
    });
    return "answered";
  },
  "exec fails": () => promisify(exec)("exit 3"),
  "execFile fails": () => promisify(execFile)(NODE, ["-e", "process.exit(3)"]),
  "execFileSync fails": () => execFileSync(NODE, ["-e", "process.exit(3)"], { stdio: "ignore" }),
  "cluster worker exits": async () => {
    cluster.setupPrimary({ exec: "--eval", args: ["process.exit(3)"], execArgv: [], silent: true });
    return (await once(cluster.fork(), "exit"))[0];
  },
  "thread exits": () => endOf(thread("process.exit(3)")),
  "thread ends": () => endOf(thread("1")),
  "thread throws": () => (thread("throw new RangeError('thread')"), never()),
  "thread throws null": () => (thread("throw null"), never()),
  "thread rejects": () => (thread("Promise.reject(new RangeError('thread'))"), never()),
  "thread is terminated": async () => (await thread("setInterval(() => {}, 1000)").terminate(), "terminated"),
  "thread prints": async () => {
    const started = new Worker(new URL(module("console.log('from a thread')")));
    await endOf(started);
    return "printed";
  },
  "thread imports the program of the app": () => endOf(new Worker(process.argv[1]!)),
};

app.task("item", (how: string) => CHILDREN[how]!());

app.task("neighbour", async (_: unknown, cx) => {
  cx.heartbeat();
  await sleep(600_000, undefined, { signal: cx.signal }).catch(() => {});
  return process.pid;
});
