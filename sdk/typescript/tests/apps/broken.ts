import "kafleet";

throw new Error("the database is not configured");
