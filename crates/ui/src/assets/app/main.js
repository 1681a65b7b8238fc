// @ts-check
/**
 * Starts the modules. Every page reads and acts without them; elements that need them have the class `app` and are hidden until
 * they run. `bundle.rs` makes one file of all modules, each a function of its own, and calls `run` with those that it lists.
 */

import { all, main, root } from "./page.js";

/** Outcomes of actions stay on the page, but not in its URL. */
function cleanUrl() {
  const url = new URL(location.href);
  const names = ["after", "control", "done", "there", "started", "kept", "joined", "joined_task"].filter((name) => url.searchParams.has(name));
  for (const name of names) url.searchParams.delete(name);
  if (names.length > 0) history.replaceState(null, "", url);
  for (const notice of all(".notice.good[role=status]", main)) notice.setAttribute("data-keep", "");
}

/** Pages without a session have none of the elements that modules use. @param {{start?: () => void}[]} modules */
export function run(modules) {
  if (!document.getElementById("live")) return;
  root.setAttribute("data-app", "");
  cleanUrl();
  for (const module of modules) module.start?.();
}
