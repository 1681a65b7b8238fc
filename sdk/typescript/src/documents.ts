/**
 * Documents of the API, with its names. A test compares them with `schemas/openapi.json`; docs/api.md describes them. Those that
 * extend `Part` have further fields.
 */

/** Part of a document that has no type of its own here. */
export type Part = Readonly<Record<string, unknown>>;

/** State of a task that has not ended. */
export type OpenState =
  "expected" | "scheduled" | "queued" | "running" | "retrying" | "cancelling" | "warning" | "waiting_for_children";

/** State of a task. */
export type State = OpenState | "succeeded" | "cancelled" | "expired" | "failed";

/** Last error of a task. */
export interface ErrorInfo {
  /** Stable name for programs. */
  kind: string;
  message: string;
  /** Attempt in which it occurred; 0: before the first. */
  attempt: number;
}

/** Numbers of direct children. */
export interface Children {
  total: number;
  pending: number;
  successful: number;
  failed: number;
  by_state: Record<string, number>;
}

/** Totals over a task and all its descendants. */
export interface Tree {
  total: number;
  pending: number;
  successful: number;
  failed: number;
  started_at: string | null;
  /** Task that started first. */
  started_by: string | null;
  ended_at: string | null;
  /** Task that ended last. */
  ended_by: string | null;
  execution_ms: number | null;
}

/** Verdict about the submission of a unique task. */
export type Verdict = "started" | "kept" | "joined";

/** Status document of a task. Times are RFC 3339. */
export interface Status {
  id: string;
  parent: string | null;
  root: string;
  type: string | null;
  /** State of the task and its descendants. */
  state: State;
  /** State of the task itself. */
  own_state: State;
  run: number;
  attempt: number;
  /** Waits of the run, which do not count as attempts. */
  waits: number;
  name: string | null;
  creator: string | null;
  tags: string[];
  link: string | null;
  reply_to: string | null;
  options: unknown;
  headers: Record<string, string>;
  external: boolean;
  fail_fast: boolean;
  max_failed: number | null;
  index: number | null;
  then: Part[];
  actions: Part[];
  checks: Part[];
  /** Uniqueness of the task: its key, or an object with its rule. */
  unique: Part | null;
  deliveries: Part | null;
  created_at: string | null;
  seen_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  due_at: string | null;
  /** Time since which an open task is in its state; of a running one the start of its attempt. */
  state_since: string | null;
  progress: unknown;
  result: unknown;
  error: ErrorInfo | null;
  children: Children;
  tree: Tree;
  worker: string | null;
  record: string | null;
  /** Verdict about the submission of a unique task, in the answer to it. */
  verdict: string | null;
  /** Position of the last event that the document includes. */
  position: string;
  duplicates: number;
  interruptions: number;
  superseded: boolean;
  trace_id: string | null;
}

/** A task with the tasks below it. */
export interface TreeNode {
  id: string;
  type: string | null;
  state: State;
  name: string | null;
  attempt: number;
  error: ErrorInfo | null;
  progress: unknown;
  started_at: string | null;
  ended_at: string | null;
  children: Children;
  tree: Tree;
  below: TreeNode[];
  /** Number of direct children that are omitted from `below`. */
  omitted: number;
  /** Continuations that the outcome of the ended task has not started. */
  not_started: UnstartedContinuation[];
}

/** A continuation of an ended task that does not exist. */
export interface UnstartedContinuation {
  id: string;
  type: string;
  /** Outcome of the ended task that would have started it: `succeeded`, `failed` or `ended`. */
  on: string;
}

/** One explanation of a state. */
export interface Finding extends Part {
  /** Stable name of the reason. */
  code: string;
  message: string;
  /** Task concerned, if it is another one. */
  task: string | null;
}

/** Explanations of a task's state, the most important first. */
export interface Why {
  id: string;
  state: State;
  findings: Finding[];
}

/** Lines of a task's log. */
export interface LogDocument {
  id: string;
  /** Number of the first line; the oldest line ever logged is 0. */
  from: number;
  lines: LogLine[];
  /** Number of all lines ever logged. */
  total: number;
  /** Number of lines that the worker dropped. */
  dropped: number;
}

/** Line of a log. */
export interface LogLine {
  at: string;
  run: number;
  /** Number of the attempt that wrote the line; 0 for a line that was appended from outside. */
  attempt: number;
  /** Stream on which the process of the attempt wrote the line; null if the handler, its SDK or a client logged it. */
  stream: string | null;
  text: string;
}

/** Events of a task. */
export interface History {
  id: string;
  events: HistoryItem[];
  /** Number of older events that are no longer kept. */
  dropped: number;
  duplicates: number;
}

/** Event of a task. */
export interface HistoryItem extends Part {
  kind: string;
  at: string;
  message: string | null;
}

/** Change of tasks; `ids` is null if any task may have changed. */
export interface FleetChange {
  ids: string[] | null;
  partition: number | null;
  position: string | null;
}

/** Task or record that is not retried automatically. */
export interface DeadLetter extends Part {
  id: string;
  type: string;
  task: string | null;
  /** Stable name of the reason. */
  code: string;
  /** Kind of the error with which the task ended. */
  kind: string | null;
  error: string;
}
