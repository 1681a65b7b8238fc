//! Frame of all pages: navigation, search, session, and `<main>`.

use kafleet_config::{Colour, Role, UiConfig};
use kafleet_model::record::state::State;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::state::glyph;
use super::times::clock_text;
use super::{View, count};
use crate::cache::{build, script, stylesheet};
use crate::icon::icon_url;
use crate::navigation::NavigationCounts;
use crate::zone::FLEET;

/// Entry of the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Section {
    Overview,
    Tasks,
    Failures,
    Types,
    Workers,
    Schedules,
    New,
    More,
    None,
}

const ENTRIES: [(Section, &str, &str); 6] = [
    (Section::Overview, "/", "Overview"),
    (Section::Tasks, "/tasks", "Tasks"),
    (Section::Failures, "/failures", "Failures"),
    (Section::Types, "/types", "Types"),
    (Section::Workers, "/workers", "Workers"),
    (Section::Schedules, "/schedules", "Schedules"),
];

const MORE: [(&str, &str); 7] = [
    ("/v", "Views"),
    ("/bulk", "Bulk actions"),
    ("/kill-switches", "Kill switches"),
    ("/audit", "Audit"),
    ("/system", "System"),
    ("/help", "Help"),
    ("/help#keys", "Keys"),
];

/// Keys of the script with their meaning.
const KEYS: [(&str, &str); 11] = [
    ("/", "search"),
    ("j k", "next and previous row"),
    ("Enter", "open the row"),
    ("[ ]", "previous and next task of the list from which a task was opened"),
    ("x", "select the row; with the mouse: Ctrl and a click"),
    ("a", "first action of the page"),
    ("c", "copy the id of the task, or of the row"),
    (".", "stop or continue live updates"),
    ("g o, g t, g f, g y", "overview, tasks, failures, types"),
    ("g w, g s, g b, g n", "workers, schedules, bulk actions, new task"),
    ("?", "this list"),
];

/// Lifetime of the cookies with the theme and the zone in seconds.
pub(in super::super) const COOKIE_S: u32 = 365 * 86_400;

/// Colours of the pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Theme {
    /// Preference of the reader's system.
    System,
    Light,
    Dark,
}

impl Theme {
    pub(in super::super) const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// Theme after the next press of the button.
    const fn next(self) -> Self {
        match self {
            Self::System => Self::Dark,
            Self::Dark => Self::Light,
            Self::Light => Self::System,
        }
    }

    const fn symbol(self) -> &'static str {
        match self {
            Self::System => "◐",
            Self::Light => "○",
            Self::Dark => "●",
        }
    }
}

/// Name, colour and zone of the fleet.
#[derive(Clone, Copy)]
pub(in super::super) struct FleetIdentity<'a> {
    pub name: Option<&'a str>,
    pub colour: Option<Colour>,
    pub zone: &'a str,
}

impl<'a> FleetIdentity<'a> {
    pub(in super::super) fn of(config: &'a UiConfig) -> Self {
        let colour = config.colour.as_deref().and_then(|colour| Colour::parse(colour).ok());
        Self { name: config.name.as_deref(), colour, zone: &config.zone }
    }
}

/// Surroundings of `<main>`. They depend on the reader; `<main>` does not.
pub(in super::super) struct Shell<'a> {
    pub view: &'a View,
    pub fleet: FleetIdentity<'a>,
    pub section: Section,
    /// Topic of live updates.
    pub topic: String,
    /// Name of the token, and path of the page to return to. None without a session.
    pub user: Option<(Option<&'a str>, &'a str)>,
    pub theme: Theme,
    pub counts: NavigationCounts,
    /// Names of views of tasks.
    pub views: &'a [String],
}

/// Path and name of the list to which a page belongs; `None` if it belongs to none.
pub(in super::super) fn list_of(path: &str) -> Option<(&'static str, &'static str)> {
    let lists =
        ENTRIES.iter().map(|(_, list, name)| (*list, *name)).chain(MORE).chain([("/dead-letters", "Dead letters")]);
    let is_below = |list: &str| path.strip_prefix(list).is_some_and(|rest| rest.starts_with('/'));
    lists.into_iter().find(|(list, _)| *list != "/" && is_below(list))
}

/// Whole page.
pub(in super::super) fn frame(shell: &Shell<'_>, title: &str, state: Option<State>, main: &Markup) -> Markup {
    let view = shell.view;
    html! {
        (DOCTYPE)
        html lang="en" data-theme=(shell.theme.name()) data-base=(view.base) data-build=(build()) data-time=(clock_text(view.now_ms)) {
            (head(shell, &window_title(shell, title, state)))
            body {
                a.skip href="#main" { "Skip to the content" }
                (header(shell, main))
                (main_element(shell, title, state, main))
                @if let Some((_, path)) = shell.user { (zone_form(shell, path)) (script_elements()) }
            }
        }
    }
}

fn head(shell: &Shell<'_>, title: &str) -> Markup {
    let view = shell.view;
    let icon = icon_url(view, shell.fleet.colour, shell.counts.trouble() > 0);
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) }
            link rel="icon" type="image/svg+xml" href=(icon);
            link rel="stylesheet" href=(view.url(&format!("/ui/{}", stylesheet())));
            script type="module" src=(view.url(&format!("/ui/{}", script()))) {}
        }
    }
}

/// Navigation, and a search unless the page has one of its own.
fn header(shell: &Shell<'_>, main: &Markup) -> Markup {
    let view = shell.view;
    let has_search = main.0.contains("<input id=\"search\"");
    html! {
        @if let Some(colour) = shell.fleet.colour {
            svg.fleet width="100%" height="4" aria-hidden="true" { rect width="100%" height="4" fill=(colour) {} }
        }
        header.top {
            a.brand href=(view.url("/")) {
                "kafleet" @if let Some(name) = shell.fleet.name { " " span.fleet title="name of the fleet" { (name) } }
            }
            @if let Some((user, path)) = shell.user {
                (navigation(shell))
                @if !has_search { (search(view)) }
                (session(shell, user, path))
            }
        }
    }
}

/// Part of the page that live updates replace.
pub(in super::super) fn main_element(shell: &Shell<'_>, title: &str, state: Option<State>, main: &Markup) -> Markup {
    html! {
        main #main data-topic=(shell.topic) data-title=(window_title(shell, title, state)) data-state=[state.map(State::name)] {
            (main)
        }
    }
}

/// Title of the window, which ends with the name of the fleet.
fn window_title(shell: &Shell<'_>, title: &str, state: Option<State>) -> String {
    let end = shell.fleet.name.unwrap_or("kafleet");
    match state {
        Some(state) => format!("{} {title} · {end}", glyph(state)),
        None => format!("{title} · {end}"),
    }
}

/// Zone of the times of all pages, and the choice of another one.
fn zone_form(shell: &Shell<'_>, path: &str) -> Markup {
    let (zone, fleet) = (&shell.view.zone, shell.fleet.zone);
    let choice = |value: &str, text: &str| {
        let is_chosen = !zone.is_local && zone.name == if value == FLEET { fleet } else { value };
        html! { button.plain name="zone" value=(value) aria-pressed=(is_chosen) { (text) } }
    };
    html! {
        footer #zone {
            form method="post" action=(shell.view.url("/zone")) {
                input type="hidden" name="next" value=(path);
                span { "times in " strong { (zone.name) } }
                (choice("UTC", "UTC"))
                @if fleet != "UTC" { (choice(FLEET, &format!("fleet ({fleet})"))) }
                button.app.plain #local-zone name="zone" value=[zone.is_local.then(|| zone.choice())]
                    aria-pressed=(zone.is_local) data-age=(COOKIE_S) { "local" }
                a href=(shell.view.url("/help#time-zone")) { "Other…" }
            }
        }
    }
}

/// Keys of the script.
pub(in super::super) fn key_list() -> Markup {
    html! { dl.keys { @for (keys, meaning) in KEYS { dt { kbd { (keys) } } dd { (meaning) } } } }
}

/// Elements of the script. Those of the class `app` are hidden until it runs.
fn script_elements() -> Markup {
    html! {
        button.app.float #new-rows type="button" hidden {}
        div.app.float #selection role="toolbar" aria-label="selected rows" hidden {
            span #selected {}
            button #copy-ids type="button" { "Copy ids" }
            button #clear-selection type="button" { "Clear" }
        }
        p.hidden #announced role="status" {}
        datalist #suggestions {}
        dialog #action closedby="any" {}
        dialog #keys closedby="any" aria-labelledby="keys-title" {
            h2 #keys-title { "Keys" }
            (key_list())
            p { label { input #use-keys type="checkbox" checked; " Use these keys in this browser" } }
            form method="dialog" { button { "Close" } }
        }
    }
}

/// Rendered `<main>`, as hashed for the entity tag.
pub(in super::super) fn rendered(main: String) -> Markup {
    PreEscaped(main)
}

fn navigation(shell: &Shell<'_>) -> Markup {
    let view = shell.view;
    let links = links(shell);
    let more = html! {
        @for (path, name) in MORE {
            a href=(view.url(path)) { (name) }
            @if path == "/v" { @for name in shell.views { a.saved href=(view.url(&format!("/v/{name}"))) { (name) } } }
        }
    };
    html! {
        nav.wide aria-label="main" {
            (links)
            details.menu { summary.current[shell.section == Section::More] { "More" } div { (more) } }
        }
        details.menu.narrow {
            summary { "Menu" (total_badge(shell.counts)) }
            nav aria-label="main" {
                (links) (more)
                @if view.may(Role::Submit) { a.small href=(view.url("/new")) { "New task" } }
            }
        }
        @if view.may(Role::Submit) { (new_button(shell)) }
    }
}

fn links(shell: &Shell<'_>) -> Markup {
    html! {
        @for (section, path, name) in ENTRIES {
            @let number = shell.counts.errors.filter(|number| section == Section::Failures && *number > 0);
            a href=(shell.view.url(path)) aria-current=[(section == shell.section).then_some("page")]
                title=[(section == Section::Failures).then(|| failures_title(shell.counts)).flatten()] {
                (name) @if let Some(number) = number { " " span.badge { (count(number)) } }
            }
        }
    }
}

/// Meaning of the number beside the failures, and what else there is.
fn failures_title(counts: NavigationCounts) -> Option<String> {
    let plus = if counts.more_letters { "+" } else { "" };
    let noun = |one: bool, noun: &'static str, plural: &'static str| if one { noun } else { plural };
    let errors = counts.errors.map(|number| {
        format!("{} {} in the last hour", count(number), noun(number == 1, "kind of error", "kinds of errors"))
    });
    let letters = counts.letters.map(|number| {
        let is_one = number == 1 && !counts.more_letters;
        format!("{}{plus} unresolved {}", count(number), noun(is_one, "dead letter", "dead letters"))
    });
    let texts: Vec<String> = errors.into_iter().chain(letters).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Number beside an entry of a closed menu: that of the failures, which the wide navigation shows.
fn total_badge(counts: NavigationCounts) -> Markup {
    html! {
        @if let Some(errors) = counts.errors.filter(|errors| *errors > 0) {
            " " span.badge title=[failures_title(counts)] { (count(errors)) }
        }
    }
}

fn new_button(shell: &Shell<'_>) -> Markup {
    html! {
        a.button.new href=(shell.view.url("/new")) aria-current=[(shell.section == Section::New).then_some("page")] {
            "New task"
        }
    }
}

fn search(view: &View) -> Markup {
    html! {
        form.search role="search" action=(view.url("/tasks")) {
            input #search name="q" type="search" placeholder="Search tasks" aria-label="Search tasks"
                autocomplete="off" spellcheck="false" list="suggestions";
        }
    }
}

fn session(shell: &Shell<'_>, user: Option<&str>, path: &str) -> Markup {
    let view = shell.view;
    html! {
        div.session {
            span.app role="status" { a.bad #trouble hidden {} }
            button.app.plain.live #live type="button" aria-pressed="true" title="Live updates: press to stop or continue" { "Live" }
            a.quiet.zone href="#zone" title={ "times in " (view.zone.name) } { (zone_abbreviation(view)) }
            (theme_form(view, shell.theme, path))
            (user_block(view, user))
        }
    }
}

/// Abbreviation of the zone at this time, such as `UTC` or `CET`.
fn zone_abbreviation(view: &View) -> String {
    let now = jiff::Timestamp::from_millisecond(view.now_ms).unwrap_or_default();
    now.to_zoned(view.zone.zone.clone()).strftime("%Z").to_string()
}

fn theme_form(view: &View, theme: Theme, path: &str) -> Markup {
    let next = theme.next().name();
    html! {
        form method="post" action=(view.url("/theme")) {
            input type="hidden" name="next" value=(path);
            button.plain name="theme" value=(next) title={ "Theme: " (theme.name()) ". Switch to " (next) }
                aria-label={ "Switch the theme to " (next) } { (theme.symbol()) "\u{fe0e}" }
        }
    }
}

fn user_block(view: &View, user: Option<&str>) -> Markup {
    html! {
        @match user {
            Some(name) => {
                span.user title={ "token " (name) } { (name) " " span.quiet { "(" (role(view)) ")" } }
                form method="post" action=(view.url("/logout")) { button.plain { "Log out" } }
            }
            None => {
                a.quiet href=(view.url("/help#access")) title="Everyone who can reach this address may do everything" {
                    "open to all"
                }
            }
        }
    }
}

fn role(view: &View) -> &'static str {
    match view.role {
        _ if view.read_only => "read-only UI",
        role => role.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_of_the_failures_says_what_is_counted() {
        let counts = |errors, letters, more_letters| NavigationCounts { errors, letters, more_letters };
        for (counts, title) in [
            (counts(None, None, false), None),
            (counts(Some(3), Some(12), false), Some("3 kinds of errors in the last hour, 12 unresolved dead letters")),
            (counts(Some(1), Some(1), false), Some("1 kind of error in the last hour, 1 unresolved dead letter")),
            (
                counts(Some(0), Some(5_000), true),
                Some("0 kinds of errors in the last hour, 5,000+ unresolved dead letters"),
            ),
            (counts(None, Some(2), false), Some("2 unresolved dead letters")),
        ] {
            assert_eq!(failures_title(counts).as_deref(), title);
        }
    }
}
