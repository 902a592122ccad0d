//! Versions without what distributions and people add to them.

/// The numbers of a version, a release candidate's too: `6.18.5-removed` for `6.18.5-acme-prod`. `removed` says that there
/// was more.
pub(super) fn numbers(version: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = version.find(|c| !is_number(c)).unwrap_or(version.len());
    let (number, rest) = version.split_at(end);
    let number = number.trim_end_matches('.');
    let candidate = rest.strip_prefix("-rc").map_or(0, |rest| {
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        if digits > 0 { "-rc".len() + digits } else { 0 }
    });
    let (candidate, rest) = rest.split_at(candidate);
    match (number.is_empty(), rest.is_empty()) {
        (true, true) => String::new(),
        (true, false) => String::from("removed"),
        (false, true) => format!("{number}{candidate}"),
        (false, false) => format!("{number}{candidate}-removed"),
    }
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn numbers_stay() {
        for (version, expected) in [
            ("", ""),
            ("6.18.5", "6.18.5"),
            ("6.18.44-fc-v657", "6.18.44-removed"),
            ("6.1.0-56-amd64", "6.1.0-removed"),
            ("7.0.0-rc3", "7.0.0-rc3"),
            ("7.0.0-rc3-acme", "7.0.0-rc3-removed"),
            ("7.0.0-rcsecret", "7.0.0-removed"),
            ("8.2.2 (Debian 1:8.2.2+ds-0)", "8.2.2-removed"),
            ("acme-6", "removed"),
            ("6.", "6"),
        ] {
            assert_eq!(numbers(version), expected, "{version}");
            assert_eq!(numbers(expected), expected, "twice is like once");
        }
    }
}
