/** The packages as they are published: their files and types suffice, and the quick start runs with them in an empty folder. */

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, execSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { PLATFORMS, thisPlatform } from "../src/program.ts";
import { VERSION } from "../src/version.ts";
import { PATIENCE_MS, ROOT } from "./driver.ts";
import { newFolder, newPath, OFFLINE, PROGRAM_TARBALL, SDK_TARBALL } from "./project.ts";

const SDK = join(import.meta.dirname, "..");

type Manifest = Record<string, any>;

const folder = newFolder();

/** Returns the files of a packed package, each with its permissions. */
function filesOf(tarball: string): Record<string, string> {
  const lines = execFileSync("tar", ["-tvzf", tarball], { encoding: "utf8" }).trimEnd().split("\n");
  return Object.fromEntries(lines.map((line) => [line.split(" package/")[1]!, line.slice(0, 10)]));
}

function manifestOf(tarball: string): Manifest {
  return JSON.parse(execFileSync("tar", ["-xOzf", tarball, "package/package.json"], { encoding: "utf8" })) as Manifest;
}

test("package has its modules with their types, and nothing else", () => {
  const modules = readdirSync(join(SDK, "src")).map((name) => name.replace(/\.ts$/, ""));
  const built = modules.flatMap((name) => [`dist/${name}.d.ts`, `dist/${name}.js`]);
  const files = Object.keys(filesOf(SDK_TARBALL));
  assert.deepEqual(files.toSorted(), ["README.md", "package.json", ...built].sort());
  const manifest = manifestOf(SDK_TARBALL);
  for (const { types, default: code } of Object.values(manifest["exports"]) as Record<string, string>[]) {
    assert.ok(files.includes(types!.slice(2)) && files.includes(code!.slice(2)), `${types}, ${code}`);
  }
  assert.equal(manifest["dependencies"], undefined);
  // npm warns about packages that run scripts when they are installed.
  const atInstall = ["preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare"];
  assert.deepEqual(
    Object.keys(manifest["scripts"]).filter((name) => atInstall.includes(name)),
    [],
  );
});

test("package of the program has the program, and nothing else", () => {
  assert.deepEqual(filesOf(PROGRAM_TARBALL), { "package.json": "-rw-r--r--", "bin/kafleet": "-rwxr-xr-x" });
  assert.equal(manifestOf(PROGRAM_TARBALL)["name"], `@kafleet/${thisPlatform()}`);
});

test("packages and the program have one version", () => {
  const [, cargo] = /^version = "(.*)"/m.exec(readFileSync(join(ROOT, "Cargo.toml"), "utf8"))!;
  const published = manifestOf(SDK_TARBALL);
  assert.deepEqual([VERSION, published["version"], manifestOf(PROGRAM_TARBALL)["version"]], [cargo, cargo, cargo]);
  const wanted = PLATFORMS.map((platform) => [`@kafleet/${platform}`, cargo]);
  assert.deepEqual(published["optionalDependencies"], Object.fromEntries(wanted));
});

test("only packed packages can be published", () => {
  const checkout = JSON.parse(readFileSync(join(SDK, "package.json"), "utf8")) as Manifest;
  assert.equal(checkout["private"], true);
  assert.deepEqual([manifestOf(SDK_TARBALL)["private"], manifestOf(PROGRAM_TARBALL)["private"]], [undefined, undefined]);
});

for (const [platform, os, cpu, libc] of [
  ["darwin-arm64", "darwin", "arm64", undefined],
  ["darwin-x64", "darwin", "x64", undefined],
  ["linux-arm64", "linux", "arm64", ["glibc"]],
  ["linux-arm64-musl", "linux", "arm64", ["musl"]],
  ["linux-x64", "linux", "x64", ["glibc"]],
  ["linux-x64-musl", "linux", "x64", ["musl"]],
] as const) {
  test(`package of ${platform} is installed on this platform only`, () => {
    const into = newFolder();
    execFileSync(process.execPath, [join(SDK, "manifests.ts"), into, platform]);
    const manifest = JSON.parse(readFileSync(join(into, "program/package.json"), "utf8")) as Manifest;
    assert.deepEqual([manifest["os"], manifest["cpu"], manifest["libc"]], [[os], [cpu], libc]);
  });
}

test("quick start of docs/typescript.md runs in an empty folder, on a machine with Node alone", async () => {
  const section = readFileSync(join(ROOT, "docs/typescript.md"), "utf8").split("\n## ")[1]!;
  const [, tasks] = /^```ts\n([^]*?)^```/m.exec(section)!;
  const commands = [...section.matchAll(/^```sh\n([^]*?)^```/gm)].at(-1)![1]!;
  writeFileSync(join(folder, "tasks.ts"), tasks!);
  for (const tarball of [SDK_TARBALL, PROGRAM_TARBALL]) symlinkSync(tarball, join(folder, basename(tarball)));
  // From a folder, because the tests ask no registry.
  const zod = [join(SDK, "node_modules/zod"), ...OFFLINE].join(" ");
  const output = await runInTerminal(commands.replace(/ zod\b/, ` ${zod}`));
  assert.equal(output.match(/hello Ada$/gm)?.length, 3, output);
  assert.deepEqual(errorsOf(tasks!), "");
  assert.match(errorsOf(`${tasks}\nvoid greet.submit({ name: 1 });`), /not assignable to type 'string'/);
});

/** Runs commands one after the other, and `kafleet dev` beside those after it. Returns the output of the last one. */
async function runInTerminal(commands: string): Promise<string> {
  const path = newPath("node", "npm", "npx", "sh");
  const env: NodeJS.ProcessEnv = { PATH: path, HOME: folder, KAFLEET_API_LISTEN: "127.0.0.1:0" };
  let output = "";
  let fleet: ChildProcess | undefined;
  try {
    for (const command of commands.trim().split("\n")) {
      if (command.startsWith("npx kafleet dev")) {
        // In a group of its own, as a terminal starts it.
        fleet = spawn(command, { shell: true, cwd: folder, env, detached: true, stdio: ["ignore", "pipe", "pipe"] });
        env["KAFLEET_API"] = await urlOf(fleet);
      } else {
        output = execSync(command, { cwd: folder, env, encoding: "utf8", stdio: "pipe", timeout: PATIENCE_MS });
      }
    }
  } finally {
    if (fleet) await interrupt(fleet);
  }
  return output;
}

/** Ends a command as ctrl-c does in a terminal: all its processes get the signal. */
async function interrupt(command: ChildProcess): Promise<void> {
  // Once all processes have closed their output.
  const closed = once(command, "close");
  process.kill(-command.pid!, "SIGINT");
  await closed;
}

/** Waits for the address that `kafleet dev` prints. */
async function urlOf(fleet: ChildProcess): Promise<string> {
  let text = "";
  for (const stream of [fleet.stdout!, fleet.stderr!]) stream.on("data", (chunk) => (text += chunk));
  const deadline = performance.now() + PATIENCE_MS;
  while (!text.includes("serving until")) {
    assert.ok(fleet.exitCode === null && performance.now() < deadline, text);
    await sleep(20);
  }
  return /^ +api +(http:\/\/\S+)/m.exec(text)![1]!;
}

/** Returns the errors of the compiler about a program that uses the installed package. */
function errorsOf(program: string): string {
  writeFileSync(join(folder, "checked.ts"), program);
  const options = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2023", "--types", "node"];
  const types = ["--typeRoots", join(SDK, "node_modules/@types")];
  const compiler = join(SDK, "node_modules/.bin/tsc");
  const done = spawnSync(compiler, [...options, ...types, "checked.ts"], { cwd: folder, encoding: "utf8" });
  return done.stdout + done.stderr;
}
