/** kafleet: tasks on Kafka, written in TypeScript. */

import { serveIfStarted } from "./main.ts";

export { App, type AppOptions, type Around } from "./app.ts";
export { Client, Handle, type Status, type TreeNode, type WaitOptions } from "./client.ts";
export { Context, current, type Ended, Joined } from "./context.ts";
export { Bundle, type BundledOptions, type TaskOptions } from "./declare.ts";
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
export type { CallOptions, ChildOptions, Policy, SubmitOptions, ThenOptions } from "./options.ts";
export { Cancelled, Dead, type Duration, Fail, Outcome, Retry, SpawnFailed, Unsuccessful, Wait } from "./outcomes.ts";
export type { InputOf, OutputOf, Schema, Wire } from "./schema.ts";
export { Call, Remote, type Submitted, Target, Task } from "./task.ts";
export { VERSION } from "./version.ts";

const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
if (major < 22 || (major === 22 && minor < 18)) {
  throw new Error(`kafleet needs Node 22.18 or newer: this is ${process.version} at \`${process.execPath}\``);
}
serveIfStarted();
