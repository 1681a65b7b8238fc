//! Kafka's own processes, where they run on this machine: what they cost is found in /proc, as for our own.

use std::net::TcpListener;
use std::time::Duration;

use super::process::cpu_of;

/// The processes; none where Kafka runs elsewhere.
#[derive(Clone, Debug, Default)]
pub struct LocalKafka(Vec<u32>);

impl LocalKafka {
    /// Whoever listens on these addresses of this machine: `host:port`, separated by commas.
    pub fn listening(addresses: &str) -> Self {
        // Only an address of this machine can be listened on.
        let is_here = |host: &str| TcpListener::bind((host, 0)).is_ok();
        let ports = addresses.split(',').filter_map(|address| address.trim().rsplit_once(':'));
        let ports: Vec<u16> = ports.filter(|(host, _)| is_here(host)).filter_map(|(_, port)| port.parse().ok()).collect();
        Self(owners(&sockets(&ports)))
    }

    /// Their CPU time so far.
    pub fn cpu(&self) -> Option<Duration> {
        (!self.0.is_empty()).then(|| self.0.iter().copied().map(cpu_of).sum())
    }

    /// Kafka's version, from the name of its program's file.
    pub fn version(&self) -> Option<String> {
        let line = std::fs::read_to_string(format!("/proc/{}/cmdline", self.0.first()?)).ok()?;
        let files = line.split([':', '/', '\0']);
        let mut versions = files.filter_map(|file| file.strip_prefix("kafka_")?.strip_suffix(".jar")?.split_once('-'));
        versions.next().map(|(_, version)| version.to_owned())
    }
}

/// What /proc calls the sockets that listen on these ports.
fn sockets(ports: &[u16]) -> Vec<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter_map(|line| socket(line, ports)).collect()
}

/// Of a line of the table: the second field is the address, the fourth the state, the tenth the inode.
fn socket(line: &str, ports: &[u16]) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let port = u16::from_str_radix(fields.get(1)?.rsplit_once(':')?.1, 16).ok()?;
    let listens = *fields.get(3)? == "0A";
    (listens && ports.contains(&port)).then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
}

/// The processes that hold one of these open, as far as this user may see.
fn owners(sockets: &[String]) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.any(|link| link.to_str().is_some_and(|link| sockets.iter().any(|socket| socket == link)))
    };
    if sockets.is_empty() { Vec::new() } else { processes.filter(holds).collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // A child that another test is just starting holds it too, until it is another program.
        assert!(LocalKafka::listening(&address).0.contains(&std::process::id()));
        assert!(LocalKafka::listening(&format!("192.0.2.1:9092,{address}")).cpu().is_some());
        drop(listener);
        let begun = Instant::now();
        while LocalKafka::listening(&address).cpu().is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody listens any more");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
