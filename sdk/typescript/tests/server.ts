/** Plays an API: answers each request with one of the given responses, and keeps the requests. */

import { createServer, type Server } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";

import type { Scope } from "./driver.ts";

/** Response of the server; none: the connection is closed. */
export type Answer = { status: number; body: string; stream?: boolean; headers?: Record<string, string> } | { cut: string };

export interface Request {
  method: string;
  path: string;
  headers: NodeJS.Dict<string | string[]>;
  body: any;
  /** Body as it was sent. */
  text: string;
}

export class FakeApi {
  readonly requests: Request[] = [];
  readonly url: string;
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  /** Starts an API, which ends with the test. */
  static async start(t: Scope, ...answers: Answer[]): Promise<FakeApi> {
    const server = createServer(async (request, response) => {
      let text = "";
      for await (const chunk of request) text += chunk;
      const { method = "", url = "", headers } = request;
      api.requests.push({ method, path: url, headers, body: text && JSON.parse(text), text });
      const answer = answers.shift() ?? document(500, { code: "no_answer_left" });
      if ("cut" in answer) return void request.socket.end(answer.cut);
      const media = answer.stream ? "text/event-stream" : "application/json";
      response.writeHead(answer.status, answer.headers ?? { "content-type": media });
      // In two pieces, which end inside of lines and characters.
      const bytes = Buffer.from(answer.body);
      response.write(bytes.subarray(0, bytes.length / 2));
      setTimeout(() => response.end(bytes.subarray(bytes.length / 2)), 5);
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    const api: FakeApi = new FakeApi(server);
    t.after(() => api.stop());
    return api;
  }

  async stop(): Promise<void> {
    if (!this.#server.listening) return;
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}

export function document(status: number, body: unknown): Answer {
  return { status, body: JSON.stringify(body) };
}

export function stream(...events: [string, unknown][]): Answer {
  const body = events.map(([kind, data]) => `: a comment\nevent: ${kind}\ndata: ${JSON.stringify(data)}\n\n`).join("");
  return { status: 200, body, stream: true };
}
