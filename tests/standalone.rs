//! Tests that need no services: task types and their handlers, published schemas, decoders of external input.

mod apps;
mod fuzz;
mod handlers;
// The template of `kafleet init rust`, as a module of these tests: it is compiled with the crates of the workspace, and its
// own tests run here. A generated project would build all of kafleet once more. It has the format of a project, which is
// the default one of rustfmt.
#[path = "../src/cli/init/templates/rust/src/main.rs"]
#[allow(dead_code, reason = "nothing calls its `main`")]
#[rustfmt::skip]
mod init_template;
mod schemas;
