//! Constants of [`Task`]: the settings of a type that its code may give.

use std::time::Duration;

use kafleet_config::{TypePolicy, with_type_settings};
use kafleet_model::units::duration::Millis;

use super::{Isolation, Order, Task};

/// Declares the constants of the settings that have one.
macro_rules! constants {
    ($(
        $key:ident: $written:ty $([$($schema:tt)*])?, $default:literal, $doc:literal $(+ $details:literal)?
        $(, policy $policy:ty = $value:expr)? $(, constant $name:ident: $constant:ty = $of_code:expr)?
        => $scope:ident $(+ $live:ident)?;
    )*) => {
        $($(
            #[doc = concat!($doc, " Default: ", $default, ".")]
            const $name: $constant = $of_code;
        )?)*
    };
}
pub(super) use constants;

/// Gives the constants of a type whose tasks run in batches to its `Task`.
macro_rules! batch_constants {
    ($(
        $key:ident: $written:ty $([$($schema:tt)*])?, $default:literal, $doc:literal $(+ $details:literal)?
        $(, policy $policy:ty = $value:expr)? $(, constant $name:ident: $constant:ty = $of_code:expr)?
        => $scope:ident $(+ $live:ident)?;
    )*) => {
        $($(const $name: $constant = <T as BatchTask>::$name;)?)*
    };
}
pub(super) use batch_constants;

/// Value of a constant as a setting.
trait IntoSetting<T> {
    fn setting(self) -> T;
}

macro_rules! same {
    ($($name:ty),*) => {
        $(impl IntoSetting<$name> for $name {
            fn setting(self) -> $name {
                self
            }
        })*
    };
}

same!(u32, Order, Isolation);

/// Zero is the default.
impl IntoSetting<Option<u32>> for u32 {
    fn setting(self) -> Option<u32> {
        (self > 0).then_some(self)
    }
}

impl IntoSetting<Millis> for Duration {
    fn setting(self) -> Millis {
        self.into()
    }
}

impl IntoSetting<Option<Millis>> for Option<Duration> {
    fn setting(self) -> Option<Millis> {
        self.map(Into::into)
    }
}

impl IntoSetting<Vec<String>> for &[&str] {
    fn setting(self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

macro_rules! policy_of {
    ($(
        $key:ident: $written:ty $([$($schema:tt)*])?, $default:literal, $doc:literal $(+ $details:literal)?
        $(, policy $policy:ty = $value:expr)? $(, constant $name:ident: $constant:ty = $of_code:expr)?
        => $scope:ident $(+ $live:ident)?;
    )*) => {
        /// Policy of a Rust task type: its constants, and defaults.
        pub(super) fn policy_of<T: Task>() -> TypePolicy {
            TypePolicy { $($($key: T::$name.setting(),)?)* ..TypePolicy::default() }
        }
    };
}

with_type_settings!(policy_of);
