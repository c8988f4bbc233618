//! Outcomes of requests as a C program reads them: a line of text for each errno.

use clientthread::Failure;
use std::ffi::{CStr, CString, c_int};
use std::sync::LazyLock;
use types::Errno;

/// Lines of `basalt_strerror`: they live as long as the process.
static LINES: LazyLock<Vec<(c_int, CString)>> = LazyLock::new(|| {
    let line = |errno: Errno| {
        // An errno that several outcomes share has one line, which names them all.
        let shares = |other: &Errno| *other != errno && other.os() == errno.os();
        let others = Errno::ALL.into_iter().filter(shares).map(|other| format!("; or {other}")).collect::<String>();
        let text = format!("{}{others}", Failure::of_outcome(errno));
        (errno.os(), CString::new(text).unwrap_or_default())
    };
    Errno::ALL.into_iter().map(line).collect()
});

/// Returns one line about the result of an event.
pub fn line_of(result: c_int) -> &'static CStr {
    if result >= 0 {
        return c"done";
    }
    let known = LINES.iter().find(|(errno, _)| *errno == result.saturating_neg());
    known.map_or(c"no result of a request; basalt_last_error() describes the errors of calls", |(_, line)| {
        line.as_c_str()
    })
}

#[cfg(test)]
mod tests {
    use super::line_of;
    use types::Errno;

    #[test]
    fn each_outcome_of_a_request_has_one_line_with_its_code() {
        for errno in Errno::ALL {
            let line = line_of(-errno.os()).to_str().expect("text");
            assert!(line.starts_with("BSLT-") && line.contains(&errno.to_string()) && !line.contains('\n'), "{line}");
        }
        assert_eq!(line_of(0), c"done");
        assert!(line_of(i32::MIN).to_bytes().starts_with(b"no result"));
    }
}
