//! Creation of ACLs on the test Kafka, as its super user.

use std::ffi::CString;
use std::ptr;

use kafleet::topics::acls::{Operation, Resource};
use rdkafka::ClientConfig;
use rdkafka::bindings::{self as native, rd_kafka_AclOperation_t as Op, rd_kafka_ResourceType_t as Kind};
use rdkafka::consumer::{BaseConsumer, Consumer};

const TIMEOUT_MS: i32 = 60_000;

/// Permission of a user on a resource.
pub struct Permission {
    pub user: &'static str,
    pub resource: Resource,
    pub name: String,
    pub is_prefix: bool,
    pub operation: Operation,
}

/// Creates ACLs on the Kafka at `servers`.
///
/// # Panics
/// If Kafka refuses one.
pub fn allow(servers: &str, allowed: &[Permission]) {
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
    let mut bindings: Vec<_> = allowed.iter().map(binding).collect();
    let client = client.client().native_ptr();
    // SAFETY: the pointers are valid until they are destroyed below, and the result belongs to the event.
    unsafe {
        let queue = native::rd_kafka_queue_new(client);
        native::rd_kafka_CreateAcls(client, bindings.as_mut_ptr(), bindings.len(), ptr::null(), queue);
        let event = native::rd_kafka_queue_poll(queue, TIMEOUT_MS);
        assert!(!event.is_null(), "no answer about the ACLs");
        assert_eq!(native::rd_kafka_event_error(event) as i32, 0, "the ACLs were not created");
        let mut count = 0;
        let result = native::rd_kafka_event_CreateAcls_result(event);
        let outcomes = native::rd_kafka_CreateAcls_result_acls(result, &raw mut count);
        for n in 0..count {
            assert!(native::rd_kafka_acl_result_error(*outcomes.add(n)).is_null(), "an ACL was refused");
        }
        native::rd_kafka_event_destroy(event);
        native::rd_kafka_AclBinding_destroy_array(bindings.as_mut_ptr(), bindings.len());
        native::rd_kafka_queue_destroy(queue);
    }
}

fn binding(allowed: &Permission) -> *mut native::rd_kafka_AclBinding_t {
    use native::rd_kafka_ResourcePatternType_t as Pattern;
    let kind = match allowed.resource {
        Resource::Topic => Kind::RD_KAFKA_RESOURCE_TOPIC,
        Resource::Group => Kind::RD_KAFKA_RESOURCE_GROUP,
        Resource::TransactionalId => Kind::RD_KAFKA_RESOURCE_TRANSACTIONAL_ID,
    };
    let operation = match allowed.operation {
        Operation::Read => Op::RD_KAFKA_ACL_OPERATION_READ,
        Operation::Write => Op::RD_KAFKA_ACL_OPERATION_WRITE,
        Operation::Create => Op::RD_KAFKA_ACL_OPERATION_CREATE,
        Operation::Alter => Op::RD_KAFKA_ACL_OPERATION_ALTER,
        Operation::Describe => Op::RD_KAFKA_ACL_OPERATION_DESCRIBE,
        Operation::DescribeConfigs => Op::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS,
        Operation::AlterConfigs => Op::RD_KAFKA_ACL_OPERATION_ALTER_CONFIGS,
    };
    let pattern = if allowed.is_prefix {
        Pattern::RD_KAFKA_RESOURCE_PATTERN_PREFIXED
    } else {
        Pattern::RD_KAFKA_RESOURCE_PATTERN_LITERAL
    };
    let text = |text: &str| CString::new(text).unwrap();
    let (name, principal, host) = (text(&allowed.name), text(&format!("User:{}", allowed.user)), text("*"));
    let permission = native::rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW;
    // SAFETY: the texts are copied; a null buffer for the reason is allowed.
    let binding = unsafe {
        native::rd_kafka_AclBinding_new(
            kind,
            name.as_ptr(),
            pattern,
            principal.as_ptr(),
            host.as_ptr(),
            operation,
            permission,
            ptr::null_mut(),
            0,
        )
    };
    assert!(!binding.is_null(), "`{}` cannot be a resource", allowed.name);
    binding
}
