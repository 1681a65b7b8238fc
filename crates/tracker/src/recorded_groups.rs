//! Consumer groups that contain the commits of types, and masks of types, followed on the control topic. They may differ from
//! the configured ones, which another process may have read from another file.

use std::sync::Arc;

use kafleet_broker::BrokerError;
use kafleet_fleet::control::follow::TopicFollower;
use kafleet_fleet::control::{ControlState, ControlWatch, GroupRecords, follow_control};

use crate::setup::TrackerSetup;

/// Recorded groups and masks of all types.
pub(crate) struct RecordedGroups {
    control: Arc<ControlWatch>,
    topic: String,
    #[expect(dead_code, reason = "stops following the topic when dropped")]
    follower: TopicFollower,
}

impl RecordedGroups {
    pub(crate) fn follow(setup: &TrackerSetup) -> Self {
        let control = ControlWatch::new(ControlState::without_task_commands().with_types());
        let follower = follow_control(control.clone(), setup.broker.clone(), &setup.topology.names, None);
        Self { control, topic: setup.topology.names.control(), follower }
    }

    /// Returns the records.
    ///
    /// # Errors
    /// `Unavailable` until the topic has been read: the configured group could be the wrong one.
    pub(crate) fn get(&self) -> Result<GroupRecords, BrokerError> {
        self.check_read()?;
        Ok(self.control.state().groups().clone())
    }

    /// Returns the JSON pointers that a type masks.
    ///
    /// # Errors
    /// `Unavailable` until the topic has been read.
    pub(crate) fn mask(&self, task_type: &str) -> Result<Vec<String>, BrokerError> {
        self.check_read()?;
        let state = self.control.state();
        Ok(state.types.get(task_type).map(|declared| declared.policy.mask.clone()).unwrap_or_default())
    }

    fn check_read(&self) -> Result<(), BrokerError> {
        if self.control.is_fully_read() {
            Ok(())
        } else {
            Err(BrokerError::Unavailable(format!("`{}` has not been read yet", self.topic)))
        }
    }
}
