//! Check of a configuration: [`Check`] examines every field, and [`ConfigFaults`] lists all that is wrong.
//!
//! Each component has one plain struct for its tunables, with a default for every field, and a function `validate`.
//! The constructor of the component calls `validate`. A value that a programmer made panics there with all faults; a
//! value that a user can set is checked before, and gives an error.
//!
//! Invariant: a check stops at no fault, so that one run shows every mistake.

use std::fmt::Debug;
use std::ops::RangeInclusive;

/// All faults of one configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configuration of {component} is wrong: {}", .faults.join("; "))]
pub struct ConfigFaults {
    component: &'static str,
    faults: Vec<String>,
}

impl ConfigFaults {
    /// Returns one line for each fault; each begins with the name of a field.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }
}

/// A check under way.
#[derive(Debug)]
pub struct Check {
    component: &'static str,
    faults: Vec<String>,
}

impl Check {
    /// Begins the check of this component's configuration.
    pub fn new(component: &'static str) -> Check {
        Check { component, faults: Vec::new() }
    }

    /// Notes a fault unless `holds`.
    pub fn ensure(&mut self, holds: bool, fault: &str) {
        if !holds {
            self.faults.push(fault.to_owned());
        }
    }

    /// Notes a fault unless the field's value is in its range.
    pub fn within<T: PartialOrd + Debug>(&mut self, field: &str, value: T, range: RangeInclusive<T>) {
        if !range.contains(&value) {
            self.faults.push(format!("{field} is {value:?}, not in {range:?}"));
        }
    }

    /// Takes over the faults of a nested configuration.
    pub fn part(&mut self, field: &str, part: Result<(), ConfigFaults>) {
        if let Err(inner) = part {
            self.faults.extend(inner.faults.into_iter().map(|fault| format!("{field}.{fault}")));
        }
    }

    /// Ends the check.
    ///
    /// # Errors
    /// Every fault that was noted.
    pub fn end(self) -> Result<(), ConfigFaults> {
        let Check { component, faults } = self;
        if faults.is_empty() { Ok(()) } else { Err(ConfigFaults { component, faults }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_lists_every_fault_and_names_nested_fields() {
        let mut inner = Check::new("an inner part");
        inner.within("depth", 9, 1..=8);
        let mut check = Check::new("a part");
        check.within("width", 3, 1..=8);
        check.ensure(true, "width is odd");
        check.ensure(false, "width is not even");
        check.part("inner", inner.end());
        let faults = check.end().expect_err("two faults");
        assert_eq!(faults.faults(), ["width is not even", "inner.depth is 9, not in 1..=8"]);
        let text = "the configuration of a part is wrong: width is not even; inner.depth is 9, not in 1..=8";
        assert_eq!(faults.to_string(), text);
        assert_eq!(Check::new("a part").end(), Ok(()));
    }
}
