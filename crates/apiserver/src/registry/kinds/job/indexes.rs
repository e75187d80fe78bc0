//! Sets of completion indexes as text: `1,3-5,7`.

use usher_schema::field::quote;

/// How many indexes `text` lists; they must increase and stay below `completions`.
pub fn count(text: &str, completions: i32) -> Result<i32, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let mut total = 0;
    let mut last: Option<i32> = None;
    for part in text.split(',') {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// The first index that both lists contain. What does not parse is skipped: [`count`] reports it.
pub fn overlap(completed: &str, failed: &str, completions: i32) -> Option<i32> {
    if completed.is_empty() || failed.is_empty() {
        return None;
    }
    let parse =
        |text: &str| -> Vec<(i32, i32)> { text.split(',').filter_map(|p| interval(p, completions).ok()).collect() };
    let (completed, failed) = (parse(completed), parse(failed));
    let (mut c, mut f) = (0, 0);
    while let (Some(&(c_first, c_last)), Some(&(f_first, f_last))) = (completed.get(c), failed.get(f)) {
        if c_first <= f_last && f_first <= c_last {
            return Some(c_first.max(f_first));
        }
        if c_first <= f_first { c += 1 } else { f += 1 }
    }
    None
}

fn interval(text: &str, completions: i32) -> Result<(i32, i32), String> {
    let mut parts = text.split('-');
    let first = parts.next().unwrap_or_default();
    let second = parts.next();
    if parts.next().is_some() {
        let shown = quote(text);
        return Err(format!(
            "the fragment {shown} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let number = |part: &str| -> Result<i32, String> {
        let n: i64 =
            part.parse().map_err(|_| format!("cannot convert string to integer for index: {}", quote(part)))?;
        match i32::try_from(n) {
            Ok(n) if n < completions => Ok(n),
            _ => Err(format!("too large index: {}", quote(part))),
        }
    };
    let first = number(first)?;
    let Some(second) = second else { return Ok((first, first)) };
    let second = number(second)?;
    if first >= second {
        return Err(format!("non-increasing order, previous: {first}, current: {second}"));
    }
    Ok((first, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_lists_are_counted_or_refused() {
        assert_eq!(count("", 5), Ok(0));
        assert_eq!(count("0,2-4", 5), Ok(4));
        for (text, why) in [
            ("5", "too large index: \"5\""),
            ("0,0", "non-increasing order, previous: 0, current: 0"),
            ("3-3", "non-increasing order, previous: 3, current: 3"),
            ("1-", "cannot convert string to integer for index: \"\""),
            (
                "1-2-3",
                "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
            ),
            ("99999999999999999999", "cannot convert string to integer for index: \"99999999999999999999\""),
        ] {
            assert_eq!(count(text, 5), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn overlaps_are_found() {
        assert_eq!(overlap("0,3-5", "1,5", 9), Some(5));
        assert_eq!(overlap("0,3-5", "1-2,6", 9), None);
        assert_eq!(overlap("x,3", "3", 9), Some(3));
    }
}
