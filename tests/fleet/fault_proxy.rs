//! Proxy between a tracker and Kafka and Redis that kills or freezes the tracker at a given step.

use std::io::{Error, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};

use kafleet_testkit::wait::{DEADLINE, eventually_blocking};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Request types of Kafka's protocol (API keys).
pub const PRODUCE: i16 = 0;
pub const METADATA: i16 = 3;
pub const FIND_COORDINATOR: i16 = 10;
pub const INIT_PRODUCER: i16 = 22;
pub const ADD_PARTITIONS: i16 = 24;
pub const END_TXN: i16 = 26;

/// Command that ends a Redis transaction.
const EXEC: &[u8] = b"$4\r\nEXEC\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The n-th request of this type for the producer's transactions.
    Kafka(i16, u32),
    /// The first batch written to the store after a committed transaction of the producer.
    Exec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before the request reaches the server.
    BeforeRequest,
    /// After the server has handled it and before the process has the response.
    BeforeResponse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill,
    /// SIGSTOP; the held request or response is forwarded after SIGCONT.
    Freeze,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakpointState {
    Armed,
    Hit,
    Resumed,
    /// The held data has been forwarded, or its connection has ended.
    Done,
}

/// Breakpoint in the connections of one process.
pub struct Breakpoint {
    /// The `transactional.id` of the producer.
    pub producer: String,
    pub step: Step,
    pub when: When,
    pub fault: Fault,
    pid: AtomicI32,
    seen: AtomicU32,
    committed: AtomicBool,
    state: Mutex<BreakpointState>,
    changed: Condvar,
}

impl Breakpoint {
    pub fn new(producer: String, step: Step, when: When, fault: Fault) -> Arc<Self> {
        let (pid, seen, committed, changed) = Default::default();
        Arc::new(Self {
            producer,
            step,
            when,
            fault,
            pid,
            seen,
            committed,
            state: Mutex::new(BreakpointState::Armed),
            changed,
        })
    }

    /// Sets the process to stop.
    pub fn attach(&self, pid: u32) {
        self.pid.store(pid as i32, SeqCst);
    }

    pub fn wait_until_hit(&self) {
        self.wait_until("the breakpoint is reached", |state| state != BreakpointState::Armed);
    }

    /// Resumes the process and waits until the held data is forwarded.
    pub fn resume(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
        self.set(BreakpointState::Resumed);
        self.wait_until("the held data is forwarded", |state| state == BreakpointState::Done);
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.pid.load(SeqCst))
    }

    fn set(&self, state: BreakpointState) {
        *self.state.lock().unwrap() = state;
        self.changed.notify_all();
    }

    fn wait_until(&self, subject: &str, condition: impl Fn(BreakpointState) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, late) = self.changed.wait_timeout_while(state, DEADLINE, |state| !condition(*state)).unwrap();
        drop(state);
        assert!(!late.timed_out(), "not within {DEADLINE:?}: {subject}");
    }

    /// Stops the process, and returns whether the connection continues.
    fn hit(&self) -> bool {
        // The request may arrive before the test has set the pid; pid 0 would signal the whole group.
        eventually_blocking("the test has set the pid", || self.pid.load(SeqCst) != 0);
        let signal = if self.fault == Fault::Kill { Signal::SIGKILL } else { Signal::SIGSTOP };
        kill(self.pid(), signal).unwrap();
        self.wait_until_stopped();
        self.set(BreakpointState::Hit);
        if self.fault == Fault::Freeze {
            self.wait_until("the process is resumed", |state| state == BreakpointState::Resumed);
        }
        self.fault == Fault::Freeze
    }

    fn wait_until_stopped(&self) {
        let stat = format!("/proc/{}/stat", self.pid());
        eventually_blocking("the process is stopped", || {
            let found = std::fs::read_to_string(&stat).unwrap_or_default();
            let state = found.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            matches!(state, None | Some('T' | 'Z'))
        });
    }

    fn is_step(&self, api: i16, frame: &[u8]) -> bool {
        let Step::Kafka(expected_api, nth) = self.step else { return false };
        api == expected_api && contains(frame, self.producer.as_bytes()) && self.seen.fetch_add(1, SeqCst) + 1 == nth
    }
}

/// Starts a proxy to the server, and returns its port.
pub fn kafka(to: u16, breakpoint: &Arc<Breakpoint>) -> u16 {
    listen(to, breakpoint, |own_port, connection| connection.kafka(own_port))
}

pub fn redis(to: u16, breakpoint: &Arc<Breakpoint>) -> u16 {
    listen(to, breakpoint, |_, connection| connection.redis())
}

fn listen(to: u16, breakpoint: &Arc<Breakpoint>, run: fn(u16, Arc<Connection>)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own_port, breakpoint) = (listener.local_addr().unwrap().port(), breakpoint.clone());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
            let connection = Arc::new(Connection {
                client,
                server,
                to,
                breakpoint: breakpoint.clone(),
                is_hit: AtomicBool::new(false),
            });
            std::thread::spawn(move || run(own_port, connection));
        }
    });
    own_port
}

/// Proxied connection.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    to: u16,
    breakpoint: Arc<Breakpoint>,
    /// The breakpoint was hit on this connection, or is hit with the next response.
    is_hit: AtomicBool,
}

/// Request that awaits its response.
struct PendingRequest {
    api: i16,
    is_step: bool,
    commits: bool,
}

impl Connection {
    fn end(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
        self.finish_if_resumed();
    }

    fn finish_if_resumed(&self) {
        if self.is_hit.load(SeqCst) && *self.breakpoint.state.lock().unwrap() == BreakpointState::Resumed {
            self.breakpoint.set(BreakpointState::Done);
        }
    }

    fn hit(&self) -> Result<(), Error> {
        self.is_hit.store(true, SeqCst);
        if self.breakpoint.hit() { Ok(()) } else { Err(Error::other("the process is killed")) }
    }

    fn kafka(self: Arc<Self>, own_port: u16) {
        let (sender, receiver) = mpsc::channel();
        let backwards = self.clone();
        std::thread::spawn(move || {
            let _ = backwards.forward_kafka_responses(&receiver, own_port);
            backwards.end();
        });
        let _ = self.forward_kafka_requests(&sender);
        self.end();
    }

    fn forward_kafka_requests(&self, sender: &mpsc::Sender<PendingRequest>) -> Result<(), Error> {
        loop {
            let frame = read_frame(&self.client)?;
            let api = i16::from_be_bytes([frame[4], frame[5]]);
            let is_step = self.breakpoint.is_step(api, &frame);
            if is_step && self.breakpoint.when == When::BeforeRequest {
                self.hit()?;
            }
            let commits = api == END_TXN && contains(&frame, self.breakpoint.producer.as_bytes());
            sender.send(PendingRequest { api, is_step, commits }).map_err(Error::other)?;
            (&self.server).write_all(&frame)?;
        }
    }

    fn forward_kafka_responses(&self, receiver: &mpsc::Receiver<PendingRequest>, own_port: u16) -> Result<(), Error> {
        loop {
            let mut frame = read_frame(&self.server)?;
            let request = receiver.recv().map_err(Error::other)?;
            self.breakpoint.committed.fetch_or(request.commits, SeqCst);
            if request.is_step && self.breakpoint.when == When::BeforeResponse {
                self.hit()?;
            }
            if matches!(request.api, METADATA | FIND_COORDINATOR) {
                rewrite_ports(&mut frame, self.to, own_port);
            }
            (&self.client).write_all(&frame)?;
            if request.is_step {
                self.finish_if_resumed();
            }
        }
    }

    fn redis(self: Arc<Self>) {
        let backwards = self.clone();
        std::thread::spawn(move || {
            let _ = backwards.forward_redis_responses();
            backwards.end();
        });
        let _ = self.forward_redis_requests();
        self.end();
    }

    fn forward_redis_requests(&self) -> Result<(), Error> {
        let (mut buffer, mut tail) = (vec![0; 1 << 16], Vec::new());
        loop {
            let bytes = read_some(&self.client, &mut buffer)?;
            tail.extend_from_slice(bytes);
            let commits =
                contains(&tail, EXEC) && self.breakpoint.step == Step::Exec && self.breakpoint.committed.load(SeqCst);
            if commits && self.breakpoint.seen.fetch_add(1, SeqCst) == 0 {
                match self.breakpoint.when {
                    When::BeforeRequest => self.hit()?,
                    When::BeforeResponse => self.is_hit.store(true, SeqCst),
                }
            }
            // The command may arrive in two reads.
            tail.drain(..tail.len().saturating_sub(EXEC.len() - 1));
            (&self.server).write_all(bytes)?;
        }
    }

    fn forward_redis_responses(&self) -> Result<(), Error> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let bytes = read_some(&self.server, &mut buffer)?;
            let is_response = self.breakpoint.when == When::BeforeResponse && self.is_hit.load(SeqCst);
            if is_response && *self.breakpoint.state.lock().unwrap() == BreakpointState::Armed {
                self.hit()?;
            }
            (&self.client).write_all(bytes)?;
            self.finish_if_resumed();
        }
    }
}

fn read_some<'a>(mut from: &TcpStream, buffer: &'a mut [u8]) -> Result<&'a [u8], Error> {
    match from.read(buffer)? {
        0 => Err(Error::other("connection closed")),
        read => Ok(&buffer[..read]),
    }
}

/// Frame including its length prefix.
fn read_frame(mut from: &TcpStream) -> Result<Vec<u8>, Error> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut frame = vec![0; 4 + u32::from_be_bytes(length) as usize];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// Replaces the broker's port by the proxy's in every host and port of the frame.
fn rewrite_ports(frame: &mut [u8], port: u16, own_port: u16) {
    let (old, new) = (u32::from(port).to_be_bytes(), u32::from(own_port).to_be_bytes());
    for at in 1..frame.len().saturating_sub(3) {
        if frame[at - 1].is_ascii_alphanumeric() && frame[at..at + 4] == old {
            frame[at..at + 4].copy_from_slice(&new);
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
