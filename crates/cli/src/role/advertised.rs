//! The address that an OSD advertises.
//!
//! The cluster's address map holds numbers, so that the data plane resolves nothing. A name is resolved here, at the edge,
//! again and again. When its address changes, the OSD registers the new one (ADR 0013).

use crate::address::Address;
use crate::errors::UserError;
use crate::role::Stop;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use types::codes;

/// Interval at which a name is resolved.
const AGAIN: Duration = Duration::from_secs(10);
/// Pause after the first failure at the start; doubled until it is [`AGAIN`].
const RETRY_FIRST: Duration = Duration::from_millis(250);
const LOOK: Duration = Duration::from_millis(100);

/// Refuses an address that other hosts would take for their own.
///
/// # Errors
/// BSLT-1013.
pub fn check(listen: &Address, advertise: Option<&Address>) -> Result<(), UserError> {
    let told = advertise.unwrap_or(listen);
    if !told.is_unspecified() {
        return Ok(());
    }
    let flag = if advertise.is_some() { "--advertise" } else { "--listen" };
    let what = format!("{flag} {told} stands for every interface of this host: other hosts cannot connect to it");
    let port = listen.to_string().rsplit_once(':').map_or_else(String::new, |(_, port)| port.to_owned());
    Err(UserError::new(
        codes::BAD_ADVERTISED_ADDRESS,
        what,
        format!("add --advertise HOST:{port} with a name or an address of this host"),
    ))
}

/// The present address of a name.
pub struct Advertised(watch::Receiver<Option<SocketAddr>>);

impl Advertised {
    /// Resolves `address` on `runtime` from now on; `wake` is called when its address changes.
    pub fn follow(
        runtime: &Runtime,
        address: Address,
        like: SocketAddr,
        wake: impl Fn() + Send + 'static,
    ) -> Advertised {
        let (found, shown) = watch::channel(None);
        runtime.spawn(follow(address, like, found, wake));
        Advertised(shown)
    }

    /// Waits for the first address; `None` when the process is asked to end first.
    pub fn first(&self, runtime: &Runtime, stop: &Stop) -> Option<SocketAddr> {
        let mut shown = self.0.clone();
        while !stop.is_set() {
            let found = async {
                tokio::time::timeout(LOOK, shown.wait_for(Option::is_some)).await.map(|addr| addr.map(|a| *a))
            };
            if let Ok(Ok(addr)) = runtime.block_on(found) {
                return addr;
            }
        }
        None
    }

    /// Returns the address when it has changed since the last call.
    pub fn changed(&mut self) -> Option<SocketAddr> {
        if !self.0.has_changed().unwrap_or(false) {
            return None;
        }
        *self.0.borrow_and_update()
    }
}

async fn follow(
    address: Address,
    like: SocketAddr,
    found: watch::Sender<Option<SocketAddr>>,
    wake: impl Fn() + Send + 'static,
) {
    let (mut retry, mut failing) = (RETRY_FIRST, false);
    loop {
        let before = *found.borrow();
        match address.lookup(Some(like), before).await {
            Ok(addr) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(name = %address, %addr, "the advertised name is resolved again");
                }
                if before != Some(addr) {
                    if let Some(before) = before {
                        tracing::info!(name = %address, %before, now = %addr, "the advertised name has another address");
                    }
                    // The receiver lives as long as the process.
                    let _ = found.send(Some(addr));
                    wake();
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    let code = codes::label(codes::HOST_NAME_UNRESOLVED);
                    tracing::warn!(name = %address, code, %error, "the advertised name cannot be resolved; retrying");
                }
            }
        }
        let known = found.borrow().is_some();
        let pause = if known { AGAIN } else { retry };
        retry = (retry * 2).min(AGAIN);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn an_address_of_all_interfaces_is_not_advertised() {
        let check = |listen: &str, advertise: Option<&str>| {
            let parse = |text: &str| text.parse().expect("an address");
            check(&parse(listen), advertise.map(parse).as_ref())
        };
        assert!(check("10.0.0.1:7410", None).is_ok() && check("node1:7410", None).is_ok());
        assert!(check("0.0.0.0:7410", Some("node1:7410")).is_ok());
        for (listen, advertise) in [("0.0.0.0:7410", None), ("[::]:7410", None), ("10.0.0.1:7410", Some("[::]:7410"))] {
            let error = check(listen, advertise).expect_err(listen);
            assert!(error.code == 1013 && error.next.contains("--advertise HOST:7410"), "{error}");
        }
    }
}
