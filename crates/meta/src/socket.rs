//! A TCP connection whose end is reported to the owner.
//!
//! The kernel closes the connections of a killed process at once, and the peer learns of it. So the lease of a volume
//! that the process held need not run for its whole length.

use crate::owner::Input;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::transport::server::{Connected, TcpConnectInfo};

pub(crate) struct Socket {
    stream: TcpStream,
    /// The address of the peer, as [`Input::Client`] names it.
    address: Option<String>,
    inbox: mpsc::Sender<Input>,
}

impl Socket {
    pub fn new(stream: TcpStream, inbox: mpsc::Sender<Input>) -> Socket {
        let address = stream.peer_addr().ok().map(|address| address.to_string());
        Socket { stream, address, inbox }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.get_mut().stream)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(address) = self.address.take() {
            // With a full inbox the lease ends by itself.
            let _ = self.inbox.try_send(Input::ClientGone { address });
        }
    }
}

impl Connected for Socket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
