//! Commands that tests give again and again.

use super::world::World;
use super::*;
use crate::admin::{OsdView, PoolCreate, PoolView};

impl World {
    pub fn pools(&mut self) -> Vec<PoolView> {
        match self.admin(AdminAsk::PoolList) {
            Ok(AdminAnswer::Pools(pools)) => pools,
            other => panic!("{other:?}"),
        }
    }

    pub fn osds(&mut self) -> Vec<OsdView> {
        match self.admin(AdminAsk::OsdList).expect("a list") {
            AdminAnswer::Osds(osds) => osds,
            other => panic!("{other:?}"),
        }
    }

    pub fn make_pool(&mut self, name: &str, replicas: u32, pg_count: u32) {
        let (name, domain) = (name.into(), "host".into());
        let pool = PoolCreate { name, replicas, domain, pg_count, force: true, device_class: None };
        self.admin(AdminAsk::PoolCreate(pool)).expect("a pool");
    }

    pub fn make_volume(&mut self, name: &str, len_bytes: u64) {
        self.make_striped(name, len_bytes, Stripe::NONE);
    }

    pub fn make_striped(&mut self, name: &str, len_bytes: u64, stripe: Stripe) {
        self.admin(AdminAsk::VolumeCreate { name: name.into(), len_bytes, stripe, text: Default::default() })
            .expect("a volume");
    }
}
