//! A TCP proxy that can be held and cut at chosen moments.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Command that ends a transaction.
const EXEC: &[u8] = b"$4\r\nEXEC\r\n";
const READ_INTERVAL: Duration = Duration::from_millis(5);

/// Moment at which connections are cut, at every nth EXEC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Never,
    /// Everything except the EXEC was forwarded.
    Before(usize),
    /// The EXEC was executed but its answer is dropped.
    After(usize),
}

struct ProxyState {
    to: u16,
    held: AtomicBool,
    over: AtomicBool,
    cut: Mutex<Cut>,
    seen: AtomicUsize,
    cuts: AtomicUsize,
}

pub struct Proxy {
    pub port: u16,
    shared: Arc<ProxyState>,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let (held, over, seen, cuts) = Default::default();
        let shared = Arc::new(ProxyState { to: port, held, over, cut: Mutex::new(Cut::Never), seen, cuts });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.over.load(SeqCst) {
                    return;
                }
                let shared = accepting.clone();
                std::thread::spawn(move || shared.join(client));
            }
        });
        Self { port: own_port, shared }
    }

    /// Stops all traffic without cutting connections.
    pub fn hold(&self, hold: bool) {
        self.shared.held.store(hold, SeqCst);
    }

    pub fn cut(&self, cut: Cut) {
        *self.shared.cut.lock().unwrap() = cut;
    }

    /// Number of connections cut.
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Proxied connection, whose responses may be withheld from the client.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    mute: AtomicBool,
    swallowed: AtomicBool,
}

impl Connection {
    fn end(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl ProxyState {
    fn join(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.to)) else { return };
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(READ_INTERVAL));
        }
        let joined =
            Arc::new(Connection { client, server, mute: AtomicBool::default(), swallowed: AtomicBool::default() });
        let (shared, answering) = (self.clone(), joined.clone());
        std::thread::spawn(move || {
            shared.answers(&answering);
            answering.end();
        });
        self.passes_requests(&joined);
        joined.end();
    }

    /// Reads from a connection; `None` at the end.
    fn read<'a>(&self, mut from: &TcpStream, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        loop {
            if self.over.load(SeqCst) {
                return None;
            }
            if self.held.load(SeqCst) {
                std::thread::sleep(READ_INTERVAL);
                continue;
            }
            match from.read(buffer) {
                Ok(0) => return None,
                Ok(read) => return Some(&buffer[..read]),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(_) => return None,
            }
        }
    }

    fn answers(&self, joined: &Connection) {
        let mut buffer = vec![0; 1 << 16];
        while let Some(bytes) = self.read(&joined.server, &mut buffer) {
            if joined.mute.load(SeqCst) {
                joined.swallowed.store(true, SeqCst);
            } else if (&joined.client).write_all(bytes).is_err() {
                return;
            }
        }
        joined.swallowed.store(true, SeqCst);
    }

    fn passes_requests(&self, joined: &Connection) {
        let (mut buffer, mut tail) = (vec![0; 1 << 16], Vec::new());
        while let Some(bytes) = self.read(&joined.client, &mut buffer) {
            // Possible beginnings of an EXEC wait for their end.
            tail.extend_from_slice(bytes);
            while let Some(at) = tail.windows(EXEC.len()).position(|window| window == EXEC) {
                let rest = tail.split_off(at + EXEC.len());
                let command = std::mem::replace(&mut tail, rest);
                if !self.pass_exec(joined, &command) {
                    return;
                }
            }
            let keep = (1..EXEC.len()).rev().find(|keep| tail.ends_with(&EXEC[..*keep])).unwrap_or(0);
            let rest = tail.split_off(tail.len() - keep);
            if (&joined.server).write_all(&std::mem::replace(&mut tail, rest)).is_err() {
                return;
            }
        }
    }

    /// Forwards an EXEC and returns whether the connection continues.
    fn pass_exec(&self, joined: &Connection, command: &[u8]) -> bool {
        let number = self.seen.fetch_add(1, SeqCst) + 1;
        let cut = *self.cut.lock().unwrap();
        let is_cut = |every: usize| number.is_multiple_of(every);
        match cut {
            Cut::Before(every) if is_cut(every) => {
                let _ = (&joined.server).write_all(&command[..command.len() - EXEC.len()]);
                self.cuts.fetch_add(1, SeqCst);
                false
            }
            Cut::After(every) if is_cut(every) => {
                joined.mute.store(true, SeqCst);
                let _ = (&joined.server).write_all(command);
                while !joined.swallowed.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.cuts.fetch_add(1, SeqCst);
                false
            }
            _ => (&joined.server).write_all(command).is_ok(),
        }
    }
}
