/** The command of the npm package: it finds the program, and becomes it. */

import assert from "node:assert/strict";
import { spawn, spawnSync, type SpawnSyncReturns } from "node:child_process";
import { once } from "node:events";
import { chmodSync, cpSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { fleet } from "kafleet/testing";

import { platformName, PROGRAM_FILE, thisPlatform } from "../src/program.ts";
import { PATIENCE_MS, until } from "./driver.ts";
import { newFolder, newProject, SDK_TARBALL } from "./project.ts";

const PACKAGE = `@kafleet/${thisPlatform()}`;

/** Deadline of a command. */
const LIMIT = { timeout: PATIENCE_MS, killSignal: "SIGKILL" } as const;

/** Program that shows how it was started and which signals it gets; it ends with its stdin. */
const STAND_IN = `#!/usr/bin/env node
const [verb, value] = process.argv.slice(2);
if (verb === "die") process.kill(process.pid, value);
for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"]) process.on(signal, () => console.log(signal));
console.log(process.pid, process.argv.slice(2).join("|"));
process.stdin.on("data", (text) => process.stdout.write(text)).on("end", () => process.exit(7));
`;

/** Project without the package of the program, as npm may leave it. */
const bare = newProject(SDK_TARBALL);

/** Project with both packages. */
const complete = newFolder();
cpSync(bare, complete, { recursive: true, verbatimSymlinks: true });
writeProgram(join(complete, "node_modules", PACKAGE, PROGRAM_FILE), STAND_IN);

function writeProgram(path: string, text: string): string {
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, text);
  chmodSync(path, 0o755);
  return path;
}

/** Runs the command of a project. KAFLEET_BINARY of the tests does not count. */
function run(project: string, args: string[], binary?: string): SpawnSyncReturns<string> {
  const env = { ...process.env, KAFLEET_BINARY: binary };
  return spawnSync(join(project, "node_modules/.bin/kafleet"), args, {
    cwd: project,
    env,
    encoding: "utf8",
    input: "",
    ...LIMIT,
  });
}

for (const [os, cpu, glibc, name] of [
  ["linux", "x64", "2.36", "linux-x64"],
  ["linux", "arm64", "2.28", "linux-arm64"],
  ["linux", "x64", undefined, "linux-x64-musl"],
  ["linux", "arm64", undefined, "linux-arm64-musl"],
  ["darwin", "x64", undefined, "darwin-x64"],
  ["darwin", "arm64", undefined, "darwin-arm64"],
  ["freebsd", "x64", undefined, "freebsd-x64"],
] as const) {
  test(`platform of ${os} on ${cpu} with ${glibc ? `glibc ${glibc}` : "another C library"} is ${name}`, () => {
    assert.equal(platformName(os, cpu, glibc), name);
  });
}

test("command becomes the program, with its arguments, signals, stdin and exit code", async (t) => {
  const env = { ...process.env, KAFLEET_BINARY: undefined };
  const child = spawn(join(complete, "node_modules/.bin/kafleet"), ["submit", "two words", "--json"], { env });
  const exit = once(child, "close");
  t.after(() => child.stdin.end());
  let output = "";
  let errors = "";
  child.stdout.on("data", (text) => (output += text));
  child.stderr.on("data", (text) => (errors += text));
  let expected = `${child.pid} submit|two words|--json\n`;
  await until(() => output === expected, "the program starts");
  for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"] as const) {
    child.kill(signal);
    expected += `${signal}\n`;
    await until(() => output.length >= expected.length, "the signal arrives");
  }
  child.stdin.end("read\n");
  assert.deepEqual(await exit, [7, null]);
  // Each signal once, and no warning of Node.
  assert.deepEqual([output, errors], [`${expected}read\n`, ""]);
});

test("program that a signal kills is reported as such", () => {
  assert.equal(run(complete, ["die", "SIGTERM"]).signal, "SIGTERM");
});

test("Node that is too old is named", () => {
  const lacking = "data:text/javascript,delete process.execve";
  const command = ["--import", lacking, join(complete, "node_modules/kafleet/dist/launcher.js")];
  const { status, stderr } = spawnSync(process.execPath, command, { encoding: "utf8" });
  assert.deepEqual([status, stderr.split("\n")[0]], [1, `error: kafleet needs Node 22.18 or newer; this is ${process.version}`]);
});

test("missing package is reported with the remedies", () => {
  const { status, stdout, stderr } = run(bare, ["--version"]);
  assert.deepEqual([status, stdout], [1, ""]);
  assert.ok(
    stderr.startsWith(`error: the program \`kafleet\` is missing: its package \`${PACKAGE}\` is not installed\n\nhint: `),
  );
  for (const remedy of ["--omit=optional", "delete package-lock.json and node_modules", "KAFLEET_BINARY"]) {
    assert.ok(stderr.includes(remedy), stderr);
  }
});

test("KAFLEET_BINARY precedes the package, and replaces a missing one", () => {
  const other = writeProgram(join(newFolder(), "other"), "#!/bin/sh\necho other $*\n");
  for (const project of [complete, bare]) assert.equal(run(project, ["tree", "x"], other).stdout, "other tree x\n");
  assert.match(run(complete, [], "").stdout, /^\d+ \n$/, "an empty variable counts as none");
});

test("KAFLEET_BINARY that is no program is reported with its value", () => {
  const file = writeProgram(join(newFolder(), "file"), "");
  chmodSync(file, 0o644);
  for (const binary of ["/does/not/exist", complete, file]) {
    const { status, stderr } = run(complete, [], binary);
    const problem = `KAFLEET_BINARY is \`${binary}\`, which is not an executable file`;
    assert.deepEqual([status, stderr], [1, `error: ${problem}\n\nhint: correct it, or unset it\n`]);
  }
});

test("KAFLEET_BINARY that is the command itself is refused", () => {
  const { status, stderr } = run(complete, [], join(complete, "node_modules/.bin/kafleet"));
  assert.equal(status, 1);
  assert.match(stderr, /^error: KAFLEET_BINARY names the command of the npm package\n\nhint: name the program itself/);
});

test("program is found beside the package in the layout of pnpm", () => {
  const project = newFolder();
  const store = join(project, "node_modules/.pnpm/kafleet/node_modules");
  cpSync(join(complete, "node_modules"), store, { recursive: true, verbatimSymlinks: true });
  symlinkSync(".pnpm/kafleet/node_modules/kafleet", join(project, "node_modules/kafleet"));
  const env = { ...process.env, KAFLEET_BINARY: undefined };
  const command = [join(project, "node_modules/kafleet/dist/launcher.js"), "types"];
  assert.match(spawnSync(process.execPath, command, { env, encoding: "utf8", input: "" }).stdout, / types\n$/);
});

test("fleet of a test uses the same search", async () => {
  const earlier = process.env["KAFLEET_BINARY"];
  try {
    delete process.env["KAFLEET_BINARY"];
    await assert.rejects(fleet(), new RegExp(`its package \`${PACKAGE}\` is not installed; hint: npm leaves it out`));
    process.env["KAFLEET_BINARY"] = "/does/not/exist";
    await assert.rejects(fleet(), /KAFLEET_BINARY is `\/does\/not\/exist`, which is not an executable file/);
  } finally {
    process.env["KAFLEET_BINARY"] = earlier;
  }
});
