/** Writes the folders of the two packages, without the program: `node manifests.ts FOLDER PLATFORM`. */

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { PLATFORMS, PROGRAM_FILE, thisPlatform } from "./src/program.ts";

const HERE = import.meta.dirname;
const [folder = "", platform = thisPlatform()] = process.argv.slice(2);

if (!PLATFORMS.includes(platform)) {
  console.error(`error: \`${platform}\` is not a platform of the packages\n\nhint: ${PLATFORMS.join(", ")}`);
  process.exit(2);
}

// `private` keeps the folder of the checkout, which lacks the optional dependencies, from being published.
const { private: _, ...sdk } = JSON.parse(readFileSync(join(HERE, "package.json"), "utf8")) as Record<string, string>;
const programs = Object.fromEntries(PLATFORMS.map((name) => [`@kafleet/${name}`, sdk["version"]]));
writeManifest("sdk", { ...sdk, optionalDependencies: programs });
copyFileSync(join(HERE, "README.md"), join(folder, "sdk/README.md"));

const [os, cpu, musl] = platform.split("-");
writeManifest("program", {
  name: `@kafleet/${platform}`,
  version: sdk["version"],
  description: `The program kafleet for ${platform}; install the package kafleet`,
  license: sdk["license"],
  os: [os],
  cpu: [cpu],
  ...(os === "linux" && { libc: [musl ?? "glibc"] }),
  files: [PROGRAM_FILE],
  // Yarn would keep the program in an archive, where it cannot be executed.
  preferUnplugged: true,
});

function writeManifest(name: string, manifest: object): void {
  mkdirSync(join(folder, name), { recursive: true });
  writeFileSync(join(folder, name, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
}
