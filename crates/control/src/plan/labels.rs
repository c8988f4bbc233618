//! Descriptions and labels of volumes, and their limits.

use crate::admin::VolumeText;
use crate::records::VolumeRecord;
use crate::refusal::refuse;
use std::collections::BTreeMap;
use types::codes;
use types::control::Refusal;
use types::limits::{DESCRIPTION_LEN_MAX, LABEL_KEY_LEN_MAX, LABEL_VALUE_LEN_MAX, LABELS_MAX, clip};

/// Most bytes of a wrong text that a refusal repeats.
const SHOWN_MAX: usize = 40;

fn wrong(what: impl std::fmt::Display) -> Refusal {
    refuse(codes::BAD_LABEL, what)
}

/// Whether a text fits a line of a table: no control character, none that breaks the line or turns its direction.
fn is_plain(text: &str) -> bool {
    let bad = |c: char| {
        c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    !text.contains(bad)
}

fn is_key(key: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"._/-".contains(&b);
    key.len() <= LABEL_KEY_LEN_MAX
        && key.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && key.bytes().all(inner)
}

fn check_description(text: &str) -> Result<(), Refusal> {
    if text.len() > DESCRIPTION_LEN_MAX {
        return Err(wrong(format!("the description has {} bytes, more than {DESCRIPTION_LEN_MAX}", text.len())));
    }
    if !is_plain(text) {
        return Err(wrong("the description has a line break or another control character"));
    }
    Ok(())
}

fn check_label(key: &str, value: &str) -> Result<(), Refusal> {
    let shown = clip(key, SHOWN_MAX);
    if !is_key(key) {
        return Err(wrong(format!("{shown:?} is not a valid key of a label")));
    }
    if value.len() > LABEL_VALUE_LEN_MAX {
        let len = value.len();
        return Err(wrong(format!("the value of label {shown:?} has {len} bytes, more than {LABEL_VALUE_LEN_MAX}")));
    }
    if !is_plain(value) {
        return Err(wrong(format!("the value of label {shown:?} has a line break or another control character")));
    }
    Ok(())
}

/// Returns description and labels after a change of those that are there.
///
/// # Errors
/// BSLT-2062.
pub(super) fn changed(
    description: &str,
    labels: &BTreeMap<String, String>,
    text: &VolumeText,
) -> Result<(String, BTreeMap<String, String>), Refusal> {
    let description = text.description.as_deref().unwrap_or(description);
    check_description(description)?;
    let mut labels = labels.clone();
    for key in &text.removed_labels {
        if text.labels.contains_key(key) {
            return Err(wrong(format!("label {:?} is to be set and to be removed", clip(key, SHOWN_MAX))));
        }
        // A command that is repeated finds the label gone.
        labels.remove(key);
    }
    for (key, value) in &text.labels {
        check_label(key, value)?;
        labels.insert(key.clone(), value.clone());
    }
    if labels.len() > LABELS_MAX {
        return Err(wrong(format!("{} labels are more than {LABELS_MAX}", labels.len())));
    }
    Ok((description.to_owned(), labels))
}

/// Description and labels of a volume or a snapshot.
pub type Text<'a> = (&'a str, &'a BTreeMap<String, String>);

/// Returns the difference of two records of a volume in words; empty when there is none.
pub fn label_changes(before: &VolumeRecord, after: &VolumeRecord) -> String {
    let mut words = text_changes((&before.description, &before.labels), (&after.description, &after.labels));
    if before.when_full != after.when_full {
        words.push(format!("when full {}", after.when_full));
    }
    if before.is_multi_writer() != after.is_multi_writer() {
        words.push(
            if after.is_multi_writer() { "several writers at a time" } else { "one writer at a time" }.to_owned(),
        );
    }
    words.join(", ")
}

/// Returns the differences of two descriptions with labels in words.
pub fn text_changes((old_text, old): Text<'_>, (new_text, new): Text<'_>) -> Vec<String> {
    let mut words = Vec::new();
    if old_text != new_text {
        words.push(format!("description {new_text:?}"));
    }
    let set = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    words.extend(set.map(|(key, value)| format!("label {key}={value}")));
    words.extend(old.keys().filter(|key| !new.contains_key(*key)).map(|key| format!("no label {key}")));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(description: Option<&str>, labels: &[(&str, &str)], removed: &[&str]) -> VolumeText {
        VolumeText {
            description: description.map(str::to_owned),
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            removed_labels: removed.iter().map(|k| (*k).to_owned()).collect(),
            ..VolumeText::default()
        }
    }

    #[test]
    fn labels_change_one_by_one_and_the_rest_stays() {
        let none = BTreeMap::new();
        let (description, labels) =
            changed("", &none, &text(Some("a disk"), &[("a", "1"), ("b/c", "")], &[])).expect("valid");
        assert_eq!((description.as_str(), labels.len()), ("a disk", 2));
        let (description, labels) =
            changed(&description, &labels, &text(None, &[("a", "2")], &["b/c", "gone"])).expect("valid");
        assert_eq!((description.as_str(), labels), ("a disk", text(None, &[("a", "2")], &[]).labels));
        let (description, _) = changed("a disk", &none, &text(Some(""), &[], &[])).expect("valid");
        assert_eq!(description, "");
    }

    #[test]
    fn texts_outside_the_limits_are_refused_and_named() {
        let many: Vec<String> = (0..=LABELS_MAX).map(|n| format!("k{n}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|k| (k.as_str(), "v")).collect();
        let (long, long_key) = ("x".repeat(DESCRIPTION_LEN_MAX + 1), "k".repeat(LABEL_KEY_LEN_MAX + 1));
        for (bad, says) in [
            (text(Some(&long), &[], &[]), "513 bytes"),
            (text(Some("two\nlines"), &[], &[]), "control character"),
            (text(Some("turned \u{202e}"), &[], &[]), "control character"),
            (text(None, &[("", "v")], &[]), "\"\" is not a valid key"),
            (text(None, &[("-a", "v")], &[]), "\"-a\" is not a valid key"),
            (text(None, &[("a b", "v")], &[]), "\"a b\" is not a valid key"),
            (text(None, &[("ä", "v")], &[]), "is not a valid key"),
            (text(None, &[(&long_key, "v")], &[]), "is not a valid key"),
            (text(None, &[("k", &long)], &[]), "513 bytes, more than 127"),
            (text(None, &[("k", "\u{7}")], &[]), "control character"),
            (text(None, &many, &[]), "33 labels are more than 32"),
            (text(None, &[("k", "v")], &["k"]), "to be set and to be removed"),
        ] {
            let refused = changed("", &BTreeMap::new(), &bad).expect_err(says);
            assert!(refused.code == codes::BAD_LABEL && refused.message.contains(says), "{refused:?}");
        }
        assert!(changed("", &BTreeMap::new(), &text(Some("ü ✓"), &many[1..], &[])).is_ok());
    }
}
