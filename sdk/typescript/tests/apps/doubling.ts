/** App for the measurement of the rate. */

import { App } from "kafleet";

export const app = new App();

app.task("double", async ({ x }: { x: number }) => x * 2);
