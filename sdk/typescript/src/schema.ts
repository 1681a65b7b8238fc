/** Schemas of params and results: the interface of Standard Schema and Standard JSON Schema. */

import { hintForType } from "./json_types.ts";

/** Schema of a library that implements Standard Schema (https://standardschema.dev), such as zod, arktype or valibot. */
export interface Schema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => Validated<Output> | Promise<Validated<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
    /** JSON Schema of the values before validation. Without it, neither the API nor the worker checks them. */
    readonly jsonSchema?: { readonly input: (options: JsonSchemaOptions) => Record<string, unknown> };
  };
}

/** Options of a conversion to JSON Schema. */
export interface JsonSchemaOptions {
  readonly target: "draft-2020-12";
  readonly libraryOptions?: Record<string, unknown> | undefined;
}

/** Outcome of a validation. */
export type Validated<Output> = { readonly value: Output; readonly issues?: undefined } | { readonly issues: readonly Issue[] };

/** Mismatch between a value and its schema. */
export interface Issue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** Type that a schema accepts. */
export type InputOf<S extends Schema> = NonNullable<S["~standard"]["types"]>["input"];

/** Type that a schema returns. */
export type OutputOf<S extends Schema> = NonNullable<S["~standard"]["types"]>["output"];

/** Form of a value after it has travelled as JSON: a `Date` is a string, `undefined` is null, a small `bigint` a number. */
export type Wire<T> = 0 extends 1 & T
  ? T
  : T extends { toJSON(): infer J }
    ? Wire<J>
    : T extends string | number | boolean | null
      ? T
      : T extends undefined | void
        ? null
        : T extends bigint
          ? number | bigint
          : T extends symbol | ((...args: never[]) => unknown)
            ? never
            : T extends readonly unknown[]
              ? { [K in keyof T]: Wire<Exclude<T[K], undefined>> }
              : T extends object
                ? { [K in keyof T]: undefined extends T[K] ? Wire<Exclude<T[K], undefined>> | undefined : Wire<T[K]> }
                : T;

/** A value does not have the form that its schema requires. */
export class Mismatch extends Error {}

/** Returns the value that a schema makes of its input. Throws `Mismatch`. */
export async function validated(schema: Schema | undefined, value: unknown): Promise<unknown> {
  if (!schema) return value;
  const result = await schema["~standard"].validate(value);
  if (!result.issues) return result.value;
  throw new Mismatch(textOfIssues(result.issues));
}

/**
 * Returns why a value does not fit a schema; nothing if it fits. `UNDECIDED`: the schema answers with a promise, as after a
 * look into a database.
 */
export function mismatchOf(schema: Schema, value: unknown): string | undefined | typeof UNDECIDED {
  const result = schema["~standard"].validate(value);
  if (result instanceof Promise) {
    result.catch(() => {});
    return UNDECIDED;
  }
  return result.issues && textOfIssues(result.issues);
}

export const UNDECIDED = Symbol("undecided");

function textOfIssues(issues: readonly Issue[]): string {
  const shown = issues.slice(0, 5).map(text).join("; ");
  return shown + hintForType(shown);
}

function text(issue: Issue): string {
  const path = (issue.path ?? []).map((part) => `/${String(typeof part === "object" ? part.key : part)}`).join("");
  return path ? `${path}: ${issue.message}` : issue.message;
}

/** Returns the JSON Schema that describes the input of a schema; nothing if its library has none. */
export function jsonSchema(schema: Schema | undefined): Record<string, unknown> | undefined {
  return schema?.["~standard"].jsonSchema?.input({ target: "draft-2020-12" });
}

/** Returns a JSON Schema as people write a type: an object with its members, one level deep. */
export function signature(schema: Record<string, unknown> | undefined): string {
  const { type, properties, required = [] } = (schema ?? {}) as { type?: unknown; properties?: object; required?: string[] };
  if (!properties) return typeOf(schema);
  const members = Object.entries(properties).map(
    ([name, member]) => `${name}${required.includes(name) ? "" : "?"}: ${typeOf(member)}`,
  );
  return type === "object" && members.length ? `{ ${members.join(", ")} }` : typeOf(schema);
}

function typeOf(schema: Record<string, unknown> | undefined): string {
  const { type, items, enum: values } = schema ?? {};
  if (type === "array") return `${items ? typeOf(items as Record<string, unknown>) : "unknown"}[]`;
  if (Array.isArray(values)) return values.map((value) => JSON.stringify(value)).join(" | ");
  return typeof type === "string" ? type : "unknown";
}
