//! Tests of the web UI: the real server on the in-memory fleet, over HTTP, and with a browser where there is one.

mod access;
mod actions;
mod appearance;
pub mod browser;
mod chromium;
mod failures;
mod finding;
mod forms;
mod frame;
mod hostile;
mod lists;
mod live;
mod load;
mod masking;
mod numbers;
mod outages;
mod pages;
mod queues;
mod results;
pub mod roles;
mod searches;
mod shop;
mod times;
mod unique;
mod visits;
