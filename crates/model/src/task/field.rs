//! Fields of a task's policy as a table: names, headers, descriptions, and the scopes that accept them.

use std::borrow::Cow;

use super::OnFailure;
use super::id::clip;
use crate::unique::UniqueRule;
use crate::units::duration::Millis;

/// Scope in which a task is described or shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `POST /v1/tasks`, batches and `submit`.
    Create = 0,
    /// Continuation of a task.
    Continue = 1,
    /// Task of a schedule.
    Schedule = 2,
    /// `PATCH /v1/tasks/{id}` and `update`.
    Change = 3,
    /// Status of a task.
    Status = 4,
}

impl Scope {
    /// Scope with a number: the argument of a const generic.
    pub const fn of(number: u8) -> Self {
        match number {
            0 => Self::Create,
            1 => Self::Continue,
            2 => Self::Schedule,
            3 => Self::Change,
            _ => Self::Status,
        }
    }
}

/// Time at which a field of an existing task can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Never,
    Always,
    /// Only while no record with the field is in a topic: workers read the field from the record.
    BeforePublish,
}

/// Visibility of a field in the status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    Hidden,
    /// In the status document.
    Status,
    /// In the status document, in the text of `status` and in notifications.
    Label,
}

/// Command-line argument of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Name without the dashes.
    pub long: &'static str,
    pub kind: ArgumentKind,
    pub value_name: &'static str,
    pub help: &'static str,
    /// Help of `update`, if it differs.
    pub update_help: Option<&'static str>,
}

/// Type of a command-line argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    Text,
    Number,
    Duration,
    Json,
    /// Flag for `true`.
    Flag,
    /// Text that may be repeated.
    List,
}

impl Argument {
    const fn new(kind: ArgumentKind, long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self { long, kind, value_name, help, update_help: None }
    }

    pub(super) const fn text(long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::Text, long, value_name, help)
    }

    pub(super) const fn list(long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::List, long, value_name, help)
    }

    pub(super) const fn number(long: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::Number, long, "N", help)
    }

    pub(super) const fn duration(long: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::Duration, long, "DURATION", help)
    }

    pub(super) const fn json(long: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::Json, long, "JSON", help)
    }

    pub(super) const fn flag(long: &'static str, help: &'static str) -> Self {
        Self::new(ArgumentKind::Flag, long, "", help)
    }

    pub(super) const fn update(self, help: &'static str) -> Self {
        Self { update_help: Some(help), ..self }
    }
}

/// Field of a task's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Header of a task record. `None`: the field is part of the JSON in `ce_policy`.
    pub header: Option<&'static str>,
    pub description: &'static str,
    /// Scopes besides changes and the status that accept the field.
    pub scopes: &'static [Scope],
    pub change: Change,
    pub visibility: Visibility,
    pub argument: Option<Argument>,
}

impl Field {
    pub(super) const fn at(scopes: &'static [Scope]) -> Self {
        Self {
            name: "",
            header: None,
            description: "",
            scopes,
            change: Change::Never,
            visibility: Visibility::Hidden,
            argument: None,
        }
    }

    pub(super) const fn change(self, change: Change) -> Self {
        Self { change, ..self }
    }

    pub(super) const fn visible(self, visibility: Visibility) -> Self {
        Self { visibility, ..self }
    }

    pub(super) const fn argument(self, argument: Argument) -> Self {
        Self { argument: Some(argument), ..self }
    }

    /// Returns true if a scope has the field.
    pub fn is_in(&self, scope: Scope) -> bool {
        match scope {
            Scope::Change => self.change != Change::Never,
            Scope::Status => self.visibility != Visibility::Hidden,
            scope => self.scopes.contains(&scope),
        }
    }

    /// Returns true for fields shown to people: in the text of `status` and in notifications.
    pub fn is_label(&self) -> bool {
        self.visibility == Visibility::Label
    }
}

/// Defines a struct whose fields are also a table. A field of the table has its description as doc comment, a header
/// unless it is part of `ce_policy`, a check of its value, and its properties. Fields before `table` are not part of
/// it.
macro_rules! fields {
    (
        $(#[$meta:meta])*
        pub struct $group:ident {
            $( $(#[$own_meta:meta])* pub $own:ident: $own_type:ty = $own_default:expr, )*
            table {
                $(
                    $(#[doc = $description:literal])+
                    $name:ident: $type:ty, $(header $header:literal,)? check $check:expr,
                    $properties:expr;
                )+
            }
        }
    ) => {
        $(#[$meta])*
        pub struct $group {
            $( $(#[$own_meta])* pub $own: $own_type, )*
            $(
                $(#[doc = $description])+
                #[serde(skip_serializing_if = "is_default")]
                pub $name: $type,
            )+
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $( $own: $own_default, )* $( $name: <$type>::default(), )+ }
            }
        }

        impl $group {
            const TABLE: &[Field] = &[
                $( Field {
                    name: stringify!($name),
                    header: first(&[$($header)?]),
                    description: concat!($($description),+).trim_ascii_start(),
                    ..$properties
                }, )+
            ];

            /// Reads the value of a field from JSON. Returns false for other fields. With `clears`, `null` is the
            /// default value of any field.
            fn read_own<'de, M: MapAccess<'de>>(
                &mut self,
                name: &str,
                clears: bool,
                map: &mut M,
            ) -> Result<bool, M::Error> {
                $( if name == stringify!($name) {
                    self.$name = if clears { map.next_value::<Option<$type>>()?.unwrap_or_default() } else { map.next_value()? };
                    return Ok(true);
                } )+
                Ok(false)
            }

            /// Writes the value of a field as JSON. Returns false for other fields.
            fn write_own<M: SerializeMap>(&self, name: &str, map: &mut M) -> Result<bool, M::Error> {
                $( if name == stringify!($name) {
                    map.serialize_entry(stringify!($name), &self.$name)?;
                    return Ok(true);
                } )+
                Ok(false)
            }

            /// Copies the value of a field.
            fn copy_own(&mut self, name: &str, from: &Self) {
                $( if name == stringify!($name) {
                    self.$name.clone_from(&from.$name);
                } )+
            }

            fn is_set_own(&self, name: &str) -> bool {
                $( (name == stringify!($name) && !is_default(&self.$name)) )||+
            }

            /// Names and reasons of the invalid values.
            fn errors_own(&self, errors: &mut Vec<(String, String)>) {
                $(
                    let check: fn(&$type) -> Result<(), String> = $check;
                    errors.extend(check(&self.$name).err().map(|error| (stringify!($name).to_owned(), error)));
                )+
            }
        }

        fields!(@headers $group { $( $( $name: $type, [$header], $check; )? )+ });
    };
    (@headers $group:ident {}) => {};
    (@headers $group:ident { $( $name:ident: $type:ty, [$header:literal], $check:expr; )+ }) => {
        impl $group {
            /// Decodes a header of a record. Returns false if it is not the header of a field. The policy is created
            /// only for such a header, because most tasks have none.
            pub(super) fn read_header(policy: &mut Option<Box<Self>>, name: &str, text: &str) -> Result<bool, String> {
                $( if name == $header {
                    let value = <$type as HeaderValue>::parse(text)?;
                    let check: fn(&$type) -> Result<(), String> = $check;
                    check(&value)?;
                    policy.get_or_insert_default().$name = value;
                    return Ok(true);
                } )+
                Ok(false)
            }

            /// Headers of the fields that have one of their own; `None` for default values.
            fn write_headers<'a>(&'a self, set: &mut impl FnMut(&'static str, Option<Cow<'a, str>>)) {
                $( set($header, self.$name.show()); )+
            }
        }
    };
}
pub(super) use fields;

pub(super) const fn first(headers: &[&'static str]) -> Option<&'static str> {
    match headers {
        [first, ..] => Some(first),
        [] => None,
    }
}

/// Value of a field as the text of a header.
pub(crate) trait HeaderValue: Sized {
    fn parse(text: &str) -> Result<Self, String>;
    /// `None` for the default value, which needs no header.
    fn show(&self) -> Option<Cow<'_, str>>;
}

impl HeaderValue for Option<String> {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Some(text.to_owned()))
    }

    fn show(&self) -> Option<Cow<'_, str>> {
        self.as_deref().map(Cow::Borrowed)
    }
}

impl HeaderValue for Option<u32> {
    fn parse(text: &str) -> Result<Self, String> {
        text.trim().parse().map(Some).map_err(|_| format!("`{}` is not a whole number", clip(text)))
    }

    fn show(&self) -> Option<Cow<'_, str>> {
        self.map(|number| number.to_string().into())
    }
}

impl HeaderValue for Option<Millis> {
    fn parse(text: &str) -> Result<Self, String> {
        Millis::parse(text).map(Some)
    }

    fn show(&self) -> Option<Cow<'_, str>> {
        self.map(|span| span.to_string().into())
    }
}

impl HeaderValue for Option<UniqueRule> {
    fn parse(text: &str) -> Result<Self, String> {
        UniqueRule::parse(text).map(Some)
    }

    fn show(&self) -> Option<Cow<'_, str>> {
        self.as_ref().map(UniqueRule::text)
    }
}

impl HeaderValue for OnFailure {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "fail" => Ok(Self::Fail),
            "ignore" => Ok(Self::Ignore),
            _ => Err(format!("`{}` is unknown: use `fail` or `ignore`", clip(text))),
        }
    }

    fn show(&self) -> Option<Cow<'_, str>> {
        (*self == Self::Ignore).then_some("ignore".into())
    }
}

/// Splits texts that are separated by commas.
pub fn comma_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Texts separated by commas.
impl HeaderValue for Vec<String> {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(comma_list(text))
    }

    fn show(&self) -> Option<Cow<'_, str>> {
        (!self.is_empty()).then(|| self.join(",").into())
    }
}
