//! The number of an error code stands in its registry alone: errors and refusals name the constant.

use super::Source;

/// Calls whose first argument is an error code.
const CALLS: &[&str] = &["UserError::new(", "refuse(", "refused("];

/// Returns one line for each call with a number.
pub fn check(sources: &[Source]) -> Vec<String> {
    let fault = |s: &Source, number| format!("{}: {number} is no name of `types::codes`", s.path);
    let products = sources.iter().filter(|s| s.package() != "xtask");
    products.flat_map(|s| numbers(&s.text).into_iter().map(|number| fault(s, number))).collect()
}

/// Returns the code numbers that are written as the first argument of a call.
fn numbers(text: &str) -> Vec<u32> {
    let arguments = CALLS.iter().flat_map(|call| text.match_indices(call).map(|(at, _)| &text[at + call.len()..]));
    let digits = |rest: &str| rest.trim_start().chars().take_while(char::is_ascii_digit).collect::<String>();
    arguments.filter_map(|rest| digits(rest).parse().ok()).filter(|number| (1001..=9999).contains(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn a_number_is_found_in_the_first_argument_alone() {
        assert_eq!(numbers("UserError::new(1001, what)"), [1001]);
        assert_eq!(numbers("Err(refuse(\n    2010,\n    text,\n))"), [2010]);
        assert_eq!(numbers("refuse(codes::BAD_POOL, 2048); refuse(12, 4096); answer(2010)"), [0; 0]);
    }
}
