//! Registers the types that an app declares.

use std::sync::Arc;

use kafleet_config::{AppConfig, Config, Order, TypeConfig, TypePolicy, app_group, combine_policy};
use kafleet_handlers::{Registry, TypeDetails, TypeRegistration};

use super::capacity::SlotKind;
use super::declaration::{AppType, type_text};
use super::pool::{AppHandler, AppPool, OpenedApp, PoolSettings};

/// Registers the types of an app. Its policies become part of `config.types`, where the configuration has precedence.
///
/// # Errors
/// All problems of the declaration.
pub fn register(
    app: OpenedApp,
    section: &AppConfig,
    config: &mut Config,
    registry: &mut Registry,
) -> Result<Arc<AppPool>, Vec<String>> {
    let name = app.program.name.clone();
    let mut problems = Vec::new();
    let mut types = Vec::new();
    for (task_type, declared) in &app.declaration.types {
        let type_config = config.types.get(task_type);
        let text = type_text(task_type, declared.source.as_deref());
        if let Some(error) = conflict(type_config, registry.get(task_type)) {
            problems.push(format!("the app `{name}` declares the type {text}: {error}"));
            continue;
        }
        match combine_policy(task_type, &declared.policy, type_config, &config.topics) {
            Ok(policy) => types.push((task_type.clone(), declared.clone(), policy)),
            Err(errors) => {
                let subject = format!("the app `{name}` declares the type {text} with an invalid policy");
                problems.extend(errors.into_iter().map(|error| format!("{subject}: {error}")));
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let has_order = types.iter().any(|(_, _, policy)| policy.order.is_some_and(|order| order != Order::None));
    let processes = section.processes.unwrap_or_else(|| app.default_processes());
    let capacity = app.capacity();
    let settings =
        PoolSettings { processes, max_tasks: section.max_tasks, memory: section.memory, overlap: section.overlap };
    let pool = AppPool::new(app, settings, has_order);
    for (task_type, declared, policy) in types {
        let slot_kind = capacity.slot_kind(declared.is_sync);
        let all = pool.app_capacity(slot_kind);
        let AppType { params, output, doc, .. } = declared;
        if let Some(excess) = policy.concurrency.and_then(|concurrency| all.excess(concurrency)) {
            let more = if slot_kind == SlotKind::Thread { "threads" } else { "slots" };
            tracing::warn!(
                app = name,
                "the type `{task_type}`: {excess}; hint: raise `processes` or `{more}` of the app"
            );
        }
        let defaults = TypePolicy { concurrency: Some(all.total()), ..TypePolicy::default() };
        let details = TypeDetails { app: Some(name.clone()), doc, output };
        let handler = AppHandler::new(pool.clone(), slot_kind);
        registry.add(
            &task_type,
            TypeRegistration { schema: params, policy: defaults, details, ..TypeRegistration::new(handler) },
        );
        // An app with hundreds of types needs one client of Kafka.
        let group = config.worker.group.is_none().then(|| app_group(&name));
        config.types.insert(task_type, TypeConfig { group: policy.group.clone().or(group), ..policy });
    }
    Ok(pool)
}

/// Returns the reason why an app cannot declare a type.
fn conflict(type_config: Option<&TypeConfig>, registered: Option<&TypeRegistration>) -> Option<String> {
    if let Some(registered) = registered {
        let owner = registered.details.app.as_ref();
        let owner = owner.map_or_else(|| "a Rust type".to_owned(), |app| format!("the app `{app}`"));
        return Some(format!(
            "{owner} has this name too; hint: give each its own name, or select types with `types` in `[apps]`"
        ));
    }
    section_conflict(type_config?).map(str::to_owned)
}

/// Returns the reason why the section of a type in kafleet.toml excludes that an app runs it.
fn section_conflict(type_config: &TypeConfig) -> Option<&'static str> {
    if type_config.handler.is_some() {
        return Some("its section in `[types]` has a `handler`; hint: remove one of them");
    }
    if type_config.isolation_tasks.is_some() || type_config.isolation_memory.is_some() {
        return Some(
            "its section in `[types]` has `isolation_tasks` or `isolation_memory`, which are for Rust types; \
             hint: set `max_tasks` or `memory` of the app",
        );
    }
    if !type_config.variables().is_default() {
        return Some(
            "its section in `[types]` has `env` or `inherit`, which are for programs and Rust types; hint: set them for \
             the app",
        );
    }
    type_config
        .schema
        .is_some()
        .then_some("its section in `[types]` has a `schema`, which comes from the app; hint: remove it")
}
