//! TCP proxy that can be slow, silent or cut; each client of a broker or a Redis server connects through one.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkState {
    Open,
    /// Adds latency in each direction.
    Slow(Duration),
    /// Connections stay open without any data.
    Silent,
    /// Connections are closed and new ones refused.
    Cut,
}

/// Maximum number of buffered chunks per direction.
const MAX_BUFFERED: usize = 256;

pub struct Proxy {
    pub port: u16,
    link: Arc<watch::Sender<LinkState>>,
}

impl Proxy {
    pub async fn new(port: u16, to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let link = Arc::new(watch::Sender::new(LinkState::Open));
        tokio::spawn(accept(listener, to, link.clone()));
        Self { port, link }
    }

    pub fn set(&self, link: LinkState) {
        self.link.send_replace(link);
    }
}

async fn accept(listener: TcpListener, to: u16, link: Arc<watch::Sender<LinkState>>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if *link.borrow() == LinkState::Cut {
            continue;
        }
        tokio::spawn(connect(client, to, link.subscribe()));
    }
}

/// Forwards a connection until either side closes it or the link is cut.
async fn connect(client: TcpStream, to: u16, mut link: watch::Receiver<LinkState>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (upstream, downstream) = (link.clone(), link.clone());
    tokio::select! {
        () = forward(from_client, to_server, upstream) => {}
        () = forward(from_server, to_client, downstream) => {}
        _ = link.wait_for(|link| *link == LinkState::Cut) => {}
    }
}

/// Forwards one direction.
async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut link: watch::Receiver<LinkState>,
) {
    let (chunks, mut received) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_BUFFERED);
    let state = link.clone();
    let read = async move {
        let mut chunk = vec![0; 65_536];
        while let Ok(size @ 1..) = from.read(&mut chunk).await {
            let latency = if let LinkState::Slow(latency) = *state.borrow() { latency } else { Duration::ZERO };
            if chunks.send((Instant::now() + latency, chunk[..size].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = received.recv().await {
            sleep_until(due).await;
            if link.wait_for(|link| *link != LinkState::Silent).await.is_err() || to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
