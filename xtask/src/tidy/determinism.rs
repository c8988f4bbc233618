//! Code under the simulator depends on its seed alone: no clock, environment, file, thread, hash order or
//! address is read in the crates that it runs. Clippy forbids the types and the clocks, but an attribute
//! with a reason may allow them; this check allows them only in the places named below.

use super::Source;

/// The crates that run under one seed.
const CRATES: &[&str] = &[
    "types",
    "wire",
    "layout",
    "consensus",
    "placement",
    "group",
    "recovery",
    "volume",
    "control",
    "env",
    "simenv",
    "telemetry",
    "engine",
    "bus",
    "osd",
    "client",
    "device",
];
/// The real environment.
const REAL: &str = "crates/env/src/real";
/// Words for sources of nondeterminism.
const WORDS: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "HashMap",
    "HashSet",
    "RandomState",
    "DefaultHasher",
    "thread_rng",
    "rand::",
    "getrandom",
    "ThreadId",
    "thread::",
    "thread_local!",
    "{:p}",
    "as_ptr() as usize",
    "expose_provenance",
    "process::id",
    "env::var",
    "std::fs::",
];
/// (file, word, reason why it has no effect).
const ALLOWED: &[(&str, &str, &str)] = &[
    ("crates/types/src/iobuf/mod.rs", "thread_local!", "memory that is used again; its bytes are never shown"),
    ("crates/types/src/iobuf/mod.rs", "as_ptr() as usize", "whether a buffer is aligned: always, or a panic"),
    ("crates/types/src/iobuf/arena.rs", "as_ptr() as usize", "which slot of a chunk is given back"),
];

/// Returns one line for each fault.
pub fn check(sources: &[Source]) -> Vec<String> {
    let sources = sources.iter().filter(|s| CRATES.contains(&s.package()) && !s.is_test() && !s.path.starts_with(REAL));
    sources.flat_map(faults).collect()
}

fn faults(s: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    // Unit tests are at the end of their file.
    let code = s.text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]" || is_one_item(s));
    for (n, line) in code.filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for word in WORDS.iter().filter(|word| line.contains(**word)) {
            if !ALLOWED.iter().any(|(path, allowed, _)| *path == s.path && allowed == word) {
                faults.push(format!("{}:{}: `{word}`: no seed decides it (sources that sim runs)", s.path, n + 1));
            }
        }
    }
    faults
}

/// A `#[cfg(test)]` that is followed by more code than its own item does not end the file.
fn is_one_item(s: &Source) -> bool {
    !s.text.contains("#[cfg(test)]\nmod tests {")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(path: &str, text: &str) -> usize {
        check(&[Source { path: path.to_owned(), text: text.to_owned() }]).len()
    }

    #[test]
    fn what_no_seed_decides_is_found_in_rooms_and_allowed_elsewhere() {
        let text = "fn f() {\n    let t = Instant::now();\n    let m: HashMap<u8, u8>;\n}\n";
        assert_eq!(faults_of("crates/group/src/x.rs", text), 2);
        assert_eq!(faults_of("crates/cli/src/x.rs", text), 0);
        assert_eq!(faults_of("crates/env/src/real/x.rs", text), 0);
        assert_eq!(faults_of("crates/group/src/x.rs", "// Instant::now is for others\n"), 0);
        assert_eq!(faults_of("crates/group/src/x.rs", "#[cfg(test)]\nmod tests {\n    Instant::now();\n}\n"), 0);
        assert_eq!(faults_of("crates/group/src/x.rs", "#[cfg(test)]\nuse a;\n\nfn f() { thread_rng() }\n"), 1);
    }
}
