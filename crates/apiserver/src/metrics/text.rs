//! The page in the older text format (version 0.0.4), which kube-apiserver answers and every scraper reads: there, a counter's
//! type is told under the name its samples have, and that name need not end in `_total`.

use std::fmt::Write;

/// From OpenMetrics text.
pub fn classic(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut lines = open.lines().peekable();
    // A counter that upstream calls a count, and what its samples are called here.
    let mut count: Option<(&str, String)> = None;
    while let Some(line) = lines.next() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let described = line.strip_prefix("# HELP ").and_then(|rest| Some((rest.split_once(' ')?, lines.peek()?)));
        if let Some(((name, help), next)) = described
            && next.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) == Some((name, "counter"))
        {
            lines.next();
            let total = if name.ends_with("_count") { name.to_owned() } else { format!("{name}_total") };
            count = (total == name).then(|| (name, format!("{name}_total")));
            let _ = write!(out, "# HELP {total} {help}\n# TYPE {total} counter\n");
            continue;
        }
        match count.as_ref().and_then(|(name, long)| Some((name, line.strip_prefix(long.as_str())?))) {
            Some((name, rest)) => out.extend([name, rest]),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let open = "# HELP a Things.\n# TYPE a counter\na_total{x=\"1\"} 2\n# HELP b Others.\n# TYPE b gauge\n# UNIT b s\nb 1\n# EOF\n";
        let expected = "# HELP a_total Things.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n# HELP b Others.\n# TYPE b gauge\nb 1\n";
        assert_eq!(classic(open), expected);
    }

    #[test]
    fn a_count_is_not_called_a_total() {
        let open = "# HELP a_count Things.\n# TYPE a_count counter\na_count_total{x=\"1\"} 2\n# HELP b Others.\n# TYPE b gauge\nb 1\n# EOF\n";
        let expected = "# HELP a_count Things.\n# TYPE a_count counter\na_count{x=\"1\"} 2\n# HELP b Others.\n# TYPE b gauge\nb 1\n";
        assert_eq!(classic(open), expected);
    }
}
