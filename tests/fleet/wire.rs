//! The connections of a process to Kafka and Redis: where a step that is named comes through, it is killed or frozen.

use std::io::{Error, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Requests of Kafka's protocol, by their number.
pub const PRODUCE: i16 = 0;
pub const METADATA: i16 = 3;
pub const FIND_COORDINATOR: i16 = 10;
pub const INIT_PRODUCER: i16 = 22;
pub const ADD_PARTITIONS: i16 = 24;
pub const END_TXN: i16 = 26;

/// What ends a transaction of Redis.
const EXEC: &[u8] = b"$4\r\nEXEC\r\n";
const DEADLINE: Duration = Duration::from_secs(360);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The so manieth request of this kind for the transactions of the producer.
    Kafka(i16, u32),
    /// The first batch that is written to the store once a transaction of the producer is committed.
    Exec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It does not come there.
    Asked,
    /// It is done, and the process is not told.
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Kill,
    /// SIGSTOP; what was held goes on when it is thawed.
    Freeze,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Armed,
    Sprung,
    Thawed,
    /// What was held has come through, or nothing ever will.
    Over,
}

/// Waits for a step of one process.
pub struct Trap {
    /// The `transactional.id` of the producer.
    pub producer: String,
    pub step: Step,
    pub when: When,
    pub deed: Deed,
    pid: AtomicI32,
    seen: AtomicU32,
    committed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Trap {
    pub fn new(producer: String, step: Step, when: When, deed: Deed) -> Arc<Self> {
        let (pid, seen, committed, changed) = Default::default();
        Arc::new(Self { producer, step, when, deed, pid, seen, committed, state: Mutex::new(State::Armed), changed })
    }

    /// Whom it is for.
    pub fn set_for(&self, pid: u32) {
        self.pid.store(pid as i32, SeqCst);
    }

    pub fn until_sprung(&self) {
        self.until("the step is reached", |state| state != State::Armed);
    }

    /// It goes on, and what was held comes through.
    pub fn thaw(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
        self.set(State::Thawed);
        self.until("what was held has come through", |state| state == State::Over);
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.pid.load(SeqCst))
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap() = state;
        self.changed.notify_all();
    }

    fn until(&self, what: &str, holds: impl Fn(State) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, late) = self.changed.wait_timeout_while(state, DEADLINE, |state| !holds(*state)).unwrap();
        drop(state);
        assert!(!late.timed_out(), "not within {DEADLINE:?}: {what}");
    }

    /// Stops the process here, once, and says whether the connection goes on.
    fn spring(&self) -> bool {
        // It may be here before its parent has told who it is; 0 would be everybody.
        while self.pid.load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let signal = if self.deed == Deed::Kill { Signal::SIGKILL } else { Signal::SIGSTOP };
        kill(self.pid(), signal).unwrap();
        self.until_stopped();
        self.set(State::Sprung);
        if self.deed == Deed::Freeze {
            self.until("it is thawed", |state| state == State::Thawed);
        }
        self.deed == Deed::Freeze
    }

    fn until_stopped(&self) {
        let end = Instant::now() + DEADLINE;
        let stat = format!("/proc/{}/stat", self.pid());
        loop {
            let found = std::fs::read_to_string(&stat).unwrap_or_default();
            let state = found.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if matches!(state, None | Some('T' | 'Z')) {
                return;
            }
            assert!(Instant::now() < end, "stopped within {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_step(&self, api: i16, frame: &[u8]) -> bool {
        let Step::Kafka(wanted, nth) = self.step else { return false };
        api == wanted && contains(frame, self.producer.as_bytes()) && self.seen.fetch_add(1, SeqCst) + 1 == nth
    }
}

/// A way to the server; the port to connect to.
pub fn kafka(to: u16, trap: &Arc<Trap>) -> u16 {
    listen(to, trap, |own, wire| wire.kafka(own))
}

pub fn redis(to: u16, trap: &Arc<Trap>) -> u16 {
    listen(to, trap, |_, wire| wire.redis())
}

fn listen(to: u16, trap: &Arc<Trap>, run: fn(u16, Arc<Wire>)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, trap) = (listener.local_addr().unwrap().port(), trap.clone());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
            let wire = Arc::new(Wire { client, server, to, trap: trap.clone(), holds: AtomicBool::new(false) });
            std::thread::spawn(move || run(own, wire));
        }
    });
    own
}

/// One connection.
struct Wire {
    client: TcpStream,
    server: TcpStream,
    to: u16,
    trap: Arc<Trap>,
    /// The trap has sprung, or springs with the next answer, on this one.
    holds: AtomicBool,
}

/// What an answer is to.
struct Asked {
    api: i16,
    is_step: bool,
    commits: bool,
}

impl Wire {
    fn end(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
        self.came_through();
    }

    fn came_through(&self) {
        if self.holds.load(SeqCst) && *self.trap.state.lock().unwrap() == State::Thawed {
            self.trap.set(State::Over);
        }
    }

    fn spring(&self) -> Result<(), Error> {
        self.holds.store(true, SeqCst);
        if self.trap.spring() { Ok(()) } else { Err(Error::other("the process is killed")) }
    }

    fn kafka(self: Arc<Self>, own: u16) {
        let (asking, asked) = mpsc::channel();
        let answering = self.clone();
        std::thread::spawn(move || {
            let _ = answering.kafka_answers(&asked, own);
            answering.end();
        });
        let _ = self.kafka_asks(&asking);
        self.end();
    }

    fn kafka_asks(&self, asking: &mpsc::Sender<Asked>) -> Result<(), Error> {
        loop {
            let frame = read_frame(&self.client)?;
            let api = i16::from_be_bytes([frame[4], frame[5]]);
            let is_step = self.trap.is_step(api, &frame);
            if is_step && self.trap.when == When::Asked {
                self.spring()?;
            }
            let commits = api == END_TXN && contains(&frame, self.trap.producer.as_bytes());
            asking.send(Asked { api, is_step, commits }).map_err(Error::other)?;
            (&self.server).write_all(&frame)?;
        }
    }

    fn kafka_answers(&self, asked: &mpsc::Receiver<Asked>, own: u16) -> Result<(), Error> {
        loop {
            let mut frame = read_frame(&self.server)?;
            let asked = asked.recv().map_err(Error::other)?;
            self.trap.committed.fetch_or(asked.commits, SeqCst);
            if asked.is_step && self.trap.when == When::Answered {
                self.spring()?;
            }
            if matches!(asked.api, METADATA | FIND_COORDINATOR) {
                readdress(&mut frame, self.to, own);
            }
            (&self.client).write_all(&frame)?;
            if asked.is_step {
                self.came_through();
            }
        }
    }

    fn redis(self: Arc<Self>) {
        let answering = self.clone();
        std::thread::spawn(move || {
            let _ = answering.redis_answers();
            answering.end();
        });
        let _ = self.redis_asks();
        self.end();
    }

    fn redis_asks(&self) -> Result<(), Error> {
        let (mut buffer, mut tail) = (vec![0; 1 << 16], Vec::new());
        loop {
            let bytes = read_some(&self.client, &mut buffer)?;
            tail.extend_from_slice(bytes);
            let commits = contains(&tail, EXEC) && self.trap.step == Step::Exec && self.trap.committed.load(SeqCst);
            if commits && self.trap.seen.fetch_add(1, SeqCst) == 0 {
                match self.trap.when {
                    When::Asked => self.spring()?,
                    When::Answered => self.holds.store(true, SeqCst),
                }
            }
            // The word may come in two pieces.
            tail.drain(..tail.len().saturating_sub(EXEC.len() - 1));
            (&self.server).write_all(bytes)?;
        }
    }

    fn redis_answers(&self) -> Result<(), Error> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let bytes = read_some(&self.server, &mut buffer)?;
            let answers = self.trap.when == When::Answered && self.holds.load(SeqCst);
            if answers && *self.trap.state.lock().unwrap() == State::Armed {
                self.spring()?;
            }
            (&self.client).write_all(bytes)?;
            self.came_through();
        }
    }
}

fn read_some<'a>(mut from: &TcpStream, buffer: &'a mut [u8]) -> Result<&'a [u8], Error> {
    match from.read(buffer)? {
        0 => Err(Error::other("the end")),
        read => Ok(&buffer[..read]),
    }
}

/// With its length in front.
fn read_frame(mut from: &TcpStream) -> Result<Vec<u8>, Error> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut frame = vec![0; 4 + u32::from_be_bytes(length) as usize];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// Wherever a broker's address stands, a host and then its port, the port becomes another one.
fn readdress(frame: &mut [u8], port: u16, own: u16) {
    let (old, new) = (u32::from(port).to_be_bytes(), u32::from(own).to_be_bytes());
    for at in 1..frame.len().saturating_sub(3) {
        if frame[at - 1].is_ascii_alphanumeric() && frame[at..at + 4] == old {
            frame[at..at + 4].copy_from_slice(&new);
        }
    }
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}
