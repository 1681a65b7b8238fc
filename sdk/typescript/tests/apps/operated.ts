/** Test app with tasks on which the API acts. */

import { App, Dead } from "kafleet";

export const app = new App();

export const echo = app.task("echo", (value: unknown) => {
  console.log("echo of", value);
  return value;
});

export const refuses = app.task("refuses", ({ fixed = false }: { fixed?: boolean }) => {
  if (!fixed) throw new Dead("not yet", { kind: "not_yet" });
  return "fixed";
});
