/** Errors of declarations and of the client. */

import { hintOfSdk } from "./hints.ts";

/** A task type is declared wrongly. */
export class DeclarationError extends TypeError {
  override readonly name = "DeclarationError";
}

/** Problem document of the API (RFC 9457). */
export interface Problem {
  status?: number;
  code?: string;
  title?: string;
  detail?: string;
  hint?: string | null;
  pointer?: string | null;
  existing?: string | null;
}

/** The API refuses a request. */
export class ApiError extends Error {
  /** HTTP status; 0: no answer. */
  readonly status: number;
  /** Stable name of the problem. */
  readonly code: string;
  readonly detail: string;
  readonly hint: string | undefined;
  /** JSON pointer of the invalid value in the request. */
  readonly pointer: string | undefined;
  /** Id of the task concerned. */
  readonly existing: string | undefined;

  constructor(status: number, problem: Problem) {
    const { code = `http_${status}`, detail = problem.title ?? "", hint, pointer, existing } = problem;
    super(`${code}: ${detail}${pointer ? ` at ${pointer}` : ""}${hint ? `; hint: ${hint}` : ""}`);
    this.name = new.target.name;
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.hint = hint ?? undefined;
    this.pointer = pointer ?? undefined;
    this.existing = existing ?? undefined;
  }
}

/** The request is invalid: params that do not match the schema, unknown fields, a task that is too large. */
export class Invalid extends ApiError {}

/** The token is missing, invalid, or not sufficient. */
export class Forbidden extends ApiError {}

/** There is no such task, parent or type. */
export class NotFound extends ApiError {}

/** The request contradicts the state of the task, or its id belongs to another task. */
export class Conflict extends ApiError {}

/** The API, Kafka or the store is unavailable. The request can be repeated with the same ids. */
export class Unavailable extends ApiError {}

const BY_STATUS: Record<number, typeof ApiError> = {
  0: Unavailable,
  400: Invalid,
  401: Forbidden,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  410: NotFound,
  413: Invalid,
  415: Invalid,
  422: Invalid,
  502: Unavailable,
  503: Unavailable,
  504: Unavailable,
};

/** Returns the error for a problem document. */
export function apiError(status: number, problem: Problem): ApiError {
  const hint = problem.hint && hintOfSdk(problem.hint);
  return new (BY_STATUS[status] ?? ApiError)(status, { ...problem, ...(hint && { hint }) });
}

/** End of a task, as its status document has it. */
interface End {
  id: string;
  state: string;
  own_state: string;
  error: { kind: string; message: string } | null;
}

/** A task has ended without success. */
export class TaskFailed extends Error {
  override readonly name = "TaskFailed";
  readonly id: string;
  /** `failed`, `cancelled` or `expired`. */
  readonly state: string;
  /** Id of the descendant that decided it; `undefined` if the task itself has failed, or if that task is not known. */
  readonly descendant: string | undefined;
  /** Stable name of the error: that of the task itself or of the descendant. */
  readonly kind: string | undefined;
  /** Message of that error. */
  readonly reason: string;

  /** `decisive`: the task that decided it, if it is known; `log`: lines of its log. */
  constructor(status: End, decisive: End | undefined, log: readonly string[]) {
    const { id, state } = status;
    const descendant = decisive?.id === id ? undefined : decisive?.id;
    const error = decisive?.error;
    const place = descendant ? ` because of its descendant \`${descendant}\`` : "";
    const unknown = ` because of a descendant; hint: \`kafleet why ${id}\` names that task`;
    const reason = decisive ? place + (error ? `: ${error.kind}: ${error.message}` : "") : unknown;
    super(`the task \`${id}\` ended as ${state}${reason}${logText(decisive?.id, log)}`);
    this.id = id;
    this.state = state;
    this.descendant = descendant;
    this.kind = error?.kind;
    this.reason = error?.message ?? "";
  }
}

/** Returns the log of a task as the end of a message. */
export function logText(id: string | undefined, lines: readonly string[]): string {
  return lines.length ? `\nlog of \`${id}\`:\n${lines.map((line) => `  ${line}`).join("\n")}` : "";
}

/** A task has not ended in time. */
export class TimedOut extends Error {
  override readonly name = "TimedOut";
}
