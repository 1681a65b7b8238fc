/** Projects as people compile them: with what `tsc --init` writes, and to CommonJS. */

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";

import { ROOT } from "./driver.ts";
import { FIRST, greeting, projectOf, run, SDK, TOOLS } from "./shop_project.ts";

const KAFLEET = process.env["KAFLEET_BINARY"]!;

/** Compilers, by their versions: the oldest that is supported, and the newest. */
const COMPILERS: Record<string, string> = Object.fromEntries(
  [TOOLS, join(SDK, "node_modules")].map((folder) => {
    const { version } = JSON.parse(readFileSync(join(folder, "typescript/package.json"), "utf8")) as { version: string };
    return [version, join(folder, "typescript/bin/tsc")];
  }),
);

const types = (name: string) => readFileSync(join(import.meta.dirname, "types", name), "utf8");

describe("project of `tsc --init`", () => {
  for (const [version, compiler] of Object.entries(COMPILERS)) {
    /** Compiles a project with what `tsc --init` writes, in which texts are replaced. */
    const errors = (files: Record<string, string>, ...changes: [string, string][]): string => {
      const folder = projectOf(files);
      run(folder, ["node", compiler, "--init"]);
      const config = join(folder, "tsconfig.json");
      const text = changes.reduce((text, [from, to]) => text.replace(from, to), readFileSync(config, "utf8"));
      writeFileSync(config, text);
      assert.match(text, /"declaration": true/);
      return run(folder, ["node", compiler, "--noEmit", "--pretty", "false"]);
    };

    test(`compiles the first example of docs/typescript.md, and exports of everything, with TypeScript ${version}`, () => {
      const files = { "tasks.ts": FIRST, "accepted.ts": types("accepted.ts"), "exported.ts": types("exported.ts") };
      assert.equal(errors(files), "");
    });

    test(`compiles the example of several files with TypeScript ${version}, with the options that docs name`, () => {
      const example = join(ROOT, "examples/typescript/links");
      const files = Object.fromEntries(
        ["tasks.ts", "links.test.ts"].map((name) => [name, readFileSync(join(example, name), "utf8")]),
      );
      const options = '"types": ["node"], "rewriteRelativeImportExtensions": true,';
      assert.equal(errors(files, ['"types": [],', options]), "");
    });

    test(`compiles to CommonJS with TypeScript ${version}, and runs`, () => {
      const compilerOptions = { module: "commonjs", target: "es2023", strict: true, declaration: true, outDir: "dist" };
      const config = { compilerOptions: { ...compilerOptions, types: ["node"], skipLibCheck: true }, include: ["*.ts"] };
      const files = { "tasks.ts": FIRST, "greeting.ts": greeting("./tasks"), "tsconfig.json": JSON.stringify(config) };
      const folder = projectOf(files, "commonjs");
      assert.equal(run(folder, ["node", compiler, "--pretty", "false"]), "");
      assert.equal(run(folder, ["node", "dist/greeting.js"]), "greeted Ada 3\n");
      assert.match(run(folder, [KAFLEET, "app", "check", "dist/tasks.js"]), /^main +greet +name, times\?/m);
    });
  }
});
