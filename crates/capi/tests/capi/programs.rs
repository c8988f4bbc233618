//! C programs of the tests: where their sources and the library are, and how they are compiled and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of these tests.
pub fn folder() -> PathBuf {
    package().join("tests/capi")
}

pub fn include() -> PathBuf {
    package().join("include")
}

/// A folder for files of the tests, on a disk: devices are opened O_DIRECT.
pub fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The shared library, which cargo builds with this test.
pub fn library() -> PathBuf {
    let here = std::env::current_exe().expect("a path");
    let path = here.parent().expect("a folder").join("libbasalt.so");
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// Compiles one C file, strictly, and returns the program.
pub fn compile(name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let program = scratch().join(format!("capi-{name}-{}", std::process::id()));
    let strict = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let mut cc = Command::new("cc");
    cc.args(strict).arg("-I").arg(include()).arg(source).arg("-o").arg(&program).args(options);
    let out = cc.output().expect("Debian's package build-essential");
    assert!(out.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&out.stderr));
    program
}

/// Compiles one C file against the library, and runs it with these arguments.
pub fn run_linked(name: &str, source: &Path, args: &[&str]) -> Output {
    // The program asks for the name that the library has for the dynamic linker.
    let links = scratch().join(format!("capi-lib-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&links);
    std::fs::create_dir_all(&links).expect("a folder");
    for link in ["libbasalt.so", "libbasalt.so.1"] {
        std::os::unix::fs::symlink(library(), links.join(link)).expect("a link");
    }
    let program = compile(name, source, &["-L", &links.display().to_string(), "-lbasalt"]);
    let out = Command::new("timeout").arg("60").arg(&program).args(args).env("LD_LIBRARY_PATH", &links).output();
    let _ = std::fs::remove_dir_all(&links);
    let _ = std::fs::remove_file(program);
    out.expect("it runs")
}
