//! Verbs of other systems that Basalt does not support yet: each answers with BSLT-1011 instead of a guess.
//!
//! Invariant: no verb of this table is a command (a test compares them), and none is in help, in completion or in the manual.

use crate::errors::UserError;
use clap::{Arg, ArgMatches, Command};
use types::codes;

/// Command, and the verbs under it that are missing.
const MISSING: &[(&str, &[&str])] = &[
    ("osd", &["reweight", "crush"]),
    ("volume", &["snapshot", "snap", "copy", "cp", "import", "export"]),
    ("pg", &["repair", "scrub"]),
];

/// Adds the missing verbs, hidden, each with any arguments.
pub fn add_to(command: Command) -> Command {
    MISSING.iter().fold(command, |command, (parent, verbs)| {
        command.mut_subcommand(*parent, |parent| {
            let rest = || Arg::new("rest").num_args(0..).allow_hyphen_values(true).trailing_var_arg(true).hide(true);
            let hidden = |verb| Command::new(verb).hide(true).disable_help_flag(true).arg(rest());
            parent.subcommands(verbs.iter().map(hidden))
        })
    })
}

/// Returns the refusal when the command line names a missing verb.
pub fn refused(matches: &ArgMatches) -> Option<UserError> {
    let (parent, below) = matches.subcommand()?;
    let (verb, _) = below.subcommand()?;
    let (_, verbs) = MISSING.iter().find(|(name, _)| *name == parent)?;
    verbs.contains(&verb).then(|| {
        let what = format!("`basalt {parent} {verb}` is not possible yet");
        UserError::new(codes::NOT_POSSIBLE_YET, what, "see \"What is missing today\" in README.md")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn a_missing_verb_is_no_command_and_is_refused_with_any_arguments() {
        let real = Cli::command();
        for (parent, verbs) in MISSING {
            let command = real.find_subcommand(parent).expect("it is a command");
            for verb in *verbs {
                assert!(command.find_subcommand(verb).is_none(), "{parent} {verb} exists by now");
                for rest in [&[][..], &["1"], &["--help"], &["a/b", "--size", "1"]] {
                    let words = [&["basalt", parent, verb], rest].concat();
                    let matches = add_to(Cli::command()).try_get_matches_from(&words).expect("it is parsed");
                    let refusal = refused(&matches).expect("it is refused");
                    assert_eq!(refusal.code, 1011, "{words:?}");
                }
            }
        }
        let matches = add_to(Cli::command()).try_get_matches_from(["basalt", "osd", "ls"]).expect("it is a command");
        assert!(refused(&matches).is_none());
    }
}
