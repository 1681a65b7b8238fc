// @ts-check
/** Keys, except in controls and dialogs. They can be switched off, as WCAG 2.1.4 asks. */

import { copy } from "./copy.js";
import { toggleLive } from "./live.js";
import { all, base, dialogOf, element, main, storage } from "./page.js";
import { taskOf, toggleRow } from "./selection.js";
import { openNeighbour } from "./neighbours.js";

/** @type {Record<string, string>} */
const PAGES = { o: "/", t: "/tasks", f: "/failures", y: "/types", w: "/workers", s: "/schedules", b: "/bulk", n: "/new" };
/** @type {Record<string, () => void>} */
const KEYS = {
  "/": () => element("search").focus(),
  "?": () => dialogOf("keys").showModal(),
  ".": toggleLive,
  j: () => focusRow(1),
  k: () => focusRow(-1),
  x: () => toggleRow(currentRow()),
  a: () => all(".actions :is(a, button)", main)[0]?.focus(),
  c: copyId,
  "[": () => openNeighbour(-1),
  "]": () => openNeighbour(1),
};
let isGoing = false;

/** @param {KeyboardEvent} event */
function pressed(event) {
  const isControl = event.target instanceof Element && event.target.closest("input, textarea, select, dialog");
  const isModified = event.ctrlKey || event.altKey || event.metaKey || event.isComposing;
  if (isControl || isModified || !keysAreOn()) return;
  const page = isGoing ? PAGES[event.key] : undefined;
  isGoing = event.key === "g";
  if (page) location.assign(page === "/" ? base || "/" : base + page);
  else if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

const keysAreOn = () => storage("localStorage")?.getItem("kafleet-keys") !== "off";

const currentRow = () => document.activeElement?.closest("tbody tr[id]") ?? null;

/** Moves the focus to another row. @param {number} step */
function focusRow(step) {
  const rows = all("tbody tr[id]", main);
  const current = rows.findIndex((row) => row === currentRow());
  const next = current < 0 ? 0 : Math.min(Math.max(current + step, 0), rows.length - 1);
  rows[next]?.querySelector("a")?.focus();
}

/** Copies the id of the task in the row with the focus, or of that of the page. */
function copyId() {
  const row = currentRow();
  const id = row?.hasAttribute("data-task") ? taskOf(row) : /\/tasks\/([^/]+)/.exec(location.pathname)?.[1];
  if (id) copy(row ? id : decodeURIComponent(id));
}

export function start() {
  const keys = /** @type {HTMLInputElement} */ (element("use-keys"));
  keys.checked = keysAreOn();
  keys.addEventListener("change", () => storage("localStorage")?.setItem("kafleet-keys", keys.checked ? "on" : "off"));
  document.addEventListener("keydown", pressed);
}
