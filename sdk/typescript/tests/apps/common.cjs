const { App } = require("kafleet");

const app = new App();
app.task("common", () => 1);
module.exports = { app };
