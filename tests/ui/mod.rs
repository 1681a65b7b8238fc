//! Tests of the web UI: the real server on the in-memory fleet, over HTTP, and with a browser where there is one.

mod access;
mod actions;
mod appearance;
mod browser;
mod chromium;
mod failures;
mod frame;
mod hostile;
mod live;
mod outages;
mod pages;
mod queues;
mod searches;
mod times;
