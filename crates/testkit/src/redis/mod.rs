//! Redis servers per test: a single one, a master behind sentinels, a cluster; and a connection that can be cut. All
//! of them end with the test.

pub mod cluster;
pub mod proxy;
pub mod sentinels;
pub mod server;

pub use cluster::Cluster;
pub use proxy::{Cut, Proxy};
pub use sentinels::Sentinels;
pub use server::{Server, free_port, patient};
