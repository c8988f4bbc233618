//! Makes the commands in messages pasteable: with the name of this program and the cluster that was meant.
//!
//! The texts of the program say `basalt status`. A user reads a program name that the shell finds: `basalt` when it is in
//! PATH, else the path of the running one. `--cluster` or `--meta` is repeated when the command line gave it.

use crate::args::{Cli, Common};
use clap::CommandFactory;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static PREFIX: OnceLock<Prefix> = OnceLock::new();

#[derive(Debug, Default)]
struct Prefix {
    program: String,
    /// ` --cluster NAME` or ` --meta ADDR`, or nothing.
    flags: String,
}

/// Remembers the program and the flags of the command line. It is called once, before the first message.
pub fn remember(common: &Common) {
    let _ = PREFIX.set(Prefix { program: program(), flags: common.repeated() });
}

/// Returns the text with its commands made pasteable.
pub fn paste(text: &str) -> String {
    let prefix = PREFIX.get_or_init(|| Prefix { program: program(), flags: String::new() });
    rewrite(text, prefix)
}

fn rewrite(text: &str, prefix: &Prefix) -> String {
    const WORD: &str = "basalt ";
    let command = Cli::command();
    let (mut made, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(WORD) {
        let (before, after) = (&rest[..at], &rest[at + WORD.len()..]);
        made.push_str(before);
        let verb: String = after.chars().take_while(|c| c.is_ascii_lowercase()).collect();
        let starts =
            made.is_empty() || made.ends_with(['`', '\n', '(', '\'']) || made.ends_with("  ") || made.ends_with("&& ");
        let is_command = starts && command.find_subcommand(&verb).is_some();
        // The flags are added only when the command in the text has none of its own.
        let own = after.split(['`', '\n', '#']).next().unwrap_or(after);
        let said = own.contains("--cluster") || own.contains("--meta") || verb == "explain";
        match is_command {
            true => {
                made.push_str(&prefix.program);
                made.push_str(if said { "" } else { &prefix.flags });
                made.push(' ');
            }
            false => made.push_str(WORD),
        }
        rest = after;
    }
    made + rest
}

/// Returns `basalt` when a shell would start this program by that name, else a path that it can start.
fn program() -> String {
    let name = || "basalt".to_owned();
    let Ok(exe) = std::env::current_exe() else { return name() };
    let same = |path: PathBuf| std::fs::canonicalize(path).is_ok_and(|path| path == exe);
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| same(dir.join("basalt"))) {
        return name();
    }
    let here = std::env::current_dir().unwrap_or_default();
    let shown = beside(&exe, &here);
    // The program usually lies in the shell's folder or below it. A blank needs quotes.
    if shown.contains(' ') { format!("'{shown}'") } else { shown }
}

/// Returns the path of a program for a shell in the folder `here`. A name without a slash would be looked up in PATH.
fn beside(exe: &Path, here: &Path) -> String {
    let below = exe.strip_prefix(here).unwrap_or(exe);
    let name_alone = below.components().count() == 1;
    format!("{}{}", if name_alone { "./" } else { "" }, below.display())
}

#[cfg(test)]
mod tests {
    use super::{Prefix, beside, rewrite};
    use std::path::Path;

    #[test]
    fn a_program_in_the_folder_of_the_shell_is_started_with_its_path() {
        let shown = |here: &str| beside(Path::new("/opt/b/basalt"), Path::new(here));
        assert_eq!(shown("/opt/b"), "./basalt");
        assert_eq!(shown("/opt"), "b/basalt");
        assert_eq!(shown("/home"), "/opt/b/basalt");
    }

    #[test]
    fn a_printed_command_names_the_program_and_the_cluster() {
        let prefix = Prefix { program: "target/debug/basalt".into(), flags: " --cluster newc".into() };
        let check = |text: &str, want: &str| assert_eq!(rewrite(text, &prefix), want);
        check("basalt dev up", "target/debug/basalt --cluster newc dev up");
        check("list pools with `basalt pool ls`", "list pools with `target/debug/basalt --cluster newc pool ls`");
        check("basalt status --meta 1.2.3.4:5", "target/debug/basalt status --meta 1.2.3.4:5");
        check("basalt explain 1010", "target/debug/basalt explain 1010");
        check("look at a basalt log", "look at a basalt log");
        check(
            "basalt dev kill 1 && basalt dev start 1",
            "target/debug/basalt --cluster newc dev kill 1 && target/debug/basalt --cluster newc dev start 1",
        );
        let plain = Prefix { program: "basalt".into(), flags: String::new() };
        assert_eq!(rewrite("basalt dev up", &plain), "basalt dev up");
    }
}
