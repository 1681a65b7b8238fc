//! Recovery of a metadata client that librdkafka has left without any broker.
//!
//! A single broker that restarts answers requests before the cluster metadata contains it. From an answer without
//! brokers librdkafka 2.12 concludes that all brokers are gone, the bootstrap servers too
//! (`rd_kafka_metadata_decommission_unavailable_brokers`), and a client that only lists topics may never connect again.
//! Consumers and producers refresh the metadata of their topics, after which librdkafka begins again with the bootstrap
//! servers.

use std::ffi::CString;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::client::{Client, ClientContext};

use super::native;

/// Interval of the checks of a client that has a broker.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum interval of the checks of a client without a broker. librdkafka keeps a copy of the servers per addition.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Checks of one client.
pub(super) struct Reconnect {
    servers: CString,
    next: Mutex<(Instant, Duration)>,
}

impl Reconnect {
    /// Creates the checks of a client with these bootstrap servers.
    pub(super) fn new(servers: &str) -> Self {
        let servers = CString::new(servers).unwrap_or_default();
        Self { servers, next: Mutex::new((Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL)) }
    }

    /// Gives the bootstrap servers to the client again if it has no broker. Does nothing between two checks, and never
    /// waits.
    pub(super) fn check<C: ClientContext>(&self, client: &Client<C>) {
        let now = Instant::now();
        let Some(mut next) = self.next.try_lock().filter(|next| next.0 <= now) else { return };
        let interval = if native::has_broker(client) {
            CHECK_INTERVAL
        } else {
            native::add_brokers(client, &self.servers);
            (next.1 * 2).min(MAX_INTERVAL)
        };
        *next = (now + interval, interval);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::super::admin::Cluster;
    use super::super::settings::Settings;
    use super::*;

    const TEST_DEADLINE: Duration = Duration::from_secs(100);

    /// A server that knows `ApiVersions` and `Metadata`, for as much as a client needs to connect.
    struct FakeBroker {
        port: u16,
        without_brokers: AtomicBool,
        /// Number of metadata requests by client id.
        requests: Mutex<BTreeMap<String, u64>>,
    }

    impl FakeBroker {
        fn start() -> Arc<Self> {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let broker = Arc::new(Self { port, without_brokers: false.into(), requests: Mutex::default() });
            let serving = broker.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let (broker, stream) = (serving.clone(), stream.unwrap());
                    std::thread::spawn(move || broker.serve(stream));
                }
            });
            broker
        }

        fn serve(&self, mut stream: TcpStream) -> Option<()> {
            loop {
                let mut size = [0; 4];
                stream.read_exact(&mut size).ok()?;
                let mut request = vec![0; u32::from_be_bytes(size) as usize];
                stream.read_exact(&mut request).ok()?;
                let (api, version) = (&request[..2], &request[2..4]);
                let name_length = u16::from_be_bytes([request[8], request[9]]) as usize;
                let client = String::from_utf8_lossy(&request[10..10 + name_length]).into_owned();
                let mut response = request[4..8].to_vec();
                match api {
                    [0, 18] => response.extend(api_versions(version != [0, 0])),
                    [0, 3] => {
                        *self.requests.lock().entry(client).or_default() += 1;
                        response.extend(self.metadata());
                    }
                    _ => return None,
                }
                stream.write_all(&(response.len() as u32).to_be_bytes()).ok()?;
                stream.write_all(&response).ok()?;
            }
        }

        /// `Metadata`, version 4: one broker or none, and one topic without partitions.
        fn metadata(&self) -> Vec<u8> {
            let mut body = vec![0; 4];
            if self.without_brokers.load(SeqCst) {
                body.extend(0_u32.to_be_bytes());
            } else {
                body.extend([0, 0, 0, 1, 0, 0, 0, 1, 0, 9]);
                body.extend(b"127.0.0.1");
                body.extend(u32::from(self.port).to_be_bytes());
                body.extend([0xff, 0xff]);
            }
            body.extend([0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, b'x', 0, 0, 0, 0, 0]);
            body
        }

        fn settings(&self, client: &str) -> Settings {
            let section = [
                ("bootstrap.servers", format!("127.0.0.1:{}", self.port)),
                ("client.id", client.to_owned()),
                ("topic.metadata.refresh.interval.ms", "200".to_owned()),
            ];
            Settings::new(&section.map(|(key, value)| (key.to_owned(), value)).into()).unwrap()
        }

        /// Number of metadata requests of the client that requested least.
        fn least(&self, clients: usize) -> u64 {
            let requests = self.requests.lock();
            if requests.len() < clients { 0 } else { requests.values().copied().min().unwrap_or(0) }
        }

        /// Calls `turn` until every client has sent more than the given number of metadata requests.
        fn until_more_than(&self, clients: usize, count: u64, mut turn: impl FnMut()) {
            let end = Instant::now() + TEST_DEADLINE;
            while self.least(clients) <= count {
                assert!(Instant::now() < end, "metadata requests by client: {:?}", self.requests.lock());
                turn();
            }
        }

        /// Plays a restart of the only broker: its metadata lacks it for a while. Then every client asks again.
        fn restart(&self, clients: usize, mut turn: impl FnMut()) {
            self.until_more_than(clients, 0, &mut turn);
            self.without_brokers.store(true, SeqCst);
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                turn();
            }
            self.without_brokers.store(false, SeqCst);
            self.requests.lock().values_mut().for_each(|count| *count = 0);
            self.until_more_than(clients, 3, turn);
        }
    }

    /// `ApiVersions`, version 0; a newer version is answered with an error.
    fn api_versions(is_newer: bool) -> Vec<u8> {
        let apis: [[u8; 3]; 5] = [[0, 3, 7], [1, 4, 11], [2, 1, 5], [3, 0, 4], [18, 0, 0]];
        let mut body = vec![0, if is_newer { 35 } else { 0 }, 0, 0, 0, apis.len() as u8];
        body.extend(apis.iter().flat_map(|[api, from, to]| [0, *api, 0, *from, 0, *to]));
        body
    }

    #[test]
    fn metadata_clients_survive_metadata_without_brokers() {
        let broker = FakeBroker::start();
        let clients: Vec<_> = (0..6).map(|n| Cluster::new(broker.settings(&format!("admin-{n}"))).unwrap()).collect();
        broker.restart(clients.len(), || {
            for client in &clients {
                let _ = client.topics("none", Duration::from_millis(100));
            }
        });
    }
}
