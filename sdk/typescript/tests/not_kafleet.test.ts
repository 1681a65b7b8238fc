/** Addresses at which something answers that is no kafleet. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { type ApiError, App, NotFound, Unavailable } from "kafleet";

import { type Answer, document, FakeApi } from "./server.ts";

const PAGE = "<!doctype html><title>Welcome</title>";
const CREATED = document(201, { id: "a", position: "0:1" });
const BAD_GATEWAY = answer(502, "text/plain; charset=utf-8", "no upstream\n");

function answer(status: number, media: string, body: string, headers: Record<string, string> = {}): Answer {
  return { status, body, headers: media ? { "content-type": media, ...headers } : headers };
}

/** Checks that an operation names the URL, the request and the answer. */
async function names(url: string, what: string, operation: Promise<unknown>): Promise<void> {
  await assert.rejects(operation, (error: ApiError) => {
    assert.ok(error instanceof Unavailable);
    assert.equal(error.detail, `\`${url}\` answered, but it is not kafleet (${what})`);
    assert.equal(error.code, "not_kafleet");
    assert.match(error.message, /hint: check .*KAFLEET_API/);
    return true;
  });
}

describe("answer of something else is named with the URL:", () => {
  const cases: [string, Answer, string][] = [
    ["a page", answer(200, "text/html", PAGE), "200 text/html"],
    ["a missing page", answer(404, "text/html; charset=utf-8", PAGE), "404 text/html"],
    ["JSON", answer(200, "application/json", '{"message": "hello"}'), "200 application/json, JSON without `id`"],
    ["an error in JSON", answer(404, "application/json", '{"error": "x"}'), "404 application/json, JSON without `code`"],
    ["nothing", answer(200, "", ""), "200 without a media type, empty"],
    ["text as JSON", answer(200, "application/json", "OK"), "200 application/json, no JSON"],
    ["text", answer(404, "text/plain", "404 page not found\n"), "404 text/plain, 404 page not found"],
  ];
  for (const [name, given, what] of cases) {
    test(name, async (t) => {
      const api = await FakeApi.start(t, given);
      await names(api.url, `POST /v1/tasks: ${what}`, new App({ api: api.url }).remote("echo").submit());
      assert.equal(api.requests.length, 1, "a wrong address does not become a right one");
    });
  }
});

test("redirect to a login page is named", async (t) => {
  const login = await FakeApi.start(t, answer(200, "text/html", PAGE));
  const location = `${login.url}/login`;
  const api = await FakeApi.start(t, answer(302, "", "", { location }));
  const what = `POST /v1/tasks: 200 text/html, after a redirect to ${location}`;
  await names(api.url, what, new App({ api: api.url }).remote("echo").submit());
});

test("answer of a proxy is repeated, and then named", async (t) => {
  const once = await FakeApi.start(t, BAD_GATEWAY, CREATED);
  assert.equal((await new App({ api: once.url }).remote("echo").submit()).id, "a");
  const api = await FakeApi.start(t, BAD_GATEWAY, BAD_GATEWAY);
  const app = new App({ api: api.url });
  // The client's patience ends with the second request.
  t.mock.method(performance, "now", () => (api.requests.length < 2 ? 0 : 2 * app.client.patienceMs));
  await names(api.url, "POST /v1/tasks: 502 text/plain, no upstream", app.remote("echo").submit());
  assert.equal(api.requests.length, 2);
});

test("stream of something else is no stream", async (t) => {
  const api = await FakeApi.start(t, answer(200, "text/html", PAGE));
  const handle = new App({ api: api.url }).handle("a");
  await names(api.url, "GET /v1/tasks/a/watch: 200 text/html", handle.result({ timeout: "5s" }));
});

test("reads name what is missing", async (t) => {
  const api = await FakeApi.start(t, ...Array.from({ length: 4 }, () => document(200, {})));
  const app = new App({ api: api.url });
  const missing = (request: string, member: string) => `${request}: 200 application/json, JSON without \`${member}\``;
  await names(api.url, missing("GET /v1/types", "types"), app.types());
  await names(api.url, missing("GET /v1/tasks", "tasks"), app.tasks.search("a").next());
  await names(api.url, missing("GET /v1/tasks/a", "state"), app.handle("a").status());
  await names(api.url, missing("GET /v1/tasks/a/log", "lines"), app.handle("a").log());
});

test("pages of kafleet are no errors", async (t) => {
  const note = answer(200, "text/html", PAGE);
  const api = await FakeApi.start(t, note, document(404, { code: "not_found", detail: "x" }), note);
  const { client } = new App({ api: api.url });
  assert.equal(await client.request("GET", "/v1/tasks/a/attachments/note.html"), PAGE);
  await assert.rejects(client.request("GET", "/v1/tasks/a/attachments/note.html"), NotFound);
  await names(api.url, "GET /v1/anything: 200 text/html", client.request("GET", "/v1/anything"));
});
