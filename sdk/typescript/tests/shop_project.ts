/** Project with the package and what its programs import; copies of it are the projects of tests. */

import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { PATIENCE_MS, ROOT } from "./driver.ts";
import { newFolder, newProject, SDK_TARBALL } from "./project.ts";

export const SDK = join(import.meta.dirname, "..");

/** Folder with the programs of `projects/package.json`. */
export const TOOLS = join(import.meta.dirname, "projects/node_modules");

const installed = newProject(SDK_TARBALL);
for (const name of ["zod", "arktype", "@ark", "arkregex"]) link(join(SDK, "node_modules", name), name);
for (const name of ["@types", "undici-types", "tsx", "esbuild", "@esbuild"]) link(join(TOOLS, name), name);

function link(target: string, name: string): void {
  symlinkSync(target, join(installed, "node_modules", name));
}

/** Creates a project with the installed packages. */
export function projectOf(files: Record<string, string>, type: "module" | "commonjs" = "module"): string {
  const folder = newFolder();
  // A copy of the SDK, since a link is followed to its real path.
  cpSync(join(installed, "node_modules"), join(folder, "node_modules"), { recursive: true, verbatimSymlinks: true });
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "shop", type }));
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(folder, name, ".."), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  return folder;
}

/** Runs a command, and returns its output. It is killed after `patienceMs`. */
export function run(cwd: string, [program, ...args]: string[], patienceMs = PATIENCE_MS): string {
  const env = { ...process.env, DENO_DIR: join(installed, "deno"), DENO_NO_UPDATE_CHECK: "1" };
  const options = { cwd, env, encoding: "utf8", timeout: patienceMs, killSignal: "SIGKILL" } as const;
  const { stdout, stderr } = spawnSync(program!, args, options);
  return stdout + stderr;
}

/** First example of docs/typescript.md. */
export const FIRST = /^```ts\n([^]*?)^```/m.exec(readFileSync(join(ROOT, "docs/typescript.md"), "utf8"))![1]!;

/** Program that prints the result of the example, and the number of lines of its log. `tasks`: path of the example. */
export const greeting = (tasks: string) => `
import { trial } from "kafleet/testing";
import { greet } from "${tasks}";
void trial(greet, { name: "Ada" }).then((run) => console.log(run.output, run.log.length));
`;
