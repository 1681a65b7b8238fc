// @ts-check
/** Suggestions for searches, and files that are read into a field. */

import { base, element } from "./page.js";

const SUGGEST_MS = 150;
let suggesting = 0;

/** @param {Event} event */
function changed({ target, type }) {
  if (!(target instanceof HTMLInputElement)) return;
  const into = target.dataset.into && document.getElementById(target.dataset.into);
  if (into instanceof HTMLTextAreaElement && type === "input") target.files?.[0]?.text().then((text) => (into.value = text));
  window.clearTimeout(suggesting);
  if (target.list?.id === "suggestions") suggesting = window.setTimeout(suggest, SUGGEST_MS, target);
}

/** Completes a search. The browser shows the list. @param {HTMLInputElement} input */
async function suggest(input) {
  const { value: q } = input;
  const at = [...q.slice(0, input.selectionStart ?? undefined)].length;
  const query = new URLSearchParams({ q, at: String(at) });
  const response = await fetch(`${base}/ui/suggestions?${query}`).catch(() => null);
  /** @type {{value: string, label: string}[]} */
  const found = response?.ok ? await response.json() : [];
  // The reader may have typed on.
  if (input.value !== q) return;
  element("suggestions").replaceChildren(...found.map(({ value, label }) => new Option(label, value)));
}

export function start() {
  for (const name of ["input", "focusin"]) document.addEventListener(name, changed);
}
