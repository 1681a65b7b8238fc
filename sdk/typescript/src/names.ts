/** Names of options: those that nothing understands are refused, with the form that works or the nearest one that exists. */

import { formOfOption, type Place } from "./foreign.ts";

/** Changes of letters after which a name still counts as a misspelling of another one. */
const MAX_CHANGES = 3;

/** Throws an error for the first option that is not allowed. `owner`: what has the options, in backticks. */
export function refuseUnknown(
  options: object,
  allowed: readonly string[],
  owner: string,
  Problem: new (message: string) => Error = TypeError,
): void {
  const unknown = Object.keys(options).find((name) => !allowed.includes(name));
  if (unknown !== undefined) throw new Problem(`\`${unknown}\` is not an option of ${owner}${hintFor(unknown, allowed)}`);
}

/** Returns a hint with the form that works, the name that was probably meant, or all of a few. */
export function hintFor(unknown: string, allowed: readonly string[], place?: Place): string {
  const form = formOfOption(unknown, place);
  if (form) return `; hint: ${form}`;
  const distances = allowed.map((name) => distance(unknown.slice(0, 64).toLowerCase(), name.toLowerCase()));
  const nearest = Math.min(...distances);
  const limit = Math.min(MAX_CHANGES, Math.ceil(unknown.length / 2));
  if (nearest <= limit) return `; hint: did you mean \`${allowed[distances.indexOf(nearest)]}\`?`;
  return allowed.length <= 6 ? `; hint: it has ${allowed.map((name) => `\`${name}\``).join(", ")}` : "";
}

/** Number of letters to insert, delete and replace between two words. */
function distance(one: string, other: string): number {
  let previous = Array.from({ length: other.length + 1 }, (_, column) => column);
  for (let row = 1; row <= one.length; row++) {
    const current = [row];
    for (let column = 1; column <= other.length; column++) {
      const replaced = previous[column - 1]! + Number(one[row - 1] !== other[column - 1]);
      current.push(Math.min(previous[column]! + 1, current[column - 1]! + 1, replaced));
    }
    previous = current;
  }
  return previous.at(-1)!;
}
