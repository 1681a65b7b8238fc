/** kafleet: tasks on Kafka, written in TypeScript. */

import { serveIfStarted } from "./main.ts";

export { App, type AppOptions, type Around } from "./app.ts";
export { Call, chain, Chord, chord, Group, group } from "./canvas.ts";
export { Client, type ServerEvent } from "./client.ts";
export { Context, current, type Silent, type Stream } from "./context.ts";
export { Bundle, type BundledOptions, type TaskOptions } from "./declare.ts";
export type * from "./documents.ts";
export {
  ApiError,
  Conflict,
  DeclarationError,
  Forbidden,
  Invalid,
  NotFound,
  TaskFailed,
  TimedOut,
  Unavailable,
} from "./errors.ts";
export { Handle, type Report, type ReportedState, type WaitOptions } from "./handle.ts";
export * from "./operations.ts";
export type { CallOptions, ChildOptions, ExternalOptions, GroupOptions, PatchOptions, Policy } from "./options.ts";
export type { SubmitOptions, ThenOptions } from "./options.ts";
export { type Dialect, outboxStatement, type OutboxStatement, type Transaction } from "./outbox.ts";
export {
  Cancelled,
  Dead,
  type Duration,
  Fail,
  Outcome,
  Retry,
  SoftTimeout,
  SpawnFailed,
  Unsuccessful,
  Wait,
} from "./outcomes.ts";
export type { ScheduleOptions, ScheduleSpec } from "./schedules.ts";
export type { InputOf, JsonSchemaOptions, OutputOf, Schema, Wire } from "./schema.ts";
export { type Arguments, type Definition, type Handler, Remote, type Run, type Submitted, Target, Task } from "./task.ts";
export { type Ended, Joined } from "./upstream.ts";
export { VERSION } from "./version.ts";

const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
if (major < 22 || (major === 22 && minor < 18)) {
  throw new Error(`kafleet needs Node 22.18 or newer: this is ${process.version} at \`${process.execPath}\``);
}
serveIfStarted();
