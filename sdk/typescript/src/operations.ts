/** What the API does beyond single tasks: searches, bulk actions, dead letters, schedules, and tasks of external systems. */

import type { AnyApp } from "./app.ts";
import { thenDocuments } from "./canvas.ts";
import type { DeadLetter, Part, Status } from "./documents.ts";
import { Handle } from "./handle.ts";
import { refuseUnknown } from "./names.ts";
import { type ExternalOptions, taskFields } from "./options.ts";
import { scheduleOf, type ScheduleSpec } from "./schedules.ts";

/** A part of the API. */
class Operations {
  readonly #app: AnyApp;

  constructor(app: AnyApp) {
    this.#app = app;
  }

  protected get app(): AnyApp {
    return this.#app;
  }
}

/** Options of a search. */
export interface SearchOptions {
  limit?: number;
  sort?: "newest" | "oldest" | "longest";
}

/** Tasks of the fleet, of all types. */
export class Tasks extends Operations {
  /**
   * Reads the status documents of the tasks that match a search (docs/search.md), page by page: tasks of all levels, if it names a
   * type, an error, a worker, an id or a tree, otherwise those without a parent. `sort`: another order than the newest first, where the
   * query permits it. `limit`: number of tasks, by default all.
   */
  search(query: string, options: SearchOptions = {}): AsyncGenerator<Status, void> {
    refuseUnknown(options, ["limit", "sort"], "`search`");
    const { limit, sort } = options;
    return this.app.client.list("/v1/tasks", "tasks", { q: query, sort }, limit);
  }
}

/** Tasks of a bulk action: those that match a search, or up to 100 ids. */
export type Selected = string | readonly string[];

/** Options of a bulk action. */
export interface BulkOptions {
  /** Number of changed tasks beyond which the action stops and fails. Default 100. */
  limit?: number;
  reason?: string;
}

/** Dead letters of a type: with this code, of tasks that ended with this kind of error or this error, of this time. */
export interface LetterFilter {
  type: string;
  code?: string;
  kind?: string;
  /** Name of an error: `error` in `GET /v1/failures`. */
  error?: string;
  from?: string;
  to?: string;
}

const LETTER_FILTERS = ["type", "code", "kind", "error", "from", "to"];

/** Options of a bulk redrive. */
export interface RedriveOptions extends BulkOptions {
  /** Merge patch (RFC 7386) of the params of each task; `null` in it removes a value. */
  patch?: unknown;
}

/** Numbers of tasks of a bulk action: changed, not concerned, and those that can never be retried or whose params are invalid. */
export type BulkResult = Record<"done" | "skipped" | "refused", number>;

/** Actions on many tasks or dead letters. Each is a task itself, which has a handle. Needs the role `operate`. */
export class Bulk extends Operations {
  /** Cancels open tasks and their descendants. */
  cancel(tasks: Selected, options: BulkOptions = {}): Promise<Handle<BulkResult>> {
    return this.#begin("cancel", selected(tasks), options);
  }

  /** Runs ended tasks again, or with `onlyFailed` the failed tasks of their trees. */
  retry(tasks: Selected, options: BulkOptions & { onlyFailed?: boolean } = {}): Promise<Handle<BulkResult>> {
    const { onlyFailed = false, ...rest } = options;
    return this.#begin(onlyFailed ? "retry_failed" : "retry", selected(tasks), rest, ["onlyFailed"]);
  }

  /** Starts tasks now that wait for their start or their next attempt. */
  startNow(tasks: Selected, options: BulkOptions = {}): Promise<Handle<BulkResult>> {
    return this.#begin("start_now", selected(tasks), options);
  }

  /**
   * Runs the tasks of dead letters again, those of a filter or up to 100 ids, also with changed params. Letters whose params would
   * not match the schema of the type are refused.
   */
  async redrive(letters: LetterFilter | readonly string[], options: RedriveOptions = {}): Promise<Handle<BulkResult>> {
    if (isIds(letters)) return this.#begin("redrive", { ids: letters }, options, ["patch"]);
    refuseUnknown(letters, LETTER_FILTERS, "`redrive`");
    return this.#begin("redrive", { letters }, options, ["patch"]);
  }

  async #begin(action: string, selection: object, options: BulkOptions, others: string[] = []): Promise<Handle<BulkResult>> {
    refuseUnknown(options, ["limit", "reason", ...others], "a bulk action");
    const { id, type, position } = await this.app.client.request<Status>("POST", "/v1/bulk", {
      action,
      ...selection,
      ...options,
    });
    return new Handle<BulkResult>(this.app.remote(type!) as never, id, position);
  }
}

function selected(tasks: Selected): object {
  return typeof tasks === "string" ? { q: tasks } : { ids: tasks };
}

function isIds(letters: LetterFilter | readonly string[]): letters is readonly string[] {
  return Array.isArray(letters);
}

/** Selection of dead letters. */
export interface DeadLetterOptions extends Partial<LetterFilter> {
  limit?: number;
}

const LETTER_OPTIONS = [...LETTER_FILTERS, "limit"];

/** Dead letters: tasks and records that are not retried automatically. */
export class DeadLetters extends Operations {
  /** Reads the dead letters, the newest first. `limit`: their number, by default all. */
  list(options: DeadLetterOptions = {}): AsyncGenerator<DeadLetter, void> {
    refuseUnknown(options, LETTER_OPTIONS, "`list`");
    const { limit, ...query } = options;
    return this.app.client.list("/v1/dead-letters", "letters", query, limit);
  }

  /**
   * Runs the task of a dead letter again, with other `params` if they are given. `app.bulk.redrive` does the same with many dead
   * letters.
   */
  async redrive(letter: string, changes: { params?: unknown; reason?: string } = {}): Promise<Part> {
    refuseUnknown(changes, ["params", "reason"], "`redrive`");
    return this.app.client.request("POST", `/v1/dead-letters/${encodeURIComponent(letter)}/redrive`, changes);
  }

  /**
   * Resolves a dead letter without running its task. Of a selection with a `type`: its newest letters, by default at most 100; the
   * document has `done`, `refused` and `more`.
   */
  async drop(letters: string | DeadLetterOptions, options: { reason?: string } = {}): Promise<Part> {
    refuseUnknown(options, ["reason"], "`drop`");
    if (typeof letters === "string") {
      return this.app.client.request("POST", `/v1/dead-letters/${encodeURIComponent(letters)}/drop`, options);
    }
    refuseUnknown(letters, LETTER_OPTIONS, "`drop`");
    return this.app.client.request("POST", "/v1/dead-letters/drop", { ...letters, ...options });
  }
}

/** Recurring schedules. Reading needs the role `read`, all else `operate`. */
export class Schedules extends Operations {
  /** Returns the documents of all schedules, by id. */
  async list(): Promise<Part[]> {
    return (await this.app.client.request<{ schedules: Part[] }>("GET", "/v1/schedules")).schedules;
  }

  /** Returns the document of a schedule. Rejects with `NotFound`. */
  get(id: string): Promise<Part> {
    return this.app.client.request("GET", scheduled(id));
  }

  /** Creates a schedule, or replaces it. Rejects with a `DeclarationError` for a wrong spec. */
  async upsert(id: string, spec: ScheduleSpec): Promise<Part> {
    return this.app.client.request("PUT", scheduled(id), scheduleOf([id, spec]).spec);
  }

  /** Deletes a schedule; its tasks stay. */
  async delete(id: string): Promise<void> {
    await this.app.client.request("DELETE", scheduled(id));
  }

  /** Suspends a schedule until `resume`. */
  pause(id: string, reason?: string): Promise<Part> {
    return this.app.client.request("POST", `${scheduled(id)}/pause`, { reason });
  }

  /** Continues a schedule; missed times are not made up for. */
  resume(id: string): Promise<Part> {
    return this.app.client.request("POST", `${scheduled(id)}/resume`);
  }

  /** Creates a task of a schedule now, and returns its handle. */
  async trigger(id: string): Promise<Handle> {
    const { tasks } = await this.app.client.request<{ tasks: string[] }>("POST", `${scheduled(id)}/trigger`);
    return this.app.handle(tasks[0]!);
  }
}

function scheduled(id: string): string {
  return `/v1/schedules/${encodeURIComponent(id)}`;
}

/** Type of tasks that an external system runs: it reports their states with `report` of their handles. */
export class External extends Operations {
  readonly name: string;

  constructor(app: AnyApp, name: string) {
    super(app);
    this.name = name;
  }

  /** Creates a task. Rejects with an `ApiError`. */
  async submit(options: ExternalOptions = {}): Promise<Handle> {
    const fields = taskFields(this.name, options, "external");
    if (options.then) fields["then"] = thenDocuments(options.then, false);
    const { id, position } = await this.app.client.createDocument({ type: this.name, external: true, ...fields });
    return new Handle(this.app.remote(this.name), id, position);
  }

  /** Returns the handle of an existing task. */
  handle(id: string): Handle {
    return this.app.remote(this.name).handle(id);
  }
}
