//! Names of topics, consumer groups and transactional ids.

/// Names under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub prefix: String,
}

impl Names {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }
    /// Common prefix of all topics of the fleet. The separator excludes fleets whose prefix begins with this one.
    pub fn topics(&self) -> String {
        format!("{}.", self.prefix)
    }
    pub fn tasks(&self, task_type: &str) -> String {
        format!("{}.tasks.{task_type}", self.prefix)
    }
    pub fn results(&self, task_type: &str) -> String {
        format!("{}.results.{task_type}", self.prefix)
    }
    pub fn dead(&self, task_type: &str) -> String {
        format!("{}.dead.{task_type}", self.prefix)
    }
    pub fn events(&self) -> String {
        format!("{}.events", self.prefix)
    }
    pub fn control(&self) -> String {
        format!("{}.control", self.prefix)
    }
    pub fn workers(&self) -> String {
        format!("{}.workers", self.prefix)
    }
    /// Consumer group of a type's workers, named like its topic.
    pub fn group(&self, task_type: &str) -> String {
        self.tasks(task_type)
    }
    pub fn tracker_group(&self) -> String {
        format!("{}.tracker", self.prefix)
    }
    pub fn announcer_group(&self) -> String {
        format!("{}.announcer", self.prefix)
    }
    /// Transactional id of an API process.
    pub fn api_sender(&self, process: &str) -> String {
        format!("{}.api.{process}", self.prefix)
    }
    /// Returns the type of a dead-letter topic.
    pub fn type_of_dead<'a>(&self, topic: &'a str) -> Option<&'a str> {
        topic.strip_prefix(&self.prefix)?.strip_prefix(".dead.")
    }
    /// Returns the type of a task topic.
    pub fn type_of<'a>(&self, topic: &'a str) -> Option<&'a str> {
        topic.strip_prefix(&self.prefix)?.strip_prefix(".tasks.")
    }
}
