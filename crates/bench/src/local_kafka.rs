//! Kafka processes on this machine, whose CPU time is read from /proc.

use std::net::TcpListener;
use std::time::Duration;

use super::process::cpu_of;

/// Process ids; empty if Kafka runs elsewhere.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalKafka(Vec<u32>);

impl LocalKafka {
    /// Finds the processes that listen on these addresses (`host:port`, separated by commas).
    pub(super) fn listening_on(addresses: &str) -> Self {
        // Only addresses of this machine can be bound.
        let is_here = |host: &str| TcpListener::bind((host, 0)).is_ok();
        let ports = addresses.split(',').filter_map(|address| address.trim().rsplit_once(':'));
        let ports: Vec<u16> =
            ports.filter(|(host, _)| is_here(host)).filter_map(|(_, port)| port.parse().ok()).collect();
        Self(owners(&sockets(&ports)))
    }

    /// CPU time used so far.
    pub(super) fn cpu(&self) -> Option<Duration> {
        (!self.0.is_empty()).then(|| self.0.iter().copied().map(cpu_of).sum())
    }

    /// Kafka's version, from the name of its jar on the command line.
    pub(super) fn version(&self) -> Option<String> {
        let line = std::fs::read_to_string(format!("/proc/{}/cmdline", self.0.first()?)).ok()?;
        let files = line.split([':', '/', '\0']);
        let mut versions = files.filter_map(|file| file.strip_prefix("kafka_")?.strip_suffix(".jar")?.split_once('-'));
        versions.next().map(|(_, version)| version.to_owned())
    }
}

/// Returns the names in /proc of the sockets that listen on these ports.
fn sockets(ports: &[u16]) -> Vec<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter_map(|line| socket(line, ports)).collect()
}

/// Parses a line of /proc/net/tcp: the second field is the address, the fourth the state, the tenth the inode.
fn socket(line: &str, ports: &[u16]) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let port = u16::from_str_radix(fields.get(1)?.rsplit_once(':')?.1, 16).ok()?;
    let listens = *fields.get(3)? == "0A";
    (listens && ports.contains(&port)).then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
}

/// Finds the processes that have one of these sockets open, as far as permissions allow.
fn owners(sockets: &[String]) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.any(|producer| producer.to_str().is_some_and(|producer| sockets.iter().any(|socket| socket == producer)))
    };
    if sockets.is_empty() { Vec::new() } else { processes.filter(holds).collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn listening_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // A child that another test is starting has the socket open too, until it executes its program.
        assert!(LocalKafka::listening_on(&address).0.contains(&std::process::id()));
        assert!(LocalKafka::listening_on(&format!("192.0.2.1:9092,{address}")).cpu().is_some());
        drop(listener);
        let started = Instant::now();
        while LocalKafka::listening_on(&address).cpu().is_some() {
            assert!(started.elapsed() < Duration::from_secs(60), "a closed listener is not found");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
