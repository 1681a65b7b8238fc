/** Reading of responses: their documents, the problems of the API, and answers of something that is no kafleet. */

import { type ApiError, apiError, type Problem, Unavailable } from "./errors.ts";
import { decode } from "./json.ts";

/** Response that has been read; of an event stream, its body is left. */
export interface Answer {
  status: number;
  media: string;
  text: string;
  body: ReadableStream<Uint8Array> | null;
  /** URL that has answered, after a redirect. */
  redirected: string | undefined;
}

/** Member that the document of the API has, by request. */
const MEMBERS: Record<string, string | undefined> = {
  "POST /v1/tasks": "id",
  "POST /v1/batches": "items",
  "POST /v1/bulk": "id",
  "GET /v1/tasks": "tasks",
  "GET /v1/types": "types",
  "GET /v1/workers": "workers",
  "GET /v1/schedules": "schedules",
  "GET /v1/dead-letters": "letters",
};

/** The same for reads of a task, by the rest of the path. */
const MEMBERS_OF_TASK: Record<string, string | undefined> = {
  "": "state",
  children: "tasks",
  history: "events",
  log: "lines",
  params: "params",
  why: "findings",
};

/** Number of characters of a short text that a message shows. */
const MAX_EXCERPT_CHARS = 100;

/**
 * Returns the document of a response, or the text of one that is not JSON. Returns an error for a response that is none of
 * success, or that kafleet cannot have sent.
 */
export function accepted(url: string, request: string, isStream: boolean, answer: Answer): unknown {
  const { status, media, text } = answer;
  if (status < 200 || status >= 300) return refusal(url, request, answer);
  if (isStream) return media.startsWith("text/event-stream") ? "" : foreign(url, request, answer);
  const member = memberOf(request);
  if (!media.includes("json") && (text || member)) {
    // A web page is sent only as an attachment.
    const isPage = media.includes("html") && request.includes(" /v1/") && !request.includes("/attachments/");
    return member || isPage ? foreign(url, request, answer, text ? "" : "empty") : text;
  }
  const document = read(text);
  if (document === undefined) return foreign(url, request, answer, text ? "no JSON" : "empty");
  return member && !has(document, member) ? foreign(url, request, answer, `JSON without \`${member}\``) : document;
}

function memberOf(request: string): string | undefined {
  const [method, ofTask] = request.split(" /v1/tasks/");
  if (ofTask === undefined) return MEMBERS[request];
  return method === "GET" ? MEMBERS_OF_TASK[ofTask.split("/").slice(1).join("/")] : undefined;
}

function read(text: string): unknown {
  try {
    return decode(text).value;
  } catch {
    return undefined;
  }
}

function has(document: unknown, member: string): boolean {
  return typeof document === "object" && document !== null && member in document;
}

function refusal(url: string, request: string, answer: Answer): ApiError {
  const document = read(answer.text);
  if (has(document, "code") && typeof (document as Problem).code === "string") {
    return apiError(answer.status, document as Problem);
  }
  return foreign(url, request, answer, document === undefined ? excerpt(answer) : "JSON without `code`");
}

/** Returns the beginning of a short text, such as that of a proxy. */
function excerpt({ media, text }: Answer): string {
  return media.includes("html") ? "" : text.split(/\s+/).join(" ").trim().slice(0, MAX_EXCERPT_CHARS);
}

/** Returns the error for an answer that is not of kafleet. `more`: the difference. */
function foreign(url: string, request: string, { status, media, redirected }: Answer, more = ""): ApiError {
  const kind = media.split(";")[0] || "without a media type";
  const parts = [`${status} ${kind}`, redirected && `after a redirect to ${redirected}`, more].filter(Boolean).join(", ");
  const where = [502, 503, 504].includes(status) ? "check the proxy in front of kafleet, and KAFLEET_API" : "check KAFLEET_API";
  return new Unavailable(status, {
    code: "not_kafleet",
    detail: `\`${url}\` answered, but it is not kafleet (${request}: ${parts})`,
    hint: `${where}, or \`api\` of the app; \`kafleet dev\` prints its address`,
  });
}
