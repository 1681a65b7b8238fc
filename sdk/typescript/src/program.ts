/** Search for the program `kafleet`: the file in KAFLEET_BINARY, else that in the package of this platform. */

import { accessSync, constants, statSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

/** Platforms that have a package with the program, as they have a wheel for Python. */
export const PLATFORMS: readonly string[] = [
  "darwin-arm64",
  "darwin-x64",
  "linux-arm64",
  "linux-arm64-musl",
  "linux-x64",
  "linux-x64-musl",
];

/** Place of the program in its package. */
export const PROGRAM_FILE = "bin/kafleet";

/** Returns the name of a platform. A Node on Linux that runs without glibc runs with musl. */
export function platformName(os: string, cpu: string, glibc: string | undefined): string {
  return `${os}-${cpu}${os === "linux" && !glibc ? "-musl" : ""}`;
}

/** Returns the name of the platform of this Node. */
export function thisPlatform(): string {
  return platformName(process.platform, process.arch, process.platform === "linux" ? glibcVersion() : undefined);
}

/** Returns the absolute path of the program; throws if there is none, with the remedies. */
export function findProgram(): string {
  const named = process.env["KAFLEET_BINARY"];
  if (!named) return packagedProgram(thisPlatform());
  if (isExecutable(named)) return resolve(named);
  throw new Error(`KAFLEET_BINARY is \`${named}\`, which is not an executable file; hint: correct it, or unset it`);
}

function packagedProgram(platform: string): string {
  if (!PLATFORMS.includes(platform)) {
    throw new Error(
      `there is no package of the program \`kafleet\` for \`${platform}\`; hint: compile the program in a checkout of the ` +
        "repository (`cargo build --release`), and set KAFLEET_BINARY to its path",
    );
  }
  try {
    // From the place of this module: pnpm shows the package to nobody else.
    return createRequire(import.meta.url).resolve(`@kafleet/${platform}/${PROGRAM_FILE}`);
  } catch (error) {
    const message =
      `the program \`kafleet\` is missing: its package \`@kafleet/${platform}\` is not installed; hint: npm leaves it out with ` +
      "`--omit=optional`, and may leave it out if package-lock.json was made on another platform (npm/cli#4828): then delete " +
      "package-lock.json and node_modules, and run `npm install`. Or set KAFLEET_BINARY to the path of the program";
    throw new Error(message, { cause: error });
  }
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

function glibcVersion(): string | undefined {
  const report = process.report as typeof process.report & { excludeNetwork: boolean };
  const excluded = report.excludeNetwork;
  // A report would look up the names of all connections.
  report.excludeNetwork = true;
  const { header } = report.getReport() as { header: { glibcVersionRuntime?: string } };
  report.excludeNetwork = excluded;
  return header.glibcVersionRuntime;
}
