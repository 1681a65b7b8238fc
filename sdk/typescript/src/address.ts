/** URL of the API: as given, of KAFLEET_API, of the `kafleet dev` of this folder, or the default. */

import { readFileSync, statSync } from "node:fs";

const DEFAULT_URL = "http://127.0.0.1:8080";

/** File in the working directory of a `kafleet dev`, with its address: `{"api": "http://127.0.0.1:8081", "pid": 123}`. */
const DEV_FILE = ".kafleet-dev.json";

/** URLs that the file may have: it may come with a folder of another user, and its URL gets the token. */
const LOOPBACK = /^http:\/\/(127\.0\.0\.1|localhost|\[::1\]):\d{1,5}$/;

/** Maximum size of the file, in bytes. */
const MAX_BYTES = 4096;

/** Returns the URL of the API. Throws a `TypeError` if it is none. */
export function apiUrl(given?: string): string {
  const url = (given ?? process.env["KAFLEET_API"] ?? urlOfDev() ?? DEFAULT_URL).replace(/\/+$/, "");
  if (/^https?:\/\/./.test(url) && URL.canParse(url)) return url;
  const address = url.split("://").at(-1);
  throw new TypeError(`\`${url}\` is not the URL of an API; hint: write \`${address ? `http://${address}` : DEFAULT_URL}\``);
}

/** Returns the URL of the `kafleet dev` that runs in this folder; nothing if its file is no such file, or its process has ended. */
function urlOfDev(): string | undefined {
  try {
    const file = statSync(DEV_FILE, { throwIfNoEntry: false });
    if (!file?.isFile() || file.size > MAX_BYTES) return undefined;
    const { api, pid } = JSON.parse(readFileSync(DEV_FILE, "utf8")) as Record<string, unknown>;
    return typeof api === "string" && LOOPBACK.test(api) && isAlive(pid) ? api : undefined;
  } catch {
    return undefined;
  }
}

function isAlive(pid: unknown): boolean {
  if (!Number.isInteger(pid) || (pid as number) < 1) return false;
  try {
    return process.kill(pid as number, 0);
  } catch (error) {
    // A process of another user exists too.
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
