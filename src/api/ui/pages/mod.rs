//! Pages: each reads documents of the api and renders them with [`super::parts`].

pub(super) mod dead_letter_forms;
pub(super) mod dead_letters;
pub(super) mod help;
pub(super) mod kill_switches;
pub(super) mod log;
pub(super) mod login;
pub(super) mod new;
pub(super) mod overview;
pub(super) mod raw;
pub(super) mod schedule_forms;
pub(super) mod schedules;
pub(super) mod system;
pub(super) mod task;
pub(super) mod task_edit;
pub(super) mod task_forms;
pub(super) mod tasks;
pub(super) mod timeline;
pub(super) mod tree;
pub(super) mod type_forms;
pub(super) mod types;
pub(super) mod workers;
