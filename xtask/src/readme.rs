//! Runs the README: every fenced block marked `sh` is a script, run in order with `bash -eu` from the root.
//! A block marked `console` or `text` is output and is not run.

use crate::{ci, sh};
use anyhow::{Result, bail};

/// Runs all blocks; counts each as one test.
pub fn run() -> Result<()> {
    let text = std::fs::read_to_string(sh::root().join("README.md"))?;
    let blocks = blocks(&text);
    if blocks.is_empty() {
        bail!("README.md has no `sh` block");
    }
    for (line, script) in blocks {
        // `make test` runs this program in CI; running it again would not end.
        if script.trim() == "make test" {
            println!("README.md:{line}: `make test` runs in its own step");
            continue;
        }
        println!("README.md:{line}:\n{script}");
        sh::run("bash", &["-euo", "pipefail", "-c", &script])?;
        ci::add_counts("readme", 1, 0)?;
    }
    Ok(())
}

/// Returns (line number, script) of every `sh` block.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (n, line) in text.lines().enumerate() {
        match (&mut open, line.trim_end()) {
            (None, "```sh") => open = Some((n + 1, String::new())),
            (Some(_), "```") => found.extend(open.take()),
            (Some((_, script)), text) => {
                script.push_str(text);
                script.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_sh_blocks_are_run() {
        let text = "# x\n```sh\nmake up\n```\n```text\nno\n```\n```sh\na\nb\n```\n";
        assert_eq!(super::blocks(text), vec![(2, "make up\n".to_owned()), (8, "a\nb\n".to_owned())]);
    }
}
