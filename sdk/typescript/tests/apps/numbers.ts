/** Test app of numbers that a JavaScript number would change. */

import { App } from "kafleet";

export const app = new App();

app.task("checked", (params: unknown) => params);

app.task("exact", { numbers: "exact" }, (params: unknown) => params);

app.task("types", { numbers: "exact" }, (params: unknown[]) => params.map((each) => typeof each));
