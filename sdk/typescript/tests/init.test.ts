/** The project of `kafleet init typescript`: its app serves, its types and tests pass, with the packed packages. */

import assert from "node:assert/strict";
import { execFileSync, type ExecFileSyncOptionsWithStringEncoding } from "node:child_process";
import { copyFileSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { before, test } from "node:test";

import { fleet } from "kafleet/testing";

import { PATIENCE_MS } from "./driver.ts";
import { newFolder, OFFLINE, PROGRAM_TARBALL, SDK_TARBALL } from "./project.ts";

const SDK = join(import.meta.dirname, "..");
const PROGRAM = process.env["KAFLEET_BINARY"]!;

const parent = newFolder();
const project = join(parent, "my-shop");

// A test that runs tests would be one of ours.
const { NODE_TEST_CONTEXT: _, ...env } = process.env;
const options: ExecFileSyncOptionsWithStringEncoding = {
  cwd: project,
  env,
  encoding: "utf8",
  stdio: "pipe",
  timeout: PATIENCE_MS,
};

type Manifest = Record<string, Record<string, string>>;
const manifestIn = (folder: string) => JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Manifest;
let manifest: Manifest;

before(() => {
  execFileSync(PROGRAM, ["init", "typescript", "my-shop"], { ...options, cwd: parent });
  manifest = manifestIn(project);
  const tarballs = [SDK_TARBALL, PROGRAM_TARBALL].map((tarball) => {
    copyFileSync(tarball, join(project, basename(tarball)));
    return `./${basename(tarball)}`;
  });
  // From a folder, because the tests ask no registry, which has the compiler too.
  execFileSync("npm", ["pkg", "delete", "devDependencies"], options);
  execFileSync("npm", ["install", ...OFFLINE, ...tarballs, join(SDK, "node_modules/zod")], options);
});

test("app of a new project runs a task", async () => {
  const table = execFileSync(PROGRAM, ["app", "check"], options).trimEnd().split("\n").slice(1);
  const types = table.map((line) => line.split(/ +/).slice(0, 2).join(" "));
  assert.deepEqual(types, ["my-shop order", "my-shop pack", "my-shop receipt", "my-shop report"]);
  const running = await fleet({ cwd: project }); // Starts what kafleet.toml names.
  try {
    const params = JSON.stringify({ customer: "ada", items: ["tea"] });
    const environment = { ...env, KAFLEET_API: running.api };
    const words = ["submit", "order", params, "--wait", "-o", "json"];
    const order = JSON.parse(execFileSync(PROGRAM, words, { ...options, env: environment })) as Record<string, unknown>;
    assert.deepEqual([order["state"], order["result"]], ["succeeded", 1]);
  } finally {
    await running.stop();
  }
});

test("tests of a new project pass", () => {
  const output = execFileSync("npm", ["test"], options);
  assert.match(output, /pass 5$/m, output);
});

test("types of a new project are right", () => {
  const compiler = join(SDK, "node_modules/.bin/tsc");
  assert.equal(execFileSync(compiler, ["--typeRoots", join(SDK, "node_modules/@types")], options), "");
});

test("format of a new project is that of prettier", () => {
  const prettier = join(SDK, "node_modules/.bin/prettier");
  execFileSync(prettier, ["--check", "package.json", "tsconfig.json", "tasks.ts", "tasks.test.ts"], options);
});

test("new project depends on the packages that the SDK is tested with", () => {
  const { version, devDependencies: tested } = manifestIn(SDK);
  const { dependencies, devDependencies, engines } = manifest;
  const caret = (name: string) => `^${tested![name]}`;
  assert.deepEqual(dependencies, { kafleet: `~${String(version)}`, zod: caret("zod") });
  assert.deepEqual(devDependencies, { "@types/node": caret("@types/node"), typescript: caret("typescript") });
  assert.deepEqual(engines, manifestIn(SDK)["engines"]);
});
