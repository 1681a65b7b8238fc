/** Changes of the source files of an app under `kafleet dev`. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import test from "node:test";
import { promisify } from "node:util";

import { APPS, until } from "./driver.ts";
import { newProject, SDK_TARBALL } from "./project.ts";

const PROGRAM = process.env["KAFLEET_BINARY"] ?? "kafleet";

function code(factor: number, options = ""): string {
  return `import { App } from "kafleet";
export const app = new App(${options});
app.task("times", ({ x }: { x: number }) => x * ${factor});
`;
}

/** A running `kafleet dev` in a folder. */
interface Dev {
  /** Waits for a line with a text, and removes it and those before it. */
  lineWith(text: string): Promise<string>;
  result(type: string): Promise<number>;
}

async function withDev(folder: string, use: (dev: Dev) => Promise<void>): Promise<void> {
  const dev = spawn(PROGRAM, ["dev", "tasks.ts", "--no-sample", "--listen", "127.0.0.1:0"], {
    cwd: folder,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const lines: string[] = [];
  for (const stream of [dev.stdout, dev.stderr]) createInterface({ input: stream }).on("line", (line) => lines.push(line));
  const lineWith = async (text: string) => {
    await until(() => lines.some((line) => line.includes(text)), `the line \`${text}\``);
    return lines.splice(0, lines.findIndex((line) => line.includes(text)) + 1).at(-1)!;
  };
  try {
    const api = (await lineWith("  api ")).trim().split(/\s+/)[1]!;
    const result = async (type: string) => {
      const words = ["submit", type, '{"x":21}', "--wait", "-o", "json", "--api", api];
      return (JSON.parse((await promisify(execFile)(PROGRAM, words)).stdout) as { result: number }).result;
    };
    await use({ lineWith, result });
  } finally {
    dev.kill("SIGINT");
    await once(dev, "exit");
  }
}

test("changed code serves the next task", async () => {
  const folder = await mkdtemp(join(APPS, "reload-"));
  const file = join(folder, "tasks.ts");
  await writeFile(file, code(2));
  try {
    await withDev(folder, async ({ lineWith, result }) => {
      assert.equal(await result("times"), 42);
      await writeFile(file, code(3));
      await lineWith("the new code serves the types ");
      assert.equal(await result("times"), 63);
    });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test("only files that the app has loaded start new code", async () => {
  const folder = newProject(SDK_TARBALL);
  const write = (name: string, text: string) => writeFile(join(folder, name), text);
  const job = (type: string) => `import { app } from "../tasks.ts";\napp.task("${type}", ({ x }: { x: number }) => -x);\n`;
  await mkdir(join(folder, "jobs"));
  await write("jobs/one.ts", job("one"));
  await write("tasks.ts", code(2, '{ include: ["./jobs/*.ts"] }'));
  await withDev(folder, async ({ lineWith, result }) => {
    assert.equal(await result("times"), 42);
    // The first file of a change is named: it would be this one.
    await write("a_script.ts", "console.log('not part of the app');\n");
    await write("tasks.ts", code(3, '{ include: ["./jobs/*.ts"] }'));
    await lineWith("`tasks.ts` has changed");
    await lineWith("the new code serves the types ");
    assert.equal(await result("times"), 63);
    await write("jobs/two.ts", job("two"));
    await lineWith("`jobs/two.ts` has changed");
    await lineWith("the new code serves the types ");
    assert.equal(await result("two"), -21);
  });
});
