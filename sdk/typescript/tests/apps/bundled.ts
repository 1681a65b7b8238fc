/** Test app with a bundle of many tasks. */

import { App } from "kafleet";

export const app = new App();

const many = app.bundle("many", { retries: 1 });
for (let number = 0; number < 25; number++) many.task(`task-${number}`, () => number);
