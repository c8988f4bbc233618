//! Parses the words of a command line into a command, or into one error with a code.
//!
//! Invariant: no error proposes another verb or a flag that destroys something. For the parser, `osd rm` and `osd
//! format` are one edit apart; for an administrator, a device.

use crate::args::Cli;
use crate::errors::{Exit, UserError};
use crate::{missing, output};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;
use types::codes;

/// Flags that are never proposed.
const NEVER_PROPOSED: &[&str] =
    &["force", "steal", "yes", "overwrite", "after-poison", "assume-plp", "clear-error", "replace"];

/// A command line that is no command to run.
pub enum Unusable {
    /// Help or the version was requested.
    Shown(String),
    /// Text for a terminal, and the same as an error.
    Wrong(String, UserError),
}

/// Parses a command line.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Unusable> {
    let mut command = missing::add_to(Cli::command());
    let words: Vec<OsString> = words.into_iter().collect();
    let matches = command.try_get_matches_from_mut(&words).map_err(|error| unusable(error, &help_of_words(&words)))?;
    if let Some(error) = missing::refused(&matches) {
        return Err(Unusable::Wrong(error.to_string(), error));
    }
    Cli::from_arg_matches(&matches).map_err(|error| unusable(error.format(&mut command), &help_of_words(&words)))
}

/// Whether the words request JSON, although they could not be parsed.
pub fn wants_json(words: impl IntoIterator<Item = OsString>) -> bool {
    words.into_iter().take_while(|word| word != "--").any(|word| word == "--json")
}

/// Prints the help or the error that [`parse`] returned instead of a command.
pub fn show(unusable: Unusable, as_json: bool) -> Exit {
    match unusable {
        Unusable::Shown(text) => {
            out!("{}", text.trim_end());
            Exit::Done
        }
        Unusable::Wrong(_, error) if as_json && output::error(&error).is_ok() => Exit::Usage,
        Unusable::Wrong(text, _) => {
            output::complain(&text);
            Exit::Usage
        }
    }
}

/// Converts a parser error. `help` is used where the error does not name its command: for a wrong value.
fn unusable(mut error: clap::Error, help: &str) -> Unusable {
    drop_tips(&mut error);
    let text = error.render().to_string();
    if !error.use_stderr() {
        return Unusable::Shown(text);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let what = "a command is missing";
        return Unusable::Wrong(text.trim_end().to_owned(), UserError::new(codes::BAD_USAGE, what, "basalt --help"));
    }
    let usage = error.get(ContextKind::Usage).map(|usage| help_of(&usage.to_string()));
    let next = usage.filter(|usage| !usage.is_empty()).unwrap_or_else(|| help.to_owned());
    let body = text.strip_prefix("error: ").unwrap_or(&text);
    let body = body.split("\n\nFor more information").next().unwrap_or(body).trim_end();
    let what = body.split("\n\n").next().unwrap_or(body);
    let what = what.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let code = codes::label(codes::BAD_USAGE);
    Unusable::Wrong(format!("{code}: {body}\n  next: {next}"), UserError::new(codes::BAD_USAGE, what, next))
}

/// Returns `basalt osd format --help` for `Usage: basalt osd format [OPTIONS]`.
fn help_of(usage: &str) -> String {
    let words = usage.split_whitespace().skip_while(|w| *w != "basalt");
    let path: Vec<&str> = words.take_while(|w| !w.starts_with(['[', '<', '-'])).collect();
    if path.is_empty() { String::new() } else { format!("{} --help", path.join(" ")) }
}

/// Returns the help command of the deepest command that the words name.
fn help_of_words(words: &[OsString]) -> String {
    let top = Cli::command();
    let (mut command, mut path) = (&top, String::from("basalt"));
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if word == "--meta" || word == "--cluster" {
            words.next();
        } else if let Some(sub) = command.find_subcommand(word.as_ref()) {
            path = format!("{path} {}", sub.get_name());
            command = sub;
        } else if !word.starts_with('-') {
            break;
        }
    }
    path + " --help"
}

/// Removes the parser's proposals, except for harmless flags and values.
fn drop_tips(error: &mut clap::Error) {
    let harmless = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(flag)) => !NEVER_PROPOSED.contains(&flag.trim_start_matches('-')),
        _ => error.kind() == ErrorKind::InvalidValue,
    };
    if harmless {
        return;
    }
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::Suggested] {
        error.remove(kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(line: &str) -> (String, UserError) {
        match parse(line.split(' ').map(OsString::from)) {
            Err(Unusable::Wrong(text, error)) => (text, error),
            Err(Unusable::Shown(text)) => panic!("`{line}` shows {text}"),
            Ok(_) => panic!("`{line}` is a command"),
        }
    }

    #[test]
    fn no_error_proposes_a_verb_or_a_flag_that_destroys() {
        for line in
            ["basalt osd frm 1", "basalt osd forma", "basalt volume rn main/a", "basalt volum ls", "basalt dev destry"]
        {
            let (text, error) = wrong(line);
            assert!(!text.contains("similar") && !text.contains("tip:"), "{line}: {text}");
            assert_eq!(error.code, 1001);
        }
        for line in ["basalt volume rm main/a --forc", "basalt nbd main/a --stea", "basalt dev destroy --ye"] {
            let (text, _) = wrong(line);
            assert!(!text.contains("similar") && !text.contains("tip:"), "{line}: {text}");
        }
        assert!(wrong("basalt pg ls --poo main").0.contains("'--pool'"), "a harmless flag may be proposed");
    }

    #[test]
    fn a_wrong_command_line_has_a_code_a_sentence_and_the_help_of_its_command() {
        let (text, error) = wrong("basalt osd format --devic /dev/x");
        assert!(text.starts_with("BSLT-1001: unexpected argument '--devic'"), "{text}");
        assert_eq!(error.next, "basalt osd format --help");
        for (line, next) in [
            ("basalt pool create x --pgs 0", "basalt pool create --help"),
            ("basalt --cluster osd --json osd rm x", "basalt osd rm --help"),
            ("basalt vol create main/x 10Gb", "basalt volume create --help"),
            ("basalt events --since xx", "basalt events --help"),
            ("basalt --meta x status", "basalt status --help"),
        ] {
            assert_eq!(wrong(line).1.next, next, "{line}");
        }
        let (_, error) = wrong("basalt volume create main/x 10Gb");
        assert_eq!(error.next, "basalt volume create --help");
        assert!(error.what.starts_with("invalid value '10Gb'"), "{}", error.what);
        let (text, error) = wrong("basalt osd reweight 1");
        assert_eq!((error.code, text.contains("not possible yet")), (1011, true), "{text}");
    }
}
