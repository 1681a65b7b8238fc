// @ts-check
/** Keeps the texts of clocks current: ages, and the time since or until then. The zone of the reader is that of the browser. */

import { all, element, main, onUpdate } from "./page.js";

function showClocks() {
  for (const clock of all("[data-clock]", main)) {
    const kind = clock.dataset.clock;
    const at = Date.parse(clock.closest("time")?.dateTime ?? "");
    if (!kind || Number.isNaN(at)) continue;
    const seconds = Math.round((Date.now() - at) / 1_000);
    const text = kind === "age" ? ageOf(seconds) : spanOf(Math.max(0, seconds * Number(kind)), 2);
    if (clock.textContent !== text) clock.textContent = text;
  }
}

/** @type {[number, string][]} */
const UNITS = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];

/** @param {number} seconds */
const ageOf = (seconds) => (seconds < 0 ? `in ${spanOf(-seconds, 1)}` : `${spanOf(seconds, 1)} ago`);

/** Span in its largest units. @param {number} seconds @param {number} most */
function spanOf(seconds, most) {
  const first = UNITS.findIndex(([unit]) => seconds >= unit);
  const units = first < 0 ? UNITS.slice(-1) : UNITS.slice(first, first + most);
  return units.map(([unit, name], n) => `${Math.floor((n > 0 ? seconds % units[n - 1][0] : seconds) / unit)} ${name}`).join(" ");
}

/** Offers the zone of the browser. A choice of it follows the browser to other zones. */
function offerLocalZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const button = /** @type {HTMLButtonElement} */ (element("local-zone"));
  const { value, dataset } = button;
  // Where the browser is in UTC, the choice of UTC is the same.
  Object.assign(button, { value: `local:${zone}`, textContent: `local (${zone})`, hidden: zone === "UTC" });
  if (value && value !== button.value) document.cookie = `kafleet-zone=${button.value}; path=/; max-age=${dataset.age}; samesite=lax`;
}

export function start() {
  offerLocalZone();
  showClocks();
  window.setInterval(() => document.hidden || showClocks(), 1_000);
  onUpdate(showClocks);
}
