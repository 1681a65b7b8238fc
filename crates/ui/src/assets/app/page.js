// @ts-check
/** Elements of the page that several modules use, requests of pages, and what the reader is doing. */

export const root = document.documentElement;
export const base = root.dataset.base ?? "";
export const main = /** @type {HTMLElement} */ (document.querySelector("main"));
const MAX_REQUEST_MS = 60_000;
/** @type {(text: string) => string} */
const createHTML = (text) => text;
const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("kafleet", { createHTML }) ?? { createHTML };

/** Element of the frame, which exists on every page with a session. @param {string} id */
export const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
export const dialogOf = (id) => /** @type {HTMLDialogElement} */ (document.getElementById(id));
/** @param {string} selector @param {ParentNode} [within] @returns {HTMLElement[]} */
export const all = (selector, within = document) =>
  [...within.querySelectorAll(selector)].filter((found) => found instanceof HTMLElement);

/** Parses a page, and returns its `<main>`. The only function that parses HTML. @param {string} text */
export function parseMain(text) {
  const parsed = new DOMParser().parseFromString(policy.createHTML(text), "text/html").querySelector("main");
  if (!parsed) throw new Error("the response is not a page");
  return parsed;
}

/** Requests the `<main>` of a page. @param {string} url @param {string} [tag] */
export function requestMain(url, tag = "") {
  const headers = new Headers({ accept: "text/html", "kafleet-part": "main", "if-none-match": tag });
  return fetch(url, { headers, cache: "no-store", signal: AbortSignal.timeout(MAX_REQUEST_MS) });
}

/** @param {string} text */
export function announce(text) {
  element("announced").textContent = text;
}

export const selectedRows = () => all("tr[data-selected]", main);

/** Whether new rows would disturb the reader. */
export function isReading() {
  const isTyping = document.activeElement?.matches("input:not([type=checkbox]), textarea, select") ?? false;
  const isSelecting = document.getSelection()?.isCollapsed === false || selectedRows().length > 0;
  return window.scrollY > 8 || isTyping || isSelecting || document.querySelector("dialog[open]") !== null;
}

/**
 * Runs for each click on an element of this selector.
 * @param {string} selector @param {(found: HTMLElement, event: MouseEvent) => void} run
 */
export function onClick(selector, run) {
  document.addEventListener("click", (event) => {
    const found = event.target instanceof Element ? event.target.closest(selector) : null;
    if (found instanceof HTMLElement && event.button === 0) run(found, event);
  });
}

/** Runs instead of the opening of a link. @param {string} selector @param {(link: HTMLAnchorElement) => void} run */
export function onLink(selector, run) {
  onClick(selector, (link, event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || !(link instanceof HTMLAnchorElement)) return;
    event.preventDefault();
    run(link);
  });
}

/** Storage of the window; null if the browser blocks it. @param {"localStorage" | "sessionStorage"} name */
export function storage(name) {
  try {
    return window[name];
  } catch {
    return null;
  }
}

/** Runs when the page has been replaced by a newer version of itself. @param {() => void} run */
export const onUpdate = (run) => document.addEventListener("kafleet-updated", run);
