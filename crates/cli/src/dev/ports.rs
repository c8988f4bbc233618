//! The ports of a dev cluster. A daemon is started only where its address is free, so that another program at a port
//! is never mistaken for the daemon.

use crate::dev::procs;
use crate::errors::UserError;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use types::codes;

/// The kernel keeps a killed daemon's listening socket until the operations of its ring have ended.
const LINGER_MAX: Duration = Duration::from_secs(3);

/// Waits until nothing listens at the address.
///
/// # Errors
/// BSLT-1005 when another process keeps it.
pub fn free(name: &str, addr: SocketAddr) -> Result<(), UserError> {
    procs::wait_until(LINGER_MAX, || TcpListener::bind(addr).is_ok()).map_err(|()| {
        let what = format!("{addr} is the address of {name}, and another process listens there");
        UserError::new(codes::NO_FREE_PORT, what, format!("ss -ltnp 'sport = :{}'   # shows which", addr.port()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_another_process_holds_is_named_and_a_free_one_passes() {
        let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = holder.local_addr().expect("an address");
        let error = free("osd.1", addr).expect_err("it is held");
        assert!(
            error.code == 1005 && error.what.contains("osd.1") && error.next.contains(&addr.port().to_string()),
            "{error}"
        );
        drop(holder);
        free("osd.1", addr).expect("it is free");
    }
}
