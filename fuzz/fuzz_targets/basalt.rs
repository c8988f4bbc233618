//! One harness for all targets: `BASALT_FUZZ_TARGET` names the one of this run.
//!
//! libFuzzer comes in with bytes that its coverage likes; they are mended as the stable driver mends its own,
//! so that coverage reaches behind the checksums.
#![no_main]

use fuzzing::Target;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::OnceLock;

fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("BASALT_FUZZ_TARGET").expect("BASALT_FUZZ_TARGET names a target");
        fuzzing::find(&name).unwrap_or_else(|| panic!("no target is called {name}"))
    })
}

fuzz_target!(|data: &[u8]| {
    (target().run)(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let size = fuzzer_mutate(data, size, max_size);
    if seed % 16 == 0 {
        return size;
    }
    let mut mended = data[..size].to_vec();
    (target().fix)(&mut mended);
    mended.truncate(max_size.min(data.len()));
    data[..mended.len()].copy_from_slice(&mended);
    mended.len()
});
