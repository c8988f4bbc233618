//! Generates the messages and services from `proto/control.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tonic_prost_build::configure().compile_protos(&["proto/control.proto"], &["proto"])?;
    Ok(())
}
