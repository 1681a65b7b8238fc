/**
 * Attempts of a fleet in this process: a worker of `kafleet dev` runs `kafleet app attach`, which connects to it. So mocks and
 * breakpoints of a test are those of the handlers.
 */

import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server as Listener, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import type { AnyApp } from "./app.ts";
import { Connection } from "./connection.ts";
import { complete } from "./loading.ts";
import { captureOutput } from "./output.ts";
import { Server } from "./server.ts";

/** One process of the worker. */
interface Relay {
  socket: Socket;
  server: Server;
  ended: Promise<void>;
}

/** Socket at which relays connect, each for one process of the worker. */
export class AttachedApp {
  readonly #app: AnyApp;
  readonly #folder: string;
  readonly #listener: Listener;
  readonly #relays = new Set<Relay>();

  private constructor(app: AnyApp, folder: string) {
    this.#app = app;
    this.#folder = folder;
    this.#listener = createServer({ allowHalfOpen: true }, (socket) => void this.#serve(socket));
  }

  /** Listens in a folder that other users cannot access. `program`: folder of the modules that the app includes. */
  static async listen(app: AnyApp, program: string): Promise<AttachedApp> {
    await complete(app, program);
    captureOutput();
    const attached = new AttachedApp(app, await mkdtemp(join(tmpdir(), "kafleet-")));
    attached.#listener.listen(attached.#path);
    await once(attached.#listener, "listening");
    return attached;
  }

  get #path(): string {
    return join(this.#folder, "app.sock");
  }

  /** Returns the command of the app that `kafleet dev` is to run. `target`: the app in kafleet.toml that it replaces. */
  command(program: string, target?: string): string[] {
    return [program, "app", "attach", this.#path, ...(target === undefined ? [] : [target])];
  }

  /** Cancels the running attempts, and waits for their ends, at most this time. */
  async cancel(waitMs: number): Promise<void> {
    const relays = [...this.#relays];
    for (const { socket, server } of relays) {
      server.cancel();
      socket.destroy();
    }
    await Promise.race([Promise.all(relays.map(({ ended }) => ended)), sleep(waitMs, undefined, { ref: false })]);
  }

  async close(waitMs: number): Promise<void> {
    this.#listener.close();
    await this.cancel(waitMs);
    await rm(this.#folder, { recursive: true, force: true });
  }

  /** Serves the app until the relay has ended. Its loss ends the attempts, but not this process. */
  async #serve(socket: Socket): Promise<void> {
    let finish!: () => void;
    const ended = new Promise<void>((resolve) => (finish = resolve));
    const server = new Server(new Connection(socket, () => server.cancel()), {
      load: () => Promise.resolve(this.#app),
      exit: () => finish(),
    });
    const relay = { socket, server, ended };
    this.#relays.add(relay);
    void server.serve();
    await ended;
    socket.destroy();
    this.#relays.delete(relay);
  }
}
