//! Logs of the process: their format, and their filter, which can change.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

/// Environment variable with the format of logs: `text` or `json`.
pub const LOG_FORMAT: &str = "KAFLEET_LOG_FORMAT";
/// Environment variable with the filter of logs.
pub const LOG_FILTER: &str = "KAFLEET_LOG";

/// Filter of the process's subscriber.
struct LiveFilter {
    /// Filter without `KAFLEET_LOG` and `log.filter`.
    default: String,
    replace: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

static FILTER: OnceLock<LiveFilter> = OnceLock::new();

/// Returns whether logs are text: if requested, or by default on a terminal.
pub fn logs_are_text() -> bool {
    match std::env::var(LOG_FORMAT).as_deref() {
        Ok("text") => true,
        Ok("json") => false,
        _ => std::io::stderr().is_terminal(),
    }
}

/// Sends logs to stderr, as text on a terminal and as JSON otherwise, unless `KAFLEET_LOG_FORMAT` is set. The filter is
/// `KAFLEET_LOG`, or `default` (`info`, `warn`, …) until [`set_log_filter`].
pub fn init_logs(default: &str) {
    let filter = filter_of_environment().unwrap_or_else(|| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error of stderr (a full disk, a closed pipe) would be reported to stderr, with a panic.
    let logs = logs.log_internal_errors(false);
    // A second call in a process (as in tests) keeps the first subscriber.
    if logs_are_text() {
        let logs = logs.with_target(false).with_ansi(std::io::stderr().is_terminal()).compact();
        let logs = logs.with_filter_reloading();
        let handle = logs.reload_handle();
        keep_filter(default, handle, logs.try_init().is_ok());
    } else {
        let logs = logs.json().flatten_event(true).with_filter_reloading();
        let handle = logs.reload_handle();
        keep_filter(default, handle, logs.try_init().is_ok());
    }
}

fn keep_filter<S: 'static>(default: &str, handle: Handle<EnvFilter, S>, is_new: bool) {
    if is_new {
        // Fails only if the subscriber is gone, with the process.
        let replace = Box::new(move |filter| drop(handle.reload(filter)));
        let _ = FILTER.set(LiveFilter { default: default.to_owned(), replace });
    }
}

fn filter_of_environment() -> Option<EnvFilter> {
    EnvFilter::try_from_env(LOG_FILTER).ok()
}

/// Returns whether `KAFLEET_LOG` sets the filter, so that the configuration does not.
pub fn environment_sets_log_filter() -> bool {
    filter_of_environment().is_some()
}

/// Sets the log filter of the configuration; `None` restores the default passed to `init_logs`. `KAFLEET_LOG` has precedence.
pub fn set_log_filter(filter: Option<&str>) {
    if let Some(live) = FILTER.get().filter(|_| !environment_sets_log_filter()) {
        (live.replace)(EnvFilter::new(filter.unwrap_or(&live.default)));
    }
}
