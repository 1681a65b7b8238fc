/** Start of a process that a worker has started: it takes the socket, loads the program, and serves its app. */

import { writeSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

import { stdinKind, takeSocket } from "./connection.ts";
import { encodeText } from "./json.ts";
import { recordLoads } from "./loaded.ts";
import { loadApp } from "./loading.ts";
import { captureOutput } from "./output.ts";
import { Server } from "./server.ts";

/** Name of the variable that keeps child processes from taking their stdin for the socket of a worker. */
const TAKEN = "KAFLEET_SOCKET_TAKEN";

const NO_SOCKET =
  "kafleet: file descriptor 0 is not the socket of a worker, so that no app is served; hint: in `command`, programs that copy " +
  "stdin break the socket: `script`, `nodemon`, `docker run -i`";

/**
 * Serves the worker on file descriptor 0 with the app of the main module, if a worker has started this process. Called
 * once, when the package is imported: the socket is taken before any code that is imported later can read stdin.
 */
export function serveIfStarted(): void {
  const isStarted = process.env["KAFLEET_APP"] !== undefined && process.env[TAKEN] === undefined && isMainThread;
  if (!isStarted) return;
  process.env[TAKEN] = "1";
  const stdin = stdinKind();
  // A child process of an app in another language, which uses the client, has another stdin: usually an empty one.
  if (stdin === "other") console.error(NO_SOCKET);
  if (stdin !== "socket") return;
  if (process.versions["bun"]) refuseBun();
  captureOutput();
  if (process.env["KAFLEET_DEV"]) recordLoads();
  const exit = (problem?: string) => (problem === undefined ? process.exit(0) : die(problem));
  const server = new Server(takeSocket(), { load: loadApp, exit });
  process.on("uncaughtException", (error) => server.onError(error));
  process.on("unhandledRejection", (error) => server.onError(error));
  process.on("exit", () => server.flush());
  void server.serve();
}

/** Ends a process of Bun, whose `net` cannot take over a file descriptor. */
function refuseBun(): never {
  const message =
    "Bun runs no apps, because it cannot take over the socket of the worker; hint: run them with `node`: it runs `.ts` files";
  writeSync(0, `{"unable":{"message":${encodeText(message)}}}\n`);
  process.exit(0);
}

function die(message: string): never {
  console.error(`error: ${message}`);
  process.exit(1);
}
