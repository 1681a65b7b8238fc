/** Projects with the packed packages installed, in folders without a checkout. */

import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { after } from "node:test";

/** Folder with what `sdk/typescript/packages` has packed from the program of the tests. */
const PACKED = process.env["KAFLEET_PACKAGES"]!;

/** Packed packages: `kafleet`, and that of the program for this platform. */
export const [PROGRAM_TARBALL, SDK_TARBALL] = readdirSync(PACKED)
  .map((name) => join(PACKED, name))
  .sort((one, other) => other.length - one.length) as [string, string];

/** Options of npm, which asks no registry in tests. */
export const OFFLINE = ["--offline", "--no-audit", "--no-fund"];

/** Creates a folder, which is removed after the tests. */
export function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "kafleet-npm-"));
  after(() => rmSync(folder, { recursive: true }));
  return folder;
}

/** Creates a project with installed packages. */
export function newProject(...packages: string[]): string {
  const folder = newFolder();
  writeFileSync(join(folder, "package.json"), JSON.stringify({ type: "module" }));
  execFileSync("npm", ["install", ...OFFLINE, ...packages], {
    cwd: folder,
    env: { ...process.env, HOME: folder },
    stdio: "pipe",
  });
  return folder;
}

/** Creates a folder with programs of PATH, for a PATH with nothing else. */
export function newPath(...programs: string[]): string {
  const folder = newFolder();
  for (const program of programs) {
    const folders = process.env["PATH"]!.split(delimiter);
    symlinkSync(folders.map((each) => join(each, program)).find(existsSync)!, join(folder, program));
  }
  return folder;
}
