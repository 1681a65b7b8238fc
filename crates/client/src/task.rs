//! Tasks to create.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use kafleet_documents::CreateTask;
use kafleet_model::json::RawJson;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;

/// Task type as seen by those that submit its tasks: the struct's fields are the params.
///
/// A struct may implement both this trait and that of its workers, `kafleet::handlers::Task`, whose `to_new_task` gives a task
/// to submit without this trait.
pub trait TaskType: Serialize {
    /// Name of the type.
    const TYPE: &'static str;
    /// Result of the task.
    type Output: DeserializeOwned;
}

/// Value from which a task is created: a [`TaskType`] or a [`NewTask`].
pub trait IntoTask {
    /// Result of the task.
    type Output: DeserializeOwned;
    /// Returns the task to create.
    fn into_task(self) -> NewTask<Self::Output>;
}

impl<T: TaskType> IntoTask for T {
    type Output = T::Output;

    fn into_task(self) -> NewTask<T::Output> {
        NewTask::of(T::TYPE, &self)
    }
}

impl<O: DeserializeOwned> IntoTask for NewTask<O> {
    type Output = O;

    fn into_task(self) -> Self {
        self
    }
}

/// Task to create, with its id and options. It has its id from the start: submitted twice, it is the same task.
///
/// ```
/// use kafleet_client::NewTask;
/// let task = NewTask::new("resize", serde_json::json!({"url": "https://example.com/a.jpg"})).tag("shop").retries(2);
/// assert_eq!(task.document().task_type, "resize");
/// ```
#[must_use = "a task is created by `Client::submit`, `run` or `submit_many`"]
pub struct NewTask<O = RawJson> {
    document: CreateTask,
    invalid: Option<Arc<serde_json::Error>>,
    output: PhantomData<fn() -> O>,
}

impl NewTask {
    /// Creates a task of a type given by name, with JSON params and a result of any form.
    pub fn new(task_type: &str, params: impl Into<RawJson>) -> Self {
        Self::of(task_type, &params.into())
    }
}

impl<O> NewTask<O> {
    /// Creates a task of a type given by name, with a result of the type `O`.
    pub fn of(task_type: &str, params: &(impl Serialize + ?Sized)) -> Self {
        let (params, invalid) = match RawJson::of(params) {
            Ok(params) => (params, None),
            Err(error) => (RawJson::null(), Some(Arc::new(error))),
        };
        let document =
            CreateTask { task_type: task_type.to_owned(), params, id: Some(new_id()), ..CreateTask::default() };
        Self { document, invalid, output: PhantomData }
    }

    /// Returns the task as it is sent.
    pub fn document(&self) -> &CreateTask {
        &self.document
    }

    pub(super) fn document_mut(&mut self) -> &mut CreateTask {
        &mut self.document
    }

    /// Returns the id: of a child, with its parent's path.
    pub fn task_id(&self) -> String {
        let id = self.document.id.clone().unwrap_or_default();
        match &self.document.parent {
            Some(parent) if !id.contains(':') => format!("{parent}:{id}"),
            _ => id,
        }
    }

    pub(super) fn valid(&self) -> Result<&CreateTask, Error> {
        self.invalid.as_ref().map_or(Ok(&self.document), |error| Err(Error::Params(error.clone())))
    }
}

impl<O> Clone for NewTask<O> {
    fn clone(&self) -> Self {
        Self { document: self.document.clone(), invalid: self.invalid.clone(), output: PhantomData }
    }
}

/// Returns a new id, a UUIDv7.
pub fn new_id() -> String {
    new_id_after(None)
}

/// Returns a new id that begins with a prefix, as `id_prefix` requests it from the API.
pub fn new_id_after(prefix: Option<&str>) -> String {
    format!("{}{}", prefix.unwrap_or_default(), uuid::Uuid::now_v7())
}

/// Generates the methods that set the id and options of a task, for types with `document_mut`.
macro_rules! options {
    () => {
        /// Sets the id; with a parent, the last segment of it. Default: a UUIDv7.
        pub fn id(self, id: impl Into<String>) -> Self {
            self.edit(|task| task.id = Some(id.into()))
        }

        /// Sets the id of the parent.
        pub fn parent(self, parent: impl Into<String>) -> Self {
            self.edit(|task| task.parent = Some(parent.into()))
        }

        /// Sets the ordering key. Default: the id.
        pub fn key(self, key: impl Into<String>) -> Self {
            self.edit(|task| task.key = Some(key.into()))
        }

        /// Delays the start.
        pub fn delay(self, delay: Duration) -> Self {
            self.edit(|task| task.delay = Some(delay.into()))
        }

        /// Sets the time of the start (RFC 3339), instead of a delay.
        pub fn at(self, time: impl Into<String>) -> Self {
            self.edit(|task| task.at = Some(time.into()))
        }

        /// Lets the task expire if it has not started within this time.
        pub fn expires(self, within: Duration) -> Self {
            self.edit(|task| task.expires = Some(kafleet_model::units::time::Expires::After(within.into())))
        }

        /// Sets the display name.
        pub fn name(self, name: impl Into<String>) -> Self {
            self.edit(|task| task.policy.name = Some(name.into()))
        }

        /// Adds a tag.
        pub fn tag(self, tag: impl Into<String>) -> Self {
            self.edit(|task| task.policy.tags.push(tag.into()))
        }

        /// Sets the key of which at most one task of the type is open at a time. Its mode and times are those of the type;
        /// [`edit`](Self::edit) sets others.
        pub fn unique(self, key: impl Into<String>) -> Self {
            self.edit(|task| task.policy.unique = Some(kafleet_model::unique::UniqueRule::of_key(key)))
        }

        /// Sets the number of attempts after the first one. Default: the type's.
        pub fn retries(self, retries: u32) -> Self {
            self.edit(|task| task.policy.retries = Some(retries))
        }

        /// Sets the timeout of one attempt. Default: the type's.
        pub fn timeout(self, timeout: Duration) -> Self {
            self.edit(|task| task.policy.timeout = Some(timeout.into()))
        }

        /// Changes any field of the task; the others are described in `docs/task-fields.md`.
        pub fn edit(mut self, change: impl FnOnce(&mut kafleet_documents::CreateTask)) -> Self {
            change(self.document_mut());
            self
        }
    };
}
pub(super) use options;

impl<O> NewTask<O> {
    options!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_fields_of_the_document() {
        let task = NewTask::new("resize", serde_json::json!({"width": 1}));
        let task = task.id("a").parent("p").delay(Duration::from_secs(90)).tag("x").tag("y").retries(0).name("n");
        let sent = serde_json::to_value(task.valid().unwrap()).unwrap();
        let expected = serde_json::json!({
            "type": "resize", "params": {"width": 1}, "id": "a", "parent": "p", "delay": "90s",
            "tags": ["x", "y"], "retries": 0, "name": "n",
        });
        assert_eq!(sent, expected);
        assert_eq!(task.task_id(), "p:a");
    }

    #[test]
    fn task_has_its_id_from_the_start() {
        let task = NewTask::new("resize", RawJson::null());
        assert_eq!(task.clone().task_id(), task.task_id());
        assert_ne!(NewTask::new("resize", RawJson::null()).task_id(), task.task_id());
    }

    #[test]
    fn params_that_are_not_json_are_reported() {
        let unordered = std::collections::HashMap::from([((1, 2), 3)]);
        let task: NewTask = NewTask::of("resize", &unordered);
        assert!(matches!(task.valid(), Err(Error::Params(_))));
    }
}
