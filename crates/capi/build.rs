//! Options of the linker for `libbasalt.so`: its name for the dynamic linker has the major number of the ABI, and the library is
//! never unloaded, because its threads and its `fork` handler would go on without code.

/// `BASALT_ABI_MAJOR` of the header.
const ABI_MAJOR: u32 = 1;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbasalt.so.{ABI_MAJOR},-z,nodelete");
}
