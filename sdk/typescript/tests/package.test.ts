/** The package as it is published: its files suffice, and it has no dependencies. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

const SDK = join(import.meta.dirname, "..");

test("package runs in an empty folder", () => {
  const cwd = mkdtempSync(join(tmpdir(), "kafleet-ts-"));
  try {
    const npm = (folder: string, ...options: string[]) => execFileSync("npm", options, { cwd: folder, stdio: "pipe" });
    npm(SDK, "pack", "--ignore-scripts", "--pack-destination", cwd);
    const [file] = readdirSync(cwd);
    npm(cwd, "install", "--offline", "--no-audit", "--no-fund", `./${file}`);
    assert.deepEqual(readdirSync(join(cwd, "node_modules/kafleet")).sort(), ["README.md", "dist", "package.json"]);
    writeFileSync(join(cwd, "program.mjs"), PROGRAM);
    assert.equal(execFileSync(process.execPath, ["program.mjs"], { cwd, encoding: "utf8" }), "2\n");
  } finally {
    rmSync(cwd, { recursive: true });
  }
});

const PROGRAM = `
import { App } from "kafleet";
import { trial } from "kafleet/testing";
const app = new App();
const increment = app.task("increment", (n) => n + 1);
console.log((await trial(increment, 1)).output);
`;
