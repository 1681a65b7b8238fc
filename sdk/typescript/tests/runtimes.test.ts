/** Programs that Node cannot load, with the remedy; and apps under tsx, Deno and Bun. */

import assert from "node:assert/strict";
import { cpSync, existsSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";

import { APPS, PATIENCE_MS, type Scope, Worker } from "./driver.ts";
import { FIRST, greeting, projectOf, run, TOOLS } from "./shop_project.ts";

const KAFLEET = process.env["KAFLEET_BINARY"]!;

const DENO = join(TOOLS, "@deno/linux-x64-glibc/deno");
// The installation of the package moves the program.
const BUN = [join(TOOLS, "@oven/bun-linux-x64/bin/bun"), join(TOOLS, "bun/bin/bun.exe")].find(existsSync)!;

const APP = 'import { App } from "kafleet";\nexport const app = new App();\n';
const TASK = 'app.task("greet", () => 1);\n';
const ENUM = `${APP}enum Size { Small, Large }\napp.task("greet", () => Size.Small);\n`;

describe("program that Node cannot load", () => {
  const tsx = "run it with `-- npx tsx tasks.ts`";
  const rows: [string, Record<string, string>, string][] = [
    ["import without an ending", { "tasks.ts": 'export * from "./lib";', "lib.ts": APP + TASK }, "write the ending of the file: `./lib.ts`"],
    ["import with the ending of the compiled file", { "tasks.ts": 'export * from "./lib.js";', "lib.ts": APP + TASK }, "write the ending of the file: `./lib.ts`"],
    ["import of a folder", { "tasks.ts": 'export * from "./lib";', "lib/index.ts": APP + TASK }, "write the ending of the file: `./lib/index.ts`"],
    ["import from a file of another folder", { "tasks.ts": 'export * from "./src/a.ts";', "src/a.ts": 'export * from "../lib";', "lib.ts": APP + TASK }, "write the ending of the file: `../lib.ts`"],
    ["enum", { "tasks.ts": ENUM }, `${tsx}, or write \`const Size = { … } as const\` for \`enum\``],
    ["paths of tsconfig.json", { "tasks.ts": 'export * from "@/lib";' }, `Node does not know \`paths\` of tsconfig.json: ${tsx}`],
    ["missing package", { "tasks.ts": `import "valibot";\n${APP}` }, "run `npm install valibot`"],
    ["type without `type`", { "tasks.ts": 'import { App, Handler } from "kafleet";\n' }, "if `Handler` is a type, write `import type { Handler }`"],
    ["class of BullMQ", { "tasks.ts": 'import { Queue } from "kafleet";\n' }, 'write `app.task("name", { … }, async (params, cx) => …)`, with the handler last'],
    ["modules that import each other", { "tasks.ts": `import "./mail.ts";\n${APP}`, "mail.ts": `import { app } from "./tasks.ts";\n${TASK}` }, "modules that import each other cannot use `app` yet; make it in a file of its own, or use `include`"],
  ]; // prettier-ignore
  for (const [name, files, hint] of rows) {
    test(`names the remedy: ${name}`, async (t) => assert.equal(await hintOf(t, projectOf(files)), hint));
  }

  test("names the remedy: package of CommonJS", async (t) => {
    assert.equal(await hintOf(t, projectOf({ "tasks.ts": APP + TASK }, "commonjs")), "run `npm pkg set type=module`");
  });
});

/** Returns the hint with which a program says that it cannot serve. */
async function hintOf(t: Scope, cwd: string): Promise<string> {
  const worker = await Worker.start(t, "tasks.ts", { cwd, arguments: ["--import", "kafleet"] });
  worker.sendWelcome();
  const { message } = await worker.next("unable");
  return (message as string).split("; hint: ").at(-1)!;
}

test("tsx runs what Node does not run", () => {
  const project = projectOf({
    "tasks.ts": `import { Size } from "@/lib";\n${APP}app.task("greet", () => Size.Small);\n`,
    "lib.ts": "export enum Size { Small, Large }\n",
    "tsconfig.json": JSON.stringify({ compilerOptions: { paths: { "@/*": ["./*"] } } }),
  });
  for (const command of [
    ["node", join(TOOLS, "tsx/dist/cli.mjs")],
    ["node", "--import", "tsx"],
  ]) {
    const output = run(project, [KAFLEET, "app", "check", "--", ...command, "tasks.ts"]);
    assert.match(output, /^main +greet +any/m, output);
  }
});

test("Deno runs apps as Node does, with their output in the log of the task", () => {
  const project = projectOf({ "tasks.ts": FIRST, "greeting.ts": greeting("./tasks.ts") });
  cpSync(join(APPS, "conformance.ts"), join(project, "conformance.ts"));
  // It starts a process for each case, of which there are dozens: PATIENCE_MS is that of one.
  const output = run(project, [KAFLEET, "app", "test", "--", DENO, "run", "-A", "conformance.ts"], 4 * PATIENCE_MS);
  assert.match(output, /^the app passes \d+ cases; \d+ were skipped$/m, output);
  assert.equal(run(project, [DENO, "run", "-A", "greeting.ts"]), "greeted Ada 3\n");
});

test("Bun runs the client and trials, and refuses to run apps", () => {
  const project = projectOf({ "tasks.ts": FIRST, "greeting.ts": greeting("./tasks.ts") });
  assert.equal(run(project, [BUN, "greeting.ts"]), "greeted Ada 3\n");
  const output = run(project, [KAFLEET, "app", "check", "--", BUN, "tasks.ts"]);
  assert.match(output, /^error: the app `main` cannot serve: Bun runs no apps, because it cannot take over the socket/m);
  assert.match(output, /\nhint: run them with `node`/);
});
