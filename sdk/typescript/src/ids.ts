/** Ids of tasks: made before a request is sent, so that a repeated request creates no second task. */

import { createHash, randomBytes } from "node:crypto";

import { type Context, running } from "./context.ts";
import { apiError } from "./errors.ts";
import { encode } from "./json.ts";
import { textOf } from "./shown.ts";

/** Gives a task an id, and returns the id. Throws the error of the API for one that a URL would change. */
export function identified(document: Record<string, unknown>): string {
  for (const id of [document["id"], document["parent"]]) if (id !== undefined) checkId(id);
  const cx = running.getStore();
  document["id"] ??= cx ? idInAttempt(cx, document) : newId();
  return document["id"] as string;
}

/** Returns the path of a task in URLs. Throws the error of the API for an id that a URL would change. */
export function pathOf(id: string): string {
  checkId(id);
  return `/v1/tasks/${encodeURIComponent(id).replaceAll("%3A", ":")}`;
}

/** Returns the id of the n-th continuation of a task, from 0. */
export function continuationId(id: string, n: number): string {
  return `${id}:then${n ? `-${n + 1}` : ""}`;
}

/** Throws an error for an id that a URL changes, which would reach another document: that with which the API refuses it. */
function checkId(id: unknown): void {
  const detail = typeof id === "string" ? problemOfId(id) : `\`${textOf(id)}\` is not an id`;
  if (detail) throw apiError(400, { code: "bad_id", detail });
}

function problemOfId(id: string): string | undefined {
  if (!id) return "the id is empty: give 1 to 128 characters of A-Z a-z 0-9 . _ ~ @ -";
  if (!id.isWellFormed()) return `the id \`${textOf(id)}\` has half of a character`;
  const dropped = id.split(":").find((segment) => segment === "." || segment === "..");
  return dropped && `\`${dropped}\` cannot be an id or a segment of one: URLs drop it; choose another name`;
}

/** Returns a UUIDv7. */
function newId(): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = (bytes[6]! & 0x0f) | 0x70;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Returns an id that is the same in every attempt, so that a repeated attempt creates the same task. */
function idInAttempt(cx: Context, { type, params, parent }: Record<string, unknown>): string {
  const digest = hash(encode([cx.idempotencyKey, type, params, parent ?? null]));
  const count = (cx.submits.get(digest) ?? 0) + 1;
  cx.submits.set(digest, count);
  return hash(`${digest}/${count}`).slice(0, 32);
}

function hash(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}
