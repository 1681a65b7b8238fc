/** TypeScript in the documents: it runs as it is shown. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { join } from "node:path";
import { after, test } from "node:test";

import { APPS, ROOT } from "./driver.ts";

const PAGES = ["docs/typescript.md", "docs/projects.md", "docs/from-bullmq.md", "sdk/typescript/README.md"];

/** Returns the TypeScript of a page. */
function blocks(page: string): string[] {
  const text = readFileSync(join(ROOT, page), "utf8");
  return [...text.matchAll(/^```ts\n([^]*?)^```/gm)].map(([, block]) => block!);
}

function blockWith(page: string, text: string): string {
  const found = blocks(page).filter((block) => block.includes(text));
  assert.equal(found.length, 1, `${text} in ${page}`);
  return found[0]!;
}

// Below this folder, so that the packages are found.
const folder = mkdtempSync(join(APPS, ".program-"));
after(() => rmSync(folder, { recursive: true }));

/** Writes a file, and imports it. */
async function module(name: string, text: string, into = folder): Promise<Record<string, any>> {
  writeFileSync(join(into, name), text);
  return (await import(join(into, name))) as Record<string, any>;
}

/** Runs the tests of a file that a page shows, each with its name. */
function shownTests(text: string): string {
  const test = "export const shown = [];\nconst test = (name, run) => shown.push([name, run]);\n";
  return test + text.replace(/^import .*"node:test";$/m, "");
}

/** Returns the errors of the compiler with its strict rules about the TypeScript in a folder. */
function errorsOf(path: string): string {
  const config = {
    extends: join(APPS, "../../tsconfig.json"),
    compilerOptions: { noUncheckedIndexedAccess: false, noUnusedLocals: false },
    include: ["*.ts"],
    exclude: ["run.ts"],
  };
  writeFileSync(join(path, "tsconfig.json"), JSON.stringify(config));
  return spawnSync(join(APPS, "../../node_modules/.bin/tsc"), ["--project", path], { encoding: "utf8" }).stdout;
}

for (const page of PAGES) {
  test(`blocks of ${page} are TypeScript`, () => {
    assert.ok(blocks(page).length);
    for (const block of blocks(page)) stripTypeScriptTypes(block);
  });
}

test("first example of docs/typescript.md and its tests run", async () => {
  await module("tasks.ts", blocks("docs/typescript.md")[0]!);
  await module("shop.ts", SHOP);
  const tests = blockWith("docs/typescript.md", "recorded, trial");
  const { shown } = await module("run.ts", shownTests(tests));
  assert.equal(shown.length, 3);
  for (const [name, run] of shown) await assert.doesNotReject(async () => run(), name);
  await module("orders.ts", blockWith("docs/typescript.md", "// orders.ts"));
  await module("tree.ts", blockWith("docs/typescript.md", "trial.tree(chain("));
  writeFileSync(join(folder, "tasks.test.ts"), tests);
  writeFileSync(join(folder, "web.ts"), blockWith("docs/typescript.md", "const handle = await greet.submit"));
  assert.equal(errorsOf(folder), "");
});

test("example of handlers in the process of the test runs", async (t) => {
  await module("greetings.ts", GREETINGS);
  const text = blockWith("docs/typescript.md", "inProcess: app");
  const { shown } = await module("in_process.ts", shownTests(text));
  for (const [, run] of shown) await run(t);
});

test("migration from BullMQ runs", async () => {
  const shop = mkdtempSync(join(folder, "shop-"));
  await module("shop-lib.ts", SHOP_LIBRARY, shop);
  await module("tasks.ts", blockWith("docs/from-bullmq.md", "./shop-lib.ts"), shop);
  const tests = blockWith("docs/from-bullmq.md", "node:test");
  const { shown } = await module("run.ts", shownTests(tests), shop);
  assert.ok(shown.length);
  for (const [, run] of shown) await run();
  writeFileSync(join(shop, "tasks.test.ts"), tests);
  assert.equal(errorsOf(shop), "");
});

const SHOP = `
import { greet } from "./tasks.ts";
export const placeOrder = (name: string) => greet.submit({ name });
`;

const GREETINGS = `
import { App } from "kafleet";
export const app = new App();
export const names = { of: (user: number): string => { throw new Error("no database for " + user); } };
export const greet = app.task("greet", ({ user }: { user: number }) => "hello " + names.of(user));
`;

const SHOP_LIBRARY = `
export const makeInvoice = async (part: string) => part + ".pdf";
export const sendMail = async (to: string, files: string[]) => { if (!to || !files.length) throw new Error("nothing to send"); };
export const sendReport = async () => {};
export class UnknownOrder extends Error {}
`;
