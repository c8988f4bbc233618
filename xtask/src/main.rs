//! Tools of the workspace. `cargo xtask tidy` checks the rules that no compiler checks, `cargo xtask ci`
//! is what CI runs, `cargo xtask sim` runs the simulator, `cargo xtask readme` runs the README's commands.

mod ci;
mod readme;
mod sh;
mod tidy;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask <command>

  tidy            rings, file and function length, module docs, forbidden words
  ci              fmt, clippy, tidy, tests, docs, simulation, smoke, python, deny: what CI runs
  readme          run every shell block of README.md that is marked `sh`
  sim [ARGS]      the simulator: --seeds N, --seed S, --trace, ...
  planted [ARGS]  plants one bug after another and shows that the simulator finds each: --bug NAME, --list, ...
  fuzz [ARGS]     every fuzz target on stable: --seconds N, --seed N
  totals          print the sum of all test counts of the last `ci` and `readme`
";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("ci") => ci::run(),
        Some("readme") => readme::run(),
        Some("sim") => ci::simulate(&args[1..]),
        Some("planted") => ci::planted(&args[1..]),
        Some("fuzz") => ci::fuzz(&args[1..]),
        Some("totals") => ci::totals(),
        _ => {
            eprint!("{USAGE}");
            bail!("no such command")
        }
    }
}
