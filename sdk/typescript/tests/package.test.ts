/** The package as it is published: its files and types suffice, and the quick start runs with it in an empty folder. */

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, execSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { ROOT } from "./driver.ts";

const SDK = join(import.meta.dirname, "..");
const PATIENCE_MS = 60_000;
const PACKAGE = JSON.parse(readFileSync(join(SDK, "package.json"), "utf8")) as Record<string, any>;

/** Folder of a project without a checkout. */
const folder = mkdtempSync(join(tmpdir(), "kafleet-ts-"));
after(() => rmSync(folder, { recursive: true }));

/** Files of the package, which `npm pack` has put into the folder. `dist` is built before the tests. */
const files = packed();

function packed(): string[] {
  const options = ["pack", SDK, "--ignore-scripts", "--json", "--pack-destination", folder];
  const reports = JSON.parse(execFileSync("npm", options, { cwd: folder, encoding: "utf8", stdio: "pipe" })) as any;
  const [report] = Object.values(reports) as { files: { path: string }[] }[];
  return report!.files.map(({ path }) => path);
}

test("package has its modules with their types, and nothing else", () => {
  const modules = readdirSync(join(SDK, "src")).map((name) => name.replace(/\.ts$/, ""));
  const built = modules.flatMap((name) => [`dist/${name}.d.ts`, `dist/${name}.js`]);
  assert.deepEqual(files.toSorted(), ["README.md", "package.json", ...built].sort());
  for (const { types, default: code } of Object.values(PACKAGE["exports"]) as Record<string, string>[]) {
    assert.ok(files.includes(types!.slice(2)) && files.includes(code!.slice(2)), `${types}, ${code}`);
  }
  assert.equal(PACKAGE["dependencies"], undefined);
  // npm warns about packages that run scripts when they are installed.
  const atInstall = ["preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare"];
  assert.deepEqual(
    Object.keys(PACKAGE["scripts"]).filter((name) => atInstall.includes(name)),
    [],
  );
});

test("quick start of docs/typescript.md runs in an empty folder", async () => {
  const section = readFileSync(join(ROOT, "docs/typescript.md"), "utf8").split("\n## ")[1]!;
  const [, tasks] = /^```ts\n([^]*?)^```/m.exec(section)!;
  const commands = [...section.matchAll(/^```sh\n([^]*?)^```/gm)].at(-1)![1]!;
  writeFileSync(join(folder, "tasks.ts"), tasks!);
  // From a folder, because the tests ask no registry.
  const zod = `${join(SDK, "node_modules/zod")} --offline --no-audit --no-fund`;
  const output = await runInTerminal(commands.replace(/ zod$/m, ` ${zod}`));
  assert.equal(output.match(/hello Ada$/gm)?.length, 3, output);
  assert.deepEqual(errorsOf(tasks!), "");
  assert.match(errorsOf(`${tasks}\nvoid greet.submit({ name: 1 });`), /not assignable to type 'string'/);
});

/** Runs commands one after the other, and `kafleet dev` beside those after it. Returns the output of the last one. */
async function runInTerminal(commands: string): Promise<string> {
  const bin = mkdtempSync(join(folder, ".bin-"));
  symlinkSync(process.env["KAFLEET_BINARY"]!, join(bin, "kafleet"));
  const path = [bin, dirname(process.execPath), process.env["PATH"]].join(delimiter);
  const env: NodeJS.ProcessEnv = { PATH: path, HOME: folder, KAFLEET_API_LISTEN: "127.0.0.1:0" };
  let output = "";
  let fleet: ChildProcess | undefined;
  try {
    for (const command of commands.trim().split("\n")) {
      if (command.startsWith("kafleet dev")) {
        fleet = spawn(`exec ${command}`, { shell: true, cwd: folder, env, stdio: ["ignore", "pipe", "pipe"] });
        env["KAFLEET_API"] = await urlOf(fleet);
      } else {
        output = execSync(command, { cwd: folder, env, encoding: "utf8", stdio: "pipe", timeout: PATIENCE_MS });
      }
    }
  } finally {
    if (fleet?.kill()) await once(fleet, "exit");
  }
  return output;
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
