/** Types of JavaScript in schemas which JSON does not have, and what to declare instead. */

import { attempted } from "./shown.ts";
import type { Schema } from "./schema.ts";

const REMEDIES: Record<string, string> = {
  date: "JSON has times as text: write `z.iso.datetime()`, and `.transform((text) => new Date(text))` for a `Date`",
  bigint: 'write `z.any().transform(BigInt)` with `numbers: "exact"`, or a text',
  map: "JSON has objects: write `z.record(z.string(), …)`, and `.transform((o) => new Map(Object.entries(o)))` for a `Map`",
  set: "JSON has lists: write `z.array(…)`, and `.transform((list) => new Set(list))` for a `Set`",
  undefined: "omit it, write `.optional()` for a member that may be missing, or `z.null()`",
  void: "omit it: the result of a handler that returns nothing is null",
  nan: "write `z.number().nullable()`",
  custom: "declare its form in JSON, and make the object in a `.transform(…)`",
  symbol: "write `z.enum([…])`, or a text",
};

/** Returns the text about a schema that its library cannot describe as JSON Schema: the place, and what to write instead. */
export function withoutJsonSchema(schema: Schema | undefined, message: string): string {
  const [type, path] = (schema && attempted(() => find(schema))) ?? [];
  const place = path ? ` at \`${path}\`` : "";
  return `${message}${place}${type ? `; hint: ${REMEDIES[type]}` : ""}`;
}

/** Context of one schema within another, as zod passes it on. */
interface Visit {
  zodSchema: { _zod: { def: { type: string } } };
  path: (string | number)[];
}

/** Returns the first type in a schema of zod which JSON does not have, and the place of its values. */
function find(schema: Schema): [string, string] | undefined {
  let found: [string, string] | undefined;
  const override = ({ zodSchema, path }: Visit) => {
    const { type } = zodSchema._zod.def;
    if (type in REMEDIES) found ??= [type, placeOf(path)];
  };
  schema["~standard"].jsonSchema?.input({ target: "draft-2020-12", libraryOptions: { unrepresentable: "any", override } });
  return found;
}

/** Returns the place of the values for a place of JSON Schema; `*` is any item or name. */
function placeOf(path: readonly (string | number)[]): string {
  let place = "";
  for (let at = 0; at < path.length; at++) {
    if (path[at] === "properties" || path[at] === "prefixItems") place += `/${path[++at]}`;
    else if (path[at] === "items" || path[at] === "additionalProperties") place += "/*";
    else if (typeof path[at + 1] === "number") at++;
  }
  return place;
}

/** Returns the hint for the message of a library about a value, if it expects a type that JSON does not have. */
export function hintForType(message: string): string {
  const [, one, other] = /expected (date|bigint|map|set)\b|be an? (?:instance of )?(date|bigint|map|set)\b/i.exec(message) ?? [];
  const type = (one ?? other)?.toLowerCase();
  return type ? `; hint: ${REMEDIES[type]}` : "";
}
