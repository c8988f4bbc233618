//! `docs/formats.md` as tests read it: blocks of constants, and the byte maps of structs.
//!
//! A test of a crate gives its constants and its source files. The page holds the constants between
//! `<!-- constants: CRATE -->` and the end of a fenced block, and a byte map behind each `<!-- struct: CRATE::FILE::NAME -->`.
//! `wire` includes this file by its path, so that both crates are held to the page in the same way.
//!
//! Invariant: a constant or a struct of these files that the page lacks, or that has another value there, fails the test.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// One source file: its module, its text, and the constants in it with their values as the page shows them.
pub struct File {
    pub module: &'static str,
    pub text: &'static str,
    pub constants: Vec<(&'static str, String)>,
}

/// Compares the page with the code of `krate`; `UPDATE_GOLDEN=1` rewrites what differs. `others`: values of other crates.
/// `lens`: names that stand for lengths of arrays.
pub fn check(krate: &str, files: &[File], others: &[(&str, String)], lens: &[(&str, usize)]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md");
    let page = std::fs::read_to_string(&path).expect("the page can be read");
    let wanted = with_tables(&with_constants(&page, krate, files, others), krate, files, lens);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &wanted).expect("the page can be written");
    }
    assert!(!wanted.contains("| TODO |"), "a field of a struct has no meaning in docs/formats.md yet");
    let differs = page.lines().zip(wanted.lines()).find(|(old, new)| old != new);
    let same = page == wanted || std::env::var_os("UPDATE_GOLDEN").is_some();
    assert!(same, "docs/formats.md and {krate} differ, first in {differs:?}; UPDATE_GOLDEN=1 rewrites the page");
}

/// The part of a file that is no test.
fn product(file: &File) -> &'static str {
    file.text.split("#[cfg(test)]\nmod tests").next().unwrap_or(file.text)
}

/// Names of the constants of a file; those of a module inside it with its name before them.
fn declared(text: &str) -> Vec<String> {
    let mut module = String::new();
    let mut names = Vec::new();
    for line in text.lines() {
        let code = line.trim_start();
        let code = code.strip_prefix("pub(crate) ").or_else(|| code.strip_prefix("pub ")).unwrap_or(code);
        if let Some(name) = code.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            module = format!("{name}::");
        } else if line == "}" {
            module.clear();
        } else if let Some((name, _)) = code.strip_prefix("const ").and_then(|rest| rest.split_once(':')) {
            names.extend((name != "_").then(|| format!("{module}{name}")));
        }
    }
    names
}

fn with_constants(page: &str, krate: &str, files: &[File], others: &[(&str, String)]) -> String {
    let mut rows = String::new();
    for file in files {
        for name in declared(product(file)) {
            let listed = file.constants.iter().any(|(listed, _)| *listed == name);
            assert!(listed, "{krate}::{} has a constant {name} without a row", file.module);
        }
        for (name, value) in &file.constants {
            writeln!(rows, "{}::{name} = {value}", file.module).expect("a string takes it");
        }
    }
    for (name, value) in others {
        writeln!(rows, "{name} = {value}").expect("a string takes it");
    }
    let mark = format!("<!-- constants: {krate} -->\n```text\n");
    let (before, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("the page has no {mark:?}"));
    let (_, after) = rest.split_once("```").expect("a fenced block ends");
    format!("{before}{mark}{rows}```{after}")
}

/// Name and type of each field, by struct.
type Structs = BTreeMap<String, Vec<(String, String)>>;

fn structs(file: &File) -> Structs {
    let mut found = Structs::new();
    let mut open: Option<String> = None;
    for line in product(file).lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.starts_with('#')) {
        if open.is_none()
            && let Some((head, rest)) = line.split_once('{')
            && let Some(name) = struct_name(head)
        {
            let fields = found.entry(name.to_owned()).or_default();
            let (body, ends) = rest.split_once('}').map_or((rest, false), |(body, _)| (body, true));
            fields.extend(body.split(',').filter_map(field));
            open = (!ends).then(|| name.to_owned());
        } else if let Some(name) = &open {
            let (body, ends) = line.split_once('}').map_or((line, false), |(body, _)| (body, true));
            found.entry(name.clone()).or_default().extend(body.split(',').filter_map(field));
            open = if ends { None } else { open };
        }
    }
    let on_disk = |fields: &Vec<(String, String)>| !fields.is_empty() && fields.iter().all(|(_, ty)| is_raw(ty));
    found.retain(|_, fields| on_disk(fields));
    found
}

/// `struct Disk`, or `RequestRecord 72` as the macro of `wire` has it.
fn struct_name(head: &str) -> Option<&str> {
    let words: Vec<&str> = head.split_whitespace().collect();
    match words[..] {
        [.., "struct", name] => Some(name),
        [name, len] if len.parse::<usize>().is_ok() => Some(name),
        _ => None,
    }
}

fn field(text: &str) -> Option<(String, String)> {
    let (name, ty) = text.trim().split_once(':')?;
    let name = name.trim().trim_start_matches("pub ").to_owned();
    (!name.is_empty()).then(|| (name, ty.trim().to_owned()))
}

/// Whether a field of this type lies on a disk or a wire as it is.
fn is_raw(ty: &str) -> bool {
    let inner = ty.strip_prefix('[').map_or(ty, |array| array.split(';').next().unwrap_or(array));
    ["u8", "U16", "U32", "U64"].contains(&inner) || inner.starts_with("Raw") || inner.ends_with("Record")
}

/// Such types have no padding (`IntoBytes`), so a length is a sum.
fn len_of(ty: &str, all: &Structs, lens: &[(&str, usize)]) -> usize {
    if let Some((inner, count)) = ty.trim_matches(['[', ']']).split_once("; ") {
        let named = || lens.iter().find(|(name, _)| *name == count).map(|(_, len)| *len);
        let count = count.parse().ok().or_else(named).unwrap_or_else(|| panic!("the length {count} of an array"));
        return len_of(inner, all, lens) * count;
    }
    match ty {
        "u8" => 1,
        "U16" => 2,
        "U32" => 4,
        "U64" => 8,
        name => {
            let fields = all.get(name).unwrap_or_else(|| panic!("a field of type {name}"));
            fields.iter().map(|(_, ty)| len_of(ty, all, lens)).sum()
        }
    }
}

fn with_tables(page: &str, krate: &str, files: &[File], lens: &[(&str, usize)]) -> String {
    let mut page = page.to_owned();
    let mut count = 0;
    let all: Structs = files.iter().flat_map(structs).collect();
    for file in files {
        for (name, fields) in structs(file) {
            let mark = format!("<!-- struct: {krate}::{}::{name} -->\n", file.module);
            let (before, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("the page has no {mark:?}"));
            let end = rest.split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
            let (old, after) = rest.split_at(end);
            let table = byte_map(old, &fields, |ty| len_of(ty, &all, lens));
            page = format!("{before}{mark}{table}{after}");
            count += 1;
        }
    }
    let marks = page.matches(&format!("<!-- struct: {krate}::")).count();
    assert_eq!(marks, count, "the page has the byte map of a struct that {krate} does not have");
    page
}

/// The rows of a struct; what the page says of a field stays with its offset.
fn byte_map(old: &str, fields: &[(String, String)], len_of: impl Fn(&str) -> usize) -> String {
    let meanings: BTreeMap<&str, &str> = old
        .lines()
        .filter_map(|row| match row.trim_matches('|').splitn(4, '|').map(str::trim).collect::<Vec<_>>()[..] {
            [at, _, field, meaning] => Some((at, meaning)).filter(|_| !field.is_empty()),
            _ => None,
        })
        .collect();
    let mut table = "| at | bytes | field | meaning |\n|---|---|---|---|\n".to_owned();
    let mut at = 0;
    for (name, ty) in fields {
        let (len, key) = (len_of(ty), at.to_string());
        let meaning = meanings.get(key.as_str()).filter(|text| !text.is_empty()).unwrap_or(&"TODO");
        writeln!(table, "| {at} | {len} | `{name}` | {meaning} |").expect("a string takes it");
        at += len;
    }
    writeln!(table, "| {at} | | | end |").expect("a string takes it");
    table
}
