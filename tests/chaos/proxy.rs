//! A link that can be slow, silent or cut: every client of a broker or of a Redis server goes through one.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    Open,
    /// Everything takes so much longer, each way.
    Slow(Duration),
    /// Connections stand, and nothing comes through.
    Silent,
    /// Connections end, and no new one stands.
    Cut,
}

/// Pieces on their way in one direction.
const ON_THE_WAY: usize = 256;

pub struct Proxy {
    pub port: u16,
    link: Arc<watch::Sender<Link>>,
}

impl Proxy {
    pub async fn new(port: u16, to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let link = Arc::new(watch::Sender::new(Link::Open));
        tokio::spawn(accept(listener, to, link.clone()));
        Self { port, link }
    }

    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn accept(listener: TcpListener, to: u16, link: Arc<watch::Sender<Link>>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if *link.borrow() == Link::Cut {
            continue;
        }
        tokio::spawn(connect(client, to, link.subscribe()));
    }
}

/// One connection, until either side or the link ends it.
async fn connect(client: TcpStream, to: u16, mut link: watch::Receiver<Link>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (there, back) = (link.clone(), link.clone());
    tokio::select! {
        () = carry(from_client, to_server, there) => {}
        () = carry(from_server, to_client, back) => {}
        _ = link.wait_for(|link| *link == Link::Cut) => {}
    }
}

/// One direction.
async fn carry(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, mut link: watch::Receiver<Link>) {
    let (pieces, mut coming) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let told = link.clone();
    let take = async move {
        let mut piece = vec![0; 65_536];
        while let Ok(size @ 1..) = from.read(&mut piece).await {
            let late = if let Link::Slow(late) = *told.borrow() { late } else { Duration::ZERO };
            if pieces.send((Instant::now() + late, piece[..size].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let give = async move {
        while let Some((due, piece)) = coming.recv().await {
            sleep_until(due).await;
            if link.wait_for(|link| *link != Link::Silent).await.is_err() || to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(take, give);
}
