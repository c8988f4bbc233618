//! The header and the library: the same functions, numbers and layouts.

use crate::programs::{self, include, library};
use basalt::abi::{self, Event, Options, VolumeInfo};
use basalt::calls::cluster::basalt_abi_version;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::process::Command;

/// Functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(include().join("basalt.h")).expect("the header");
    let code = header.split("extern \"C\" {").nth(1).expect("declarations");
    // A comment names functions, too: `basalt_open()`.
    let without_comments: String =
        code.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, after)| after)).collect();
    let before = without_comments.split('(');
    let last_word =
        |text: &str| text.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().map(str::to_owned);
    before.filter_map(last_word).filter(|word| word.starts_with("basalt_")).collect()
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_nothing_else() {
    let out = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().expect("nm of binutils");
    let text = String::from_utf8(out.stdout).expect("text");
    let exported: BTreeSet<String> =
        text.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect();
    let declared = declared();
    assert!(declared.len() >= 19, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn the_file_name_for_the_linker_has_the_major_version() {
    let out = Command::new("readelf").args(["-d"]).arg(library()).output().expect("readelf of binutils");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains(&format!("[libbasalt.so.{}]", abi::ABI_MAJOR)) && text.contains("NODELETE"), "{text}");
}

#[test]
fn numbers_and_layouts_are_those_of_the_header() {
    let program = programs::compile("abi", &programs::folder().join("abi.c"), &[]);
    let out = Command::new(&program).output().expect("it runs");
    let _ = std::fs::remove_file(program);
    let text = String::from_utf8(out.stdout).expect("text");
    let pair =
        |line: &str| line.rsplit_once(' ').map(|(name, number)| (name.to_owned(), number.parse().expect("a number")));
    let header: BTreeMap<String, u64> = text.lines().filter_map(pair).collect();
    macro_rules! fields {
        ($type:ty, $name:literal: $($field:ident)+) => {
            [($name.to_owned(), size_of::<$type>() as u64)].into_iter()
                .chain([$((concat!($name, ".", stringify!($field)).to_owned(), offset_of!($type, $field) as u64)),+])
        };
    }
    let numbers = [
        ("BASALT_ABI_VERSION", u64::from(basalt_abi_version())),
        ("BASALT_OPEN_RDONLY", u64::from(abi::OPEN_RDONLY)),
        ("BASALT_OPEN_STEAL", u64::from(abi::OPEN_STEAL)),
        ("BASALT_UNAVAILABLE_FREEZE", u64::from(abi::UNAVAILABLE_FREEZE)),
        ("BASALT_UNAVAILABLE_WAIT", u64::from(abi::UNAVAILABLE_WAIT)),
        ("BASALT_UNAVAILABLE_ERROR", u64::from(abi::UNAVAILABLE_ERROR)),
        ("BASALT_WRITE_ZEROES_ALLOCATE", u64::from(abi::WRITE_ZEROES_ALLOCATE)),
        ("BASALT_QUEUE_DEPTH_MAX", u64::from(abi::QUEUE_DEPTH_MAX)),
        ("BASALT_QUEUE_BYTES_MAX", abi::QUEUE_BYTES_MAX),
        ("BASALT_IOV_MAX", abi::IOV_MAX as u64),
    ];
    let library: BTreeMap<String, u64> = numbers
        .into_iter()
        .map(|(name, number)| (name.to_owned(), number))
        .chain(fields!(Options, "options": size meta connect_timeout_ms io_timeout_ms full_wait_ms reserved
            on_unavailable unavailable_wait_ms))
        .chain(fields!(VolumeInfo, "volume_info": size length_bytes block_bytes block_preferred_bytes
            request_preferred_bytes request_bytes_max requests_served read_only))
        .chain(fields!(Event, "event": user_data result reserved))
        .collect();
    assert_eq!(header, library);
}

#[test]
fn the_header_is_good_in_cpp_and_in_strict_c() {
    let header = include().join("basalt.h");
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language];
        let status =
            Command::new(compiler).args(strict).arg(&header).status().expect("Debian's package build-essential");
        assert!(status.success(), "{compiler}");
    }
}
