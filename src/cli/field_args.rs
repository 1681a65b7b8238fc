//! Command-line arguments of the fields of a task, from their table.

use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use kafleet_model::json::{RawJson, short_reason};
use kafleet_model::task::Policy;
use kafleet_model::task::field::{Argument, ArgumentKind, Field, Scope};
use kafleet_model::task::patch::FieldChanges;
use kafleet_model::units::duration::Millis;
use serde_json::Value;

use super::exit::Failure;
use super::submit::json;

const HEADING: &str = "Task options";

/// Given arguments for the fields of a scope (a [`Scope`] as a number).
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FieldArgs<const SCOPE: u8> {
    /// Values by the names of the fields; those of JSON as texts.
    given: Vec<(&'static Field, Value)>,
}

impl<const SCOPE: u8> FieldArgs<SCOPE> {
    fn arguments() -> impl Iterator<Item = (&'static Field, Argument)> {
        let scope = Scope::of(SCOPE);
        Policy::fields().filter(move |field| field.is_in(scope)).filter_map(|field| Some((field, field.argument?)))
    }

    /// JSON of the given fields.
    pub(super) fn document(self) -> Result<BTreeMap<String, RawJson>, Failure> {
        let value = |field: &Field, value: Value| match (field.argument.map(|argument| argument.kind), &value) {
            (Some(ArgumentKind::Json), Value::String(text)) => json(text),
            _ => Ok(value.into()),
        };
        self.given.into_iter().map(|(field, given)| Ok((field.name.to_owned(), value(field, given)?))).collect()
    }

    /// New values of the given fields.
    pub(super) fn changes(self) -> Result<FieldChanges, Failure> {
        FieldChanges::of(&self.document()?).map_err(|error| Failure::usage(short_reason(&error)))
    }
}

impl<const SCOPE: u8> Args for FieldArgs<SCOPE> {
    fn augment_args(command: Command) -> Command {
        Self::arguments().fold(command, |command, (field, argument)| command.arg(arg(field, argument, SCOPE)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(field: &Field, argument: Argument, scope: u8) -> Arg {
    let help = argument.update_help.filter(|_| Scope::of(scope) == Scope::Change).unwrap_or(argument.help);
    let arg = Arg::new(field.name).long(argument.long).help(help);
    // The heading of `update` is that of its other options.
    let arg = if Scope::of(scope) == Scope::Change { arg } else { arg.help_heading(HEADING) };
    if argument.kind == ArgumentKind::Flag {
        return arg.action(ArgAction::SetTrue);
    }
    let arg = arg.value_name(argument.value_name);
    match argument.kind {
        ArgumentKind::List => arg.action(ArgAction::Append),
        ArgumentKind::Number => arg.value_parser(value_parser!(u32)),
        ArgumentKind::Duration => arg.value_parser(value_parser!(Millis)),
        ArgumentKind::Text | ArgumentKind::Json | ArgumentKind::Flag => arg,
    }
}

impl<const SCOPE: u8> FromArgMatches for FieldArgs<SCOPE> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |field: &Field| matches.value_source(field.name) == Some(ValueSource::CommandLine);
        let given = Self::arguments().filter(|(field, _)| is_given(field));
        Ok(Self { given: given.map(|(field, argument)| (field, value(matches, field.name, argument.kind))).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn value(matches: &ArgMatches, name: &str, kind: ArgumentKind) -> Value {
    match kind {
        ArgumentKind::Flag => matches.get_flag(name).into(),
        ArgumentKind::Number => matches.get_one::<u32>(name).copied().into(),
        ArgumentKind::Duration => matches.get_one::<Millis>(name).map(ToString::to_string).into(),
        ArgumentKind::Text | ArgumentKind::Json => matches.get_one::<String>(name).cloned().into(),
        ArgumentKind::List => matches.get_many::<String>(name).into_iter().flatten().cloned().collect(),
    }
}
