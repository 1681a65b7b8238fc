// @ts-check
/** Copies texts of the page. */

import { all, announce, main, onClick } from "./page.js";

/** Copies text, also on pages without HTTPS. @param {string} text */
export async function copy(text) {
  const area = document.createElement("textarea");
  area.value = text;
  const focus = document.activeElement;
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else {
      document.body.append(area);
      area.select();
      document.execCommand("copy");
    }
    announce("copied");
  } catch {
    announce("not copied: the browser refused it");
  }
  area.remove();
  if (focus instanceof HTMLElement) focus.focus();
}

/** Text that a button copies: that of the element before it, or of the elements that it names. @param {HTMLElement} button */
function textOf(button) {
  const { copy: selector } = button.dataset;
  return selector ? all(selector, main).map((it) => it.textContent).join("\n") : (button.previousElementSibling?.textContent ?? "");
}

export function start() {
  onClick("button[data-copy]", (button) => copy(textOf(button)));
}
