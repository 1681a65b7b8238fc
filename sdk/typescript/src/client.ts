/** Client of the REST API: creates tasks and waits for their results. */

import { createHash, randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { AsyncLocalStorage } from "node:async_hooks";

import { batches, type Context, running } from "./context.ts";
import { ApiError, apiError, type Problem, TaskFailed, TimedOut } from "./errors.ts";
import { type Duration, milliseconds } from "./outcomes.ts";
import { decode, encode } from "./json.ts";
import { refuseUnknown } from "./names.ts";
import { textOf } from "./shown.ts";
import type { Call, Submitted, Target } from "./task.ts";

export const DEFAULT_URL = "http://127.0.0.1:8080";

/** Size of a batch in characters, of up to three bytes each: the API accepts 8 MiB. */
const BATCH_CHARS = 2 << 20;

/** Time for one response: longer than any wait of the API. */
const REQUEST_MS = 60_000;

/** Silence after which a stream counts as lost: the API sends a comment every 15 s. */
const SILENCE_MS = 45_000;

/** Longest time of a timer. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** Pause before the second repetition; the first one follows at once, since the server may have closed an idle connection. */
const FIRST_PAUSE_MS = 100;

/** Statuses after which a request is repeated; 0: there was no answer. */
const TEMPORARY = [0, 502, 503, 504];

/** Status document of a task; docs/api.md describes all its fields. */
export interface Status {
  id: string;
  type: string | null;
  state: string;
  own_state: string;
  run: number;
  attempt: number;
  progress: unknown;
  result: unknown;
  error: { kind: string; message: string; attempt: number } | null;
  children: Record<string, number>;
  position: string;
  [field: string]: unknown;
}

/** Task with the tasks below it. */
export interface TreeNode {
  id: string;
  type: string | null;
  state: string;
  name: string | null;
  attempt: number;
  error: Status["error"];
  progress: unknown;
  below: TreeNode[];
  /** Number of direct children that are omitted from `below`. */
  omitted: number;
  [field: string]: unknown;
}

/** Options of the wait for a task. */
export interface WaitOptions {
  timeout?: Duration;
  signal?: AbortSignal;
}

/** A created task. `R`: its result. */
export class Handle<R = unknown> {
  /** Task id. */
  readonly id: string;
  /** Position of its newest known event; reads through this handle include that event. */
  position: string | undefined;
  readonly #task: Target<never, R>;
  readonly #client: Client;

  constructor(task: Target<never, R>, id: string, position?: string) {
    this.id = id;
    this.position = position;
    this.#task = task;
    this.#client = task.app.client;
  }

  /** Returns the status document. */
  async status(): Promise<Status> {
    const status = await this.#client.request<Status>("GET", this.#path(""));
    this.position = status.position ?? this.position;
    return status;
  }

  /** Returns the task with `depth` levels of tasks below it, at most `limit` tasks. */
  async tree(options: { depth?: number; limit?: number } = {}): Promise<TreeNode> {
    refuseUnknown(options, ["depth", "limit"], "`tree`");
    const { depth, limit } = options;
    return this.#client.request("GET", this.#path("/tree", { depth, limit }));
  }

  /** Cancels the task and its descendants. A task that has ended stays as it is. */
  async cancel(reason?: string): Promise<void> {
    try {
      const body = await this.#client.request<{ position: string }>("POST", `${this.#base}/cancel`, encode({ reason }));
      this.position = body.position ?? this.position;
    } catch (error) {
      if ((error as ApiError).code !== "already_finished") throw error;
    }
  }

  /** Runs an ended task again, or with `onlyFailed` the failed tasks of its tree, and returns the number of the run. */
  async retry(options: { onlyFailed?: boolean; reason?: string } = {}): Promise<number> {
    refuseUnknown(options, ["onlyFailed", "reason"], "`retry`");
    const { onlyFailed = false, reason } = options;
    const body = encode({ only_failed: onlyFailed, reason });
    const path = `${this.#base}/retry`;
    const answer = await this.#client.request<{ run: number; status: Status }>("POST", path, body, isWithoutEffect);
    this.position = answer.status.position ?? this.position;
    return answer.run;
  }

  /** Returns the status document now and at every change, until the task has ended. Throws `TimedOut`. */
  async *watch(options: WaitOptions = {}): AsyncGenerator<Status, Status> {
    refuseInAttempt();
    refuseUnknown(options, ["timeout", "signal"], "a wait");
    const { timeout, signal } = options;
    const deadline = timeout === undefined ? undefined : AbortSignal.timeout(Math.min(milliseconds(timeout), MAX_TIMER_MS));
    const stop = AbortSignal.any([deadline, signal].filter((each) => each !== undefined));
    let last: Status | undefined;
    try {
      for (;;) {
        for await (const event of this.#client.events(this.#path("/watch"), stop)) {
          if (event.kind === "end" && last && (event.data as { reason: string }).reason === "finished") return last;
          if (event.kind !== "status") continue;
          last = event.data as Status;
          this.position = last.position ?? this.position;
          yield last;
        }
        await sleep(200, undefined, { signal: stop });
      }
    } catch (error) {
      if (!deadline?.aborted || signal?.aborted) throw signal?.aborted ? signal.reason : error;
      throw new TimedOut(`the task \`${this.id}\` has not ended in time${last ? `: it is ${last.state}` : ""}`);
    }
  }

  /** Waits for the result. Throws `TaskFailed` or `TimedOut`. */
  async result(options: WaitOptions = {}): Promise<R> {
    const statuses = this.watch(options);
    for (;;) {
      const { done, value } = await statuses.next();
      if (!done) continue;
      if (value.state !== "succeeded") throw new TaskFailed(value);
      return this.#task.received(value.result);
    }
  }

  get #base(): string {
    checkId(this.id);
    return `/v1/tasks/${encodeURIComponent(this.id).replaceAll("%3A", ":")}`;
  }

  #path(rest: string, query: Record<string, string | number | undefined> = {}): string {
    const pairs = Object.entries({ ...query, after: this.position }).filter(([, value]) => value !== undefined);
    const text = new URLSearchParams(pairs.map(([name, value]): [string, string] => [name, `${value}`])).toString();
    return `${this.#base}${rest}${text && `?${text}`}`;
  }
}

/** Connection with the API at a URL. */
export class Client {
  readonly url: string;
  /** Time for which a request is repeated while the API or a service behind it is unavailable, in milliseconds. */
  patienceMs = 30_000;
  readonly #token: string | undefined;

  constructor(options: { url?: string | undefined; token?: string | undefined } = {}) {
    refuseUnknown(options, ["url", "token"], "`Client`");
    const { url, token } = options;
    this.url = (url ?? process.env["KAFLEET_API"] ?? DEFAULT_URL).replace(/\/+$/, "");
    if (!/^https?:\/\/./.test(this.url) || !URL.canParse(this.url)) {
      const address = this.url.split("://").at(-1);
      const hint = address ? `http://${address}` : DEFAULT_URL;
      throw new TypeError(`\`${this.url}\` is not the URL of an API; hint: write \`${hint}\``);
    }
    this.#token = token ?? process.env["KAFLEET_TOKEN"];
  }

  /** Creates one task. */
  async create<R>(call: Call<R>): Promise<Handle<R>> {
    const text = submission(call);
    const recorded = recorder.getStore();
    if (recorded) return record(recorded, call, text);
    const created = await this.request<{ id: string; position: string }>("POST", "/v1/tasks", text);
    return new Handle(call.target, created.id, created.position);
  }

  /** Creates tasks in batches; each has its own outcome, in order. All are encoded before the first batch is sent. */
  async createMany<R>(calls: Iterable<Call<R>>): Promise<Submitted<R>[]> {
    const outcomes: Submitted<R>[] = [];
    const recorded = recorder.getStore();
    const encoded = Iterator.from(calls).map((call): [Call<R>, string] => [call, submission(call)]);
    for (const batch of [...batches(encoded, ([, text]) => text.length, BATCH_CHARS)]) {
      const last = outcomes.at(-1);
      const isUnreachable = last instanceof ApiError && last.status === 0;
      const create = () => (isUnreachable ? batch.map(() => last) : this.#createBatch(batch));
      const created = recorded ? batch.map((item) => record(recorded, ...item)) : await create();
      for (const outcome of created) outcomes.push(outcome);
    }
    return outcomes;
  }

  /**
   * Sends a request, again while the API is unavailable, and returns the document of the response. `isRepeatable`: whether
   * the request may be sent again after an error.
   */
  async request<T>(method: string, path: string, body?: string, isRepeatable = isTemporary): Promise<T> {
    return decode(await (await this.#exchange(method, path, body, { isRepeatable })).text()).value as T;
  }

  /** Reads a stream of server-sent events until it ends or is lost. */
  async *events(path: string, signal: AbortSignal): AsyncGenerator<ServerEvent> {
    const lost = new AbortController();
    const stop = AbortSignal.any([lost.signal, signal]);
    let silence: NodeJS.Timeout | undefined;
    try {
      const response = await this.#exchange("GET", path, undefined, { signal: stop });
      silence = setTimeout(() => lost.abort(), SILENCE_MS);
      try {
        yield* eventsOf(response.body!, () => silence?.refresh());
      } catch {
        // The stream is lost: it is opened again.
      }
      signal.throwIfAborted();
    } finally {
      clearTimeout(silence);
      lost.abort();
    }
  }

  async #createBatch<R>(batch: [Call<R>, string][]): Promise<Submitted<R>[]> {
    const outcomes: Submitted<R>[] = [];
    const deadline = performance.now() + this.patienceMs;
    let remaining = [...batch.keys()];
    for (;;) {
      const body = `[${remaining.map((index) => batch[index]![1]).join(",")}]`;
      let answer: { items: Item[] };
      try {
        answer = await this.request("POST", "/v1/batches", body);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        // The tasks that were created before keep their handles.
        for (const index of remaining) outcomes[index] = error;
        return outcomes;
      }
      remaining.forEach((index, place) => {
        const item = answer.items[place]!;
        const target = batch[index]![0].target;
        const handle = () => new Handle(target, item.id!, item.position);
        outcomes[index] = item.outcome === "accepted" ? handle() : apiError(item.problem!.status ?? 0, item.problem!);
      });
      // Only those whose repetition can help; a task that exists is not created twice.
      remaining = remaining.filter((index) => (outcomes[index] as Partial<ApiError>).status === 503);
      if (!remaining.length || performance.now() > deadline) return outcomes;
      await sleep(500);
    }
  }

  async #exchange(
    method: string,
    path: string,
    body: string | undefined,
    { signal, isRepeatable = isTemporary }: { signal?: AbortSignal; isRepeatable?: (error: ApiError) => boolean },
  ): Promise<Response> {
    if (recorder.getStore()) throw new Error("tasks are recorded here, not created; hint: test with `fleet`");
    const deadline = performance.now() + this.patienceMs;
    for (let pause = 0; ; pause = Math.min(2 * pause + FIRST_PAUSE_MS, 2000)) {
      const answer = await this.#send(method, path, body, signal);
      if (answer instanceof Response && answer.ok) return answer;
      const error = answer instanceof Response ? await problemOf(answer) : this.#unreachable(answer);
      if (!isRepeatable(error) || performance.now() + pause > deadline) throw error;
      if (pause === FIRST_PAUSE_MS) this.#warn(error);
      await sleep(pause, undefined, signal && { signal });
    }
  }

  /** Sends a request once. Returns an error if there is no answer in time. */
  async #send(
    method: string,
    path: string,
    body: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Response | Error> {
    const headers: Record<string, string> = { accept: "application/json, text/event-stream" };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (this.#token) headers["authorization"] = `Bearer ${this.#token}`;
    const trace = running.getStore()?.trace;
    if (trace) headers["traceparent"] = trace.parent;
    if (trace?.state) headers["tracestate"] = trace.state;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(new Error(`no answer within ${REQUEST_MS / 1000} s`)), REQUEST_MS);
    const stop = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
    try {
      const response = await fetch(this.url + path, { method, headers, signal: stop, ...(body !== undefined && { body }) });
      if (!response.ok || response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
      // The body is part of the answer: without all of it the request is repeated.
      return new Response(await response.text(), { status: response.status === 204 ? 200 : response.status });
    } catch (error) {
      signal?.throwIfAborted();
      return error as Error;
    } finally {
      // A stream goes on; its silence is limited elsewhere.
      clearTimeout(timer);
    }
  }

  /** Reports that a request is repeated, which would otherwise seem to hang. */
  #warn(error: ApiError): void {
    const seconds = Math.round(this.patienceMs / 1000);
    process.emitWarning(`${error.code}: ${error.detail}; trying again for up to ${seconds} s`, "KafleetWarning");
  }

  #unreachable(error: Error): ApiError {
    const cause = error.cause instanceof Error ? error.cause : error;
    const reason = cause.message || (cause as NodeJS.ErrnoException).code || cause.name;
    return apiError(0, {
      code: "unreachable",
      detail: `the API at \`${this.url}\` cannot be reached: ${reason}`,
      hint: "start `kafleet dev`, or set KAFLEET_API to the URL of an API",
    });
  }
}

interface ServerEvent {
  kind: string;
  data: unknown;
}

interface Item {
  outcome: string;
  id?: string;
  position?: string;
  problem?: Problem;
}

function isTemporary(error: ApiError): boolean {
  return TEMPORARY.includes(error.status);
}

/** Whether a request that must not be carried out twice has certainly not been carried out. */
function isWithoutEffect(error: ApiError): boolean {
  return error.status === 503 && !["not_visible_yet", "outcome_unknown"].includes(error.code);
}

async function problemOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  try {
    return apiError(response.status, JSON.parse(text) as Problem);
  } catch {
    return apiError(response.status, { detail: text.slice(0, 500) });
  }
}

/** Reads the events of a body; `onLine` is called for each line. */
async function* eventsOf(body: AsyncIterable<Uint8Array>, onLine: () => void): AsyncGenerator<ServerEvent> {
  let kind = "";
  for await (const line of lines(body)) {
    onLine();
    const colon = line.indexOf(":");
    const [name, value] = [line.slice(0, colon), line.slice(colon + 1).trim()];
    if (name === "event") kind = value;
    else if (name === "data") yield { kind, data: decode(value).value };
  }
}

/** Lines of a body, split at line feeds only: JSON may contain other line breaks. */
async function* lines(body: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of body) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop()!;
    yield* parts;
  }
}

/** Throws in an attempt, before it waits for a task. */
export function refuseInAttempt(): void {
  if (!running.getStore()) return;
  throw new Error("an attempt must not wait for another task, which may need its slot; hint: use `cx.then(…)`");
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

function submission(call: Call<unknown>): string {
  const document = call.document("submit");
  for (const id of [document["id"], document["parent"]]) if (id !== undefined) checkId(id);
  const cx = running.getStore();
  document["id"] ??= cx ? idInAttempt(cx, document) : newId();
  return encode(document);
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

/** Document of a task that was submitted while tasks are recorded. */
export type Recorded = { type: string; params: unknown; id: string } & Record<string, unknown>;

/** Receives the submitted tasks instead of the API, for `recorded` of `kafleet/testing`. */
export const recorder = new AsyncLocalStorage<Recorded[]>();

function record<R>(recorded: Recorded[], call: Call<R>, text: string): Handle<R> {
  const document = decode(text).value as Recorded;
  recorded.push(document);
  return new Handle(call.target, document.id);
}
