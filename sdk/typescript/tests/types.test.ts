/** The compiler accepts the documented use, and rejects wrong arguments. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const TYPES = join(import.meta.dirname, "types");
const TSC = join(import.meta.dirname, "../node_modules/.bin/tsc");

test("wrong arguments are rejected and right ones accepted", () => {
  const { stdout } = spawnSync(TSC, ["--project", TYPES, "--pretty", "false"], { encoding: "utf8" });
  const found = [...stdout.matchAll(/^[^\s(]*?(\w+)\.ts\((\d+),/gm)].map(([, file, line]) => `${file}:${line}`);
  const lines = readFileSync(join(TYPES, "rejected.ts"), "utf8").split("\n");
  const expected = lines.flatMap((line, index) => (line.endsWith("// error") ? [`rejected:${index + 1}`] : []));
  assert.deepEqual([...new Set(found)], expected, stdout);
});
