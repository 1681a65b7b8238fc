// @ts-check
/** Dialogs: forms of actions over the page. They are submitted like those of pages. */

import { dialogOf, onLink, parseMain, requestMain } from "./page.js";

/** @param {HTMLAnchorElement} link */
async function openForm(link) {
  const response = await requestMain(link.href).catch(() => null);
  if (!response?.ok) return location.assign(link.href);
  const form = parseMain(await response.text());
  const dialog = dialogOf("action");
  dialog.replaceChildren(...[...form.childNodes].map((node) => document.importNode(node, true)));
  dialog.setAttribute("aria-label", dialog.querySelector("h1")?.textContent ?? "");
  if (!dialog.open) dialog.showModal();
}

export function start() {
  onLink("main a[data-dialog]", openForm);
  onLink("dialog a[data-close]", () => dialogOf("action").close());
}
