//! Kafka permissions of each role, as the only table of them: `docs/production.md` is generated from it, and a test
//! runs every role on a Kafka that allows exactly these.

use std::fmt;

/// Kind of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Topic,
    Group,
    TransactionalId,
}

/// Operation, by Kafka's names. `Read` and `Write` include `Describe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Create,
    Alter,
    Describe,
    DescribeConfigs,
    AlterConfigs,
}

/// Permission of a role. Operations are allowed on one resource, or on all whose names begin with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acl {
    /// `worker`, `tracker`, `api`, `outbox`, `producer` or `admin`.
    pub role: &'static str,
    pub resource: Resource,
    /// Name after the prefix of the fleet.
    pub name: &'static str,
    /// The name is the beginning of the resources' names.
    pub is_prefix: bool,
    pub operations: &'static [Operation],
    /// Use of the permission.
    pub purpose: &'static str,
}

impl Acl {
    const fn topic(role: &'static str, name: &'static str, operations: &'static [Operation]) -> Self {
        Self { role, resource: Resource::Topic, name, is_prefix: false, operations, purpose: "" }
    }

    const fn group(role: &'static str, name: &'static str, operations: &'static [Operation]) -> Self {
        Self { resource: Resource::Group, ..Self::topic(role, name, operations) }
    }

    const fn transactions(role: &'static str, name: &'static str) -> Self {
        Self { resource: Resource::TransactionalId, ..Self::topic(role, name, &[Write]).prefix() }
    }

    const fn prefix(self) -> Self {
        Self { is_prefix: true, ..self }
    }

    const fn to(self, purpose: &'static str) -> Self {
        Self { purpose, ..self }
    }

    /// Name of the resource, or the beginning of its name, in a fleet.
    pub fn name(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.name)
    }
}

use Operation::{Alter, AlterConfigs, Create, Describe, DescribeConfigs, Read, Write};

/// Permissions of all roles.
pub const ACLS: &[Acl] = &[
    Acl::topic("worker", ".tasks.", &[Read, Write, DescribeConfigs])
        .prefix()
        .to("takes tasks and publishes children; checks the settings of the topics"),
    Acl::topic("worker", ".events", &[Write]).to("publishes events"),
    Acl::topic("worker", ".control", &[Read, Write]).to("follows commands; marks partitions as consumed"),
    Acl::topic("worker", ".workers", &[Write]).to("publishes heartbeats"),
    Acl::topic("worker", ".dead.", &[Write]).prefix().to("writes dead letters"),
    Acl::topic("worker", ".results.", &[Write]).prefix().to("publishes results, for types with `publish_results`"),
    Acl::group("worker", ".tasks.", &[Read]).prefix().to("joins the groups of types with a group of their own"),
    Acl::group("worker", ".group.", &[Read]).prefix().to("joins shared groups"),
    Acl::topic("tracker", ".events", &[Read, Write, DescribeConfigs])
        .to("projects events; publishes timers and effects; checks the retention"),
    Acl::topic("tracker", ".control", &[Read, Write]).to("reads settings and schedules; withdraws cancels"),
    Acl::topic("tracker", ".workers", &[Read]).to("notices silent workers"),
    Acl::topic("tracker", ".tasks.", &[Read, Write]).prefix().to("announces foreign tasks; publishes due tasks"),
    Acl::group("tracker", ".tracker", &[Read]).to("shares the events partitions"),
    Acl::group("tracker", ".announcer", &[Read]).to("shares the task topics"),
    Acl::group("tracker", ".tasks.", &[Describe]).prefix().to("reads the committed offsets of workers"),
    Acl::group("tracker", ".group.", &[Describe]).prefix().to("reads how far workers of shared groups are"),
    Acl::transactions("tracker", ".").to("publishes timers, effects and tasks of schedules once"),
    Acl::topic("api", ".events", &[Read, Write]).to("publishes submissions and requests; reads logs"),
    Acl::topic("api", ".control", &[Read, Write]).to("reads and writes commands and schedules"),
    Acl::topic("api", ".workers", &[Read]).to("shows workers"),
    Acl::topic("api", ".tasks.", &[Read, Write]).prefix().to("publishes tasks; shows their params"),
    Acl::topic("api", ".dead.", &[Read, Write]).prefix().to("lists and resolves dead letters"),
    Acl::group("api", ".tasks.", &[Describe]).prefix().to("explains why a task waits"),
    Acl::group("api", ".group.", &[Describe]).prefix().to("explains why a task of a shared group waits"),
    Acl::transactions("api", ".").to("atomic batches; resolves dead letters once"),
    Acl::topic("outbox", ".tasks.", &[Write]).prefix().to("publishes tasks"),
    Acl::topic("outbox", ".events", &[Write]).to("publishes submissions"),
    Acl::topic("outbox", ".control", &[Read]).to("reads settings and the declared types"),
    Acl::topic("outbox", ".outbox", &[Read, Write, DescribeConfigs]).to("reads and writes what is published"),
    Acl::transactions("outbox", ".outbox.").to("publishes each row once"),
    Acl::topic("producer", ".tasks.", &[Write])
        .prefix()
        .to("publishes tasks without kafleet; give each producer its types only"),
    Acl::topic("admin", ".", &[Create, Alter, DescribeConfigs, AlterConfigs])
        .prefix()
        .to("`kafleet topics apply`, `doctor`"),
    Acl::topic("admin", ".control", &[Read, Write])
        .to("records the number of events partitions; declares types; `offsets`"),
    Acl::topic("admin", ".tasks.", &[Read]).prefix().to("`kafleet offsets`"),
    Acl::group("admin", ".", &[Read]).prefix().to("`kafleet offsets`"),
];

/// Roles in the order of the table.
pub fn roles() -> Vec<&'static str> {
    let mut roles: Vec<&str> = ACLS.iter().map(|acl| acl.role).collect();
    roles.dedup();
    roles
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Topic => "topic",
            Self::Group => "group",
            Self::TransactionalId => "transactional id",
        })
    }
}

/// Table in Markdown, for the default prefix.
pub fn markdown() -> String {
    let mut text = "| role | resource | name | operations | purpose |\n|---|---|---|---|---|\n".to_owned();
    for acl in ACLS {
        let star = if acl.is_prefix { "*" } else { "" };
        let operations: Vec<String> = acl.operations.iter().map(|operation| format!("{operation:?}")).collect();
        let Acl { role, resource, purpose, .. } = acl;
        let name = acl.name("kafleet");
        text.push_str(&format!("| {role} | {resource} | `{name}{star}` | {} | {purpose} |\n", operations.join(", ")));
    }
    text
}
