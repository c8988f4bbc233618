//! Connections to meta on which bytes vanish: a real peer accepts all bytes, passes none on, and reports no
//! error.

use crate::fake::eventually;
use crate::{Client, LOCAL, refusal, run, started};
use api::osd_link;
use meta::StoreConfig;
use metastore::MemStore;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use types::control::OsdDown;

/// A relay in front of a meta. Its first `swallowed` connections drop the bytes that they receive.
struct Relay {
    addr: SocketAddr,
    swallowed: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl Relay {
    async fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind(LOCAL).await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let relay = Relay { addr, swallowed: Arc::default(), accepted: Arc::default() };
        let (swallowed, accepted) = (Arc::clone(&relay.swallowed), Arc::clone(&relay.accepted));
        tokio::spawn(async move {
            while let Ok((dialled, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(served) = TcpStream::connect(target).await else { continue };
                let ((from, back), (answers, to)) = (dialled.into_split(), served.into_split());
                tokio::spawn(carry(from, to, number, Arc::clone(&swallowed)));
                tokio::spawn(carry(answers, back, number, Arc::clone(&swallowed)));
            }
        });
        relay
    }

    /// Makes every existing connection drop its bytes from now on; new ones pass everything.
    fn swallow(&self) {
        self.swallowed.store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: usize, swallowed: Arc<AtomicUsize>) {
    let mut piece = [0u8; 4096];
    while let Ok(len @ 1..) = from.read(&mut piece).await {
        if number >= swallowed.load(Ordering::SeqCst) && to.write_all(&piece[..len]).await.is_err() {
            return;
        }
    }
}

#[test]
fn osd_and_client_reconnect_when_a_meta_connection_drops_all_bytes() {
    run(async {
        let meta = started(LOCAL, StoreConfig::Memory(MemStore::new())).await;
        let relay = Relay::start(meta.addr).await;
        let metas = [relay.addr];
        let handle = tokio::runtime::Handle::current();
        let mut osd = osd_link::start(&handle, vec![relay.addr.to_string()], Box::new(|| {}));
        let mut client = Client::new(&metas, 1);
        eventually("an OSD's stream", || matches!(osd.try_recv(), Some(OsdDown::Connected))).await;
        refusal(client.open("none/such", false).await);
        relay.swallow();
        let since = Instant::now();
        let ask = types::control::ClientAsk::Open {
            name: "none/such".into(),
            write: true,
            steal: false,
            holder: "test".into(),
        };
        let asked = client.ask_only(ask);
        eventually("the OSD's next stream", || matches!(osd.try_recv(), Some(OsdDown::Connected))).await;
        refusal(client.answer(asked).await);
        assert!(since.elapsed() < Duration::from_secs(10), "it took {:?}", since.elapsed());
        assert!(relay.accepted.load(Ordering::SeqCst) >= 4, "both dialled again");
        meta.stop().await.expect("it stops");
    });
}
