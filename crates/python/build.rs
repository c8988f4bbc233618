//! Options of the linker for the extension module: it is never unloaded, because its threads and its `fork` handler would go on
//! without code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
