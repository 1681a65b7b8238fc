/** Client of the REST API: sends requests, reads lists and streams, and creates tasks. */

import { setTimeout as sleep } from "node:timers/promises";
import { AsyncLocalStorage } from "node:async_hooks";

import { apiUrl } from "./address.ts";
import { accepted, type Answer } from "./answers.ts";
import { batches } from "./batches.ts";
import type { Call } from "./canvas.ts";
import { running } from "./context.ts";
import type { Verdict } from "./documents.ts";
import { ApiError, apiError, type Problem } from "./errors.ts";
import type { Handle } from "./handle.ts";
import { identified } from "./ids.ts";
import { decode, encode } from "./json.ts";
import { refuseUnknown } from "./names.ts";
import type { Submitted } from "./task.ts";

/** Size of a batch in characters, of up to three bytes each: the API accepts 8 MiB. */
const BATCH_CHARS = 2 << 20;

/** Time for one response: longer than any wait of the API. */
const REQUEST_MS = 60_000;

/** Silence after which a stream counts as lost: the API sends a comment every 15 s. */
const SILENCE_MS = 45_000;

/** Pause before the second repetition; the first one follows at once, since the server may have closed an idle connection. */
const FIRST_PAUSE_MS = 100;

/** Pause before a stream that has ended is opened again. */
const STREAM_PAUSE_MS = 200;

/** Size of a page of a list, the maximum of the API. */
const PAGE = 200;

/** Statuses after which a request is repeated; 0: there was no answer. */
const TEMPORARY = [0, 502, 503, 504];

/** Connection with the API at a URL. */
export class Client {
  readonly url: string;
  /** Time for which a request is repeated while the API or a service behind it is unavailable, in milliseconds. */
  patienceMs = 30_000;
  readonly #token: string | undefined;

  constructor(options: { url?: string | undefined; token?: string | undefined } = {}) {
    refuseUnknown(options, ["url", "token"], "`Client`");
    const { url, token } = options;
    this.url = apiUrl(url);
    this.#token = token ?? process.env["KAFLEET_TOKEN"];
  }

  /** Creates one task. */
  async create<R, F>(call: Call<R, F>): Promise<Handle<R, F>> {
    const created = this.createDocument(call.document("submit")).catch((error: unknown) => {
      throw call.explained(error);
    });
    const { id, position, verdict } = await created;
    return call.handle(id, position, verdict ?? undefined);
  }

  /** Creates one task from its document, to which it adds an id. */
  async createDocument(document: Record<string, unknown>): Promise<Created> {
    identified(document);
    const text = encode(document);
    return record([text])?.[0] ?? this.send("POST", "/v1/tasks", text);
  }

  /** Creates tasks of one tree, all or none: parents precede their children. */
  async createTree(documents: readonly Record<string, unknown>[]): Promise<Created> {
    const texts = documents.map(encode);
    const created = record(texts) ?? (await this.send<{ items: Created[] }>("POST", ATOMIC, `[${texts.join(",")}]`)).items;
    return created[0]!;
  }

  /** Creates tasks in batches; each has its own outcome, in order. All are encoded before the first batch is sent. */
  async createMany<R>(calls: Iterable<Call<R>>): Promise<Submitted<R>[]> {
    const outcomes: Submitted<R>[] = [];
    const encoded = Iterator.from(calls).map((call): [Call<R>, string] => [call, submission(call)]);
    for (const batch of [...batches(encoded, ([, text]) => text.length, BATCH_CHARS)]) {
      const last = outcomes.at(-1);
      const isUnreachable = last instanceof ApiError && last.status === 0;
      const create = () => (isUnreachable ? batch.map(() => last) : this.#createBatch(batch));
      const recorded = record(batch.map(([, text]) => text))?.map(({ id }, n) => batch[n]![0].handle(id));
      for (const outcome of recorded ?? (await create())) outcomes.push(outcome);
    }
    return outcomes;
  }

  /**
   * Sends any request, and returns the document of the response, or the text of one that is not JSON. `body`: any JSON value.
   * While the API is unavailable it is sent again; a `POST` only if it has certainly not been carried out. Rejects with an
   * `ApiError`.
   */
  request<T = unknown>(method: string, path: string, body?: unknown, isRepeatable?: IsRepeatable): Promise<T> {
    const isSafe = isRepeatable ?? (method.toUpperCase() === "POST" ? isWithoutEffect : isTemporary);
    return this.send(method, path, body === undefined ? undefined : encode(body), isSafe);
  }

  /** Sends a request whose body is JSON text. `isRepeatable`: whether it may be sent again after an error. */
  async send<T>(method: string, path: string, text?: string, isRepeatable: IsRepeatable = isTemporary): Promise<T> {
    return (await this.#exchange(method, path, text, { isRepeatable })).value as T;
  }

  /** Reads a list page by page; `member` has the items of a page. `limit`: number of items, by default all. */
  async *list<T>(path: string, member: string, query: Query, limit = Infinity): AsyncGenerator<T, void> {
    for (let cursor: unknown, left = limit; left > 0;) {
      const page: Record<string, unknown> = await this.request(
        "GET",
        withQuery(path, { ...query, limit: Math.min(left, PAGE), cursor: cursor as string }),
      );
      const items = page[member] as T[];
      yield* items;
      left -= items.length;
      cursor = page["next"];
      if (!cursor) return;
    }
  }

  /** Reads a stream of server-sent events, and opens it again where it has ended, at the path of that time. */
  async *events(path: () => string, signal: AbortSignal): AsyncGenerator<ServerEvent, never> {
    for (let last: string | undefined; ; await sleep(STREAM_PAUSE_MS, undefined, { signal })) {
      for await (const event of this.#stream(path(), signal, last)) {
        last = event.id ?? last;
        yield event;
      }
    }
  }

  /** Reads a stream until it ends or is lost. `last`: id of the event after which it resumes. */
  async *#stream(path: string, signal: AbortSignal, last: string | undefined): AsyncGenerator<ServerEvent> {
    const lost = new AbortController();
    const stop = AbortSignal.any([lost.signal, signal]);
    let silence: NodeJS.Timeout | undefined;
    try {
      const { body } = await this.#exchange("GET", path, undefined, { signal: stop, last, isStream: true });
      silence = setTimeout(() => lost.abort(), SILENCE_MS);
      try {
        yield* eventsOf(body!, () => silence?.refresh());
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
        answer = await this.send("POST", "/v1/batches", body);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        // The tasks that were created before keep their handles.
        for (const index of remaining) outcomes[index] = error;
        return outcomes;
      }
      remaining.forEach((index, place) => {
        const item = answer.items[place]!;
        const [call] = batch[index]!;
        const refused = () => call.explained(apiError(item.problem!.status ?? 0, item.problem!));
        const { id, position, verdict } = item;
        outcomes[index] = item.outcome === "accepted" ? call.handle(id!, position, verdict ?? undefined) : refused();
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
    { signal, last, isStream = false, isRepeatable = isTemporary }: Exchange,
  ): Promise<{ value: unknown; body: Answer["body"] }> {
    if (recorder.getStore()) throw new Error("tasks are recorded here, not created; hint: test with `fleet`");
    const deadline = performance.now() + this.patienceMs;
    for (let pause = 0; ; pause = Math.min(2 * pause + FIRST_PAUSE_MS, 2000)) {
      const answer = await this.#send(method, path, body, signal, last);
      const request = `${method} ${path.split("?")[0]}`;
      const value = answer instanceof Error ? this.#unreachable(answer) : accepted(this.url, request, isStream, answer);
      if (!(value instanceof ApiError)) return { value, body: (answer as Answer).body };
      if (!isRepeatable(value) || performance.now() + pause > deadline) throw value;
      if (pause === FIRST_PAUSE_MS) this.#warn(value);
      await sleep(pause, undefined, signal && { signal });
    }
  }

  /** Sends a request once. Returns an error if there is no answer in time. */
  async #send(
    method: string,
    path: string,
    body: string | undefined,
    signal: AbortSignal | undefined,
    last: string | undefined,
  ): Promise<Answer | Error> {
    const headers: Record<string, string> = { accept: "application/json, text/event-stream" };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (last !== undefined) headers["last-event-id"] = last;
    if (this.#token) headers["authorization"] = `Bearer ${this.#token}`;
    const trace = running.getStore()?.trace;
    if (trace) headers["traceparent"] = trace.parent;
    if (trace?.state) headers["tracestate"] = trace.state;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(new Error(`no answer within ${REQUEST_MS / 1000} s`)), REQUEST_MS);
    const stop = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
    try {
      const response = await fetch(this.url + path, { method, headers, signal: stop, ...(body !== undefined && { body }) });
      const { status, body: stream } = response;
      const media = response.headers.get("content-type") ?? "";
      const redirected = response.redirected ? response.url : undefined;
      if (response.ok && media.startsWith("text/event-stream")) return { status, media, redirected, text: "", body: stream };
      // The body is part of the answer: without all of it the request is repeated.
      return { status, media, redirected, text: await response.text(), body: null };
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

/** Event of a stream; `id` is the place after which it resumes. */
export interface ServerEvent {
  kind: string;
  data: unknown;
  id: string | undefined;
}

type IsRepeatable = (error: ApiError) => boolean;

interface Exchange {
  signal?: AbortSignal;
  last?: string | undefined;
  isStream?: boolean;
  isRepeatable?: IsRepeatable;
}

/** Route that creates tasks of one tree, all or none. */
const ATOMIC = "/v1/batches?atomic=true";

/** Created task; a recorded one has no position. */
interface Created {
  id: string;
  position?: string;
  verdict?: Verdict | null;
}

/** Parameters of a request; those that are `undefined` are left out. */
export type Query = Record<string, string | number | undefined>;

/** Returns a path with parameters. */
export function withQuery(path: string, query: Query): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined);
  const text = new URLSearchParams(pairs.map(([name, value]): [string, string] => [name, `${value}`])).toString();
  return text ? `${path}?${text}` : path;
}

interface Item {
  outcome: string;
  id?: string;
  position?: string;
  verdict?: Verdict | null;
  problem?: Problem;
}

function isTemporary(error: ApiError): boolean {
  return TEMPORARY.includes(error.status);
}

/** Whether a request that must not be carried out twice has certainly not been carried out. */
export function isWithoutEffect(error: ApiError): boolean {
  return error.status === 503 && !["not_visible_yet", "outcome_unknown"].includes(error.code);
}

/** Reads the events of a body; `onLine` is called for each line. */
async function* eventsOf(body: AsyncIterable<Uint8Array>, onLine: () => void): AsyncGenerator<ServerEvent> {
  let kind = "";
  let id: string | undefined;
  for await (const line of lines(body)) {
    onLine();
    const colon = line.indexOf(":");
    const [name, value] = [line.slice(0, colon), line.slice(colon + 1).trim()];
    if (name === "event") kind = value;
    else if (name === "id") id = value;
    else if (name === "data") yield { kind, data: decode(value).value, id };
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

function submission(call: Call<unknown>): string {
  const document = call.document("submit");
  identified(document);
  return encode(document);
}

/** Document of a task that was submitted while tasks are recorded. */
export type Recorded = { type: string; params: unknown; id: string } & Record<string, unknown>;

/** Receives the submitted tasks instead of the API, for `recorded` of `kafleet/testing`. */
export const recorder = new AsyncLocalStorage<Recorded[]>();

/** Records tasks, if they are to be recorded instead of created. */
function record(texts: readonly string[]): Created[] | undefined {
  const recorded = recorder.getStore();
  return recorded && texts.map((text) => ({ id: recorded[recorded.push(decode(text).value as Recorded) - 1]!.id }));
}
