/** The URL of the API: that of an option, of the environment, and of the `kafleet dev` of the working directory. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";

import { App, Client } from "kafleet";

const DEFAULT = "http://127.0.0.1:8080";
const DEV = "http://127.0.0.1:8081";
const FILE = ".kafleet-dev.json";

const earlier = { folder: process.cwd(), api: process.env["KAFLEET_API"] };
let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "kafleet-address-"));
  process.chdir(folder);
  delete process.env["KAFLEET_API"];
});

afterEach(() => {
  process.chdir(earlier.folder);
  if (earlier.api !== undefined) process.env["KAFLEET_API"] = earlier.api;
  rmSync(folder, { recursive: true });
});

const write = (pid: unknown, api: unknown = DEV) => writeFileSync(FILE, JSON.stringify({ api, pid }));
const urls = () => [new Client().url, new App().client.url];

describe("URL of the API", () => {
  test("is that of a `kafleet dev` that runs in the folder", () => {
    assert.deepEqual(urls(), [DEFAULT, DEFAULT]);
    write(process.pid);
    assert.deepEqual(urls(), [DEV, DEV]);
  });

  test("of the environment and of an option come first", () => {
    write(process.pid);
    process.env["KAFLEET_API"] = "http://env:1/";
    assert.deepEqual(urls(), ["http://env:1", "http://env:1"]);
    assert.equal(new App({ api: "http://option:1/" }).client.url, "http://option:1");
    assert.equal(new Client({ url: "http://option:1" }).url, "http://option:1");
  });

  test("follows the `kafleet dev` that runs now", () => {
    const app = new App();
    write(process.pid);
    const client = app.client;
    assert.equal(app.client, client);
    rmSync(FILE);
    assert.equal(app.client.url, DEFAULT);
  });

  test("is that of a process of another user", (t) => {
    write(process.pid);
    t.mock.method(process, "kill", () => {
      throw Object.assign(new Error("not permitted"), { code: "EPERM" });
    });
    assert.equal(new Client().url, DEV);
  });

  test("is not that of a process that has ended", () => {
    write(spawnSync(process.execPath, ["--version"]).pid);
    assert.equal(new Client().url, DEFAULT);
  });

  for (const [name, make] of [
    ["is too large", () => write(process.pid, `${DEV}/${"x".repeat(4096)}`)],
    ["is a folder", () => mkdirSync(FILE)],
    ["is no JSON", () => writeFileSync(FILE, "no JSON")],
    ["has no object", () => writeFileSync(FILE, "null")],
    ["has no URL", () => write(process.pid, 8081)],
    ["has the URL of another host", () => write(process.pid, "http://example.org:80")],
    ["has a URL with a user name", () => write(process.pid, "http://127.0.0.1:80@example.org:80")],
    ["has no number of a process", () => write(`${process.pid}`)],
    ["has the number of all processes", () => write(0)],
    ["has a number that no process has", () => write(2 ** 53)],
  ] as const) {
    test(`is not that of a file that ${name}`, () => {
      make();
      assert.equal(new Client().url, DEFAULT);
    });
  }
});
