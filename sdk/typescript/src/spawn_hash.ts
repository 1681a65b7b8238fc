/** Ids of children without one of their own, as workers make them: docs/wire.md, "Spawn hash". */

import { createHash } from "node:crypto";

import { encode } from "./json.ts";

const ALPHABET = "abcdefghijklmnopqrstuvwxyz234567";
const CHARS = 12;

/** Returns the name of a child of a type with these params. */
export function spawnHash(type: string, params: unknown): string {
  const bits = createHash("sha256")
    .update(`${type}\0${canonical(params)}`)
    .digest()
    .readBigUInt64BE();
  const digits = Array.from({ length: CHARS }, (_, n) => Number((bits >> BigInt(59 - 5 * n)) & 31n));
  return digits.map((digit) => ALPHABET[digit]).join("");
}

/** Returns a value of JSON as text that is the same for equal values. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (typeof value !== "object" || value === null || "rawJSON" in value) return Object.is(value, -0) ? "0" : encode(value);
  const names = Object.keys(value).sort((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
  return `{${names.map((name) => `${encode(name)}:${canonical((value as Record<string, unknown>)[name])}`).join()}}`;
}
