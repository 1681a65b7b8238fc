/** Changes of the source file of an app under `kafleet dev`. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import test from "node:test";
import { promisify } from "node:util";

import { APPS, until } from "./driver.ts";

function code(factor: number): string {
  return `import { App } from "kafleet";
export const app = new App();
app.task("times", ({ x }: { x: number }) => x * ${factor});
`;
}

test("changed code serves the next task", async () => {
  const folder = await mkdtemp(join(APPS, "reload-"));
  const file = join(folder, "tasks.ts");
  await writeFile(file, code(2));
  const program = process.env["KAFLEET_BINARY"] ?? "kafleet";
  const dev = spawn(program, ["dev", "tasks.ts", "--no-sample", "--listen", "127.0.0.1:0"], {
    cwd: folder,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const lines: string[] = [];
  for (const stream of [dev.stdout, dev.stderr]) createInterface({ input: stream }).on("line", (line) => lines.push(line));
  const lineWith = async (text: string) => {
    await until(() => lines.some((line) => line.includes(text)), `the line \`${text}\``);
    return lines.find((line) => line.includes(text))!;
  };
  try {
    const api = (await lineWith("  api ")).trim().split(/\s+/)[1]!;
    const times = async () => {
      const words = ["submit", "times", '{"x":21}', "--wait", "-o", "json", "--api", api];
      return (JSON.parse((await promisify(execFile)(program, words)).stdout) as { result: number }).result;
    };
    assert.equal(await times(), 42);
    await writeFile(file, code(3));
    await lineWith("the new code serves the types ");
    assert.equal(await times(), 63);
  } finally {
    dev.kill("SIGINT");
    await once(dev, "exit");
    await rm(folder, { recursive: true, force: true });
  }
});
