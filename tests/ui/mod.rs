//! Tests of the web UI over HTTP, without a browser: the real server on the in-memory fleet.

mod access;
mod actions;
mod appearance;
mod browser;
mod hostile;
mod live;
mod outages;
mod pages;
