//! Comparison of the worker's types with their declarations on the control topic, which APIs check params against.
//! Workers never write declarations: while a new build is rolled out, old and new workers would overwrite each other's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafleet_fleet::control::ControlWatch;
use kafleet_fleet::control::types::TypeRecord;
use kafleet_handlers::TypeRegistration;
use tokio::time::sleep;

/// Minimum interval of comparisons: other records of the control topic change often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Logs a warning for each type whose declared params differ from those of the worker, at once and after each change of
/// its declaration.
pub(super) async fn warn_of_differences(control: Arc<ControlWatch>, types: Vec<(Arc<str>, TypeRegistration)>) {
    let mut seen = BTreeMap::new();
    let mut changes = control.changes();
    loop {
        for (name, registered, declared) in changed(&control, &types, &mut seen) {
            if declared.params.as_ref().is_some_and(|declared| declared != registered.schema.json()) {
                tracing::warn!(
                    task_type = %name,
                    "the params of the type differ from those that `kafleet topics apply` has declared, which APIs check; \
                     run it with the version of this worker"
                );
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Returns the types whose declarations have changed since the last call.
fn changed<'a>(
    control: &ControlWatch,
    types: &'a [(Arc<str>, TypeRegistration)],
    seen: &mut BTreeMap<Arc<str>, Arc<TypeRecord>>,
) -> Vec<(&'a str, &'a TypeRegistration, Arc<TypeRecord>)> {
    let state = control.state();
    let mut changed = Vec::new();
    for (name, registered) in types {
        let Some(declared) = state.types.get(name) else { continue };
        if seen.get(name).is_none_or(|earlier| !Arc::ptr_eq(earlier, declared)) {
            seen.insert(name.clone(), declared.clone());
            changed.push((&**name, registered, declared.clone()));
        }
    }
    changed
}
