//! Script tests: a file holds commands for a state machine, and what the machine does.
//!
//! A script consists of blocks with an empty line between two of them. A block has comments (`#`) and commands, then a line `----`, then
//! the trace of these commands. `UPDATE_GOLDEN=1` writes the traces again; read the difference before you commit it.
//!
//! Invariant: a trace that differs in one character fails the test.

use std::path::Path;

/// Runs the scripts in the directory `testdata/<name>` of a package, each with its own `new()`: a command in, its trace out.
///
/// # Panics
/// When a trace differs, or the directory holds fewer than `least` scripts.
pub fn check<F: FnMut(&str) -> String>(package: &str, name: &str, least: usize, new: impl Fn() -> F) {
    let dir = Path::new(package).join("testdata").join(name);
    let files = std::fs::read_dir(dir).expect("the scripts").map(|file| file.expect("a script").path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    assert!(files.len() >= least, "scripts are missing: {files:?}");
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a script");
        let told = retell(&text, new());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &told).expect("a script");
            continue;
        }
        let differs = text.lines().zip(told.lines()).position(|(want, got)| want != got);
        let at = differs.unwrap_or(text.lines().count().min(told.lines().count()));
        let (want, got) = (text.lines().nth(at), told.lines().nth(at));
        assert!(text == told, "{path:?}, line {}:\n the script: {want:?}\n this run: {got:?}", at + 1);
    }
}

/// Runs a script; returns it with the traces of this run.
fn retell(text: &str, mut run: impl FnMut(&str) -> String) -> String {
    let blocks = text.trim_end().split("\n\n").map(|block| {
        let head: Vec<&str> = block.lines().take_while(|line| *line != "----").collect();
        let commands: Vec<&&str> = head.iter().filter(|line| !line.starts_with('#')).collect();
        let told: String = commands.iter().map(|line| run(line)).collect();
        match (commands.len(), told.trim_end()) {
            (0, _) => head.join("\n"),
            (_, "") => head.join("\n") + "\n----\nnothing happens",
            (_, told) => head.join("\n") + "\n----\n" + told,
        }
    });
    blocks.collect::<Vec<String>>().join("\n\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::retell;

    #[test]
    fn traces_follow_the_commands_of_their_block() {
        let echo = |line: &str| if line == "wait" { String::new() } else { format!("did {line}\n") };
        let text = "# A comment.\n\n# Two.\none\ntwo\n----\nold\n\nwait\n----\nold\n";
        let want = "# A comment.\n\n# Two.\none\ntwo\n----\ndid one\ndid two\n\nwait\n----\nnothing happens\n";
        assert_eq!(retell(text, echo), want);
    }
}
