/** Errors of declarations and of the client. */

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
  return new (BY_STATUS[status] ?? ApiError)(status, problem);
}

/** A task has ended without success. */
export class TaskFailed extends Error {
  override readonly name = "TaskFailed";
  readonly id: string;
  /** `failed`, `cancelled` or `expired`. */
  readonly state: string;
  /** Stable name of its last error; `undefined` if only a descendant has failed. */
  readonly kind: string | undefined;
  /** Message of its last error. */
  readonly reason: string;

  constructor(status: { id: string; state: string; own_state?: string; error?: { kind: string; message: string } | null }) {
    let reason = status.error ? `: ${status.error.kind}: ${status.error.message}` : "";
    if (status.own_state === "succeeded") {
      reason = ` because of a descendant; hint: \`kafleet why ${status.id}\` names that task`;
    }
    super(`the task \`${status.id}\` ended as ${status.state}${reason}`);
    this.id = status.id;
    this.state = status.state;
    this.kind = status.error?.kind;
    this.reason = status.error?.message ?? "";
  }
}

/** A task has not ended in time. */
export class TimedOut extends Error {
  override readonly name = "TimedOut";
}
