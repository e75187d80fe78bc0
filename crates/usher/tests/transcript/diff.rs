//! Differences of two texts, line by line.

/// One line of the merged text.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    Same(String),
    Left(String),
    Right(String),
}

/// By the longest common subsequence; the outputs of kubectl are short enough.
pub fn diff(left: &[String], right: &[String]) -> Vec<Edit> {
    let width = right.len() + 1;
    let mut common = vec![0u32; (left.len() + 1) * width];
    for i in (0..left.len()).rev() {
        for j in (0..right.len()).rev() {
            common[i * width + j] = if left[i] == right[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut edits) = (0, 0, Vec::new());
    while i < left.len() || j < right.len() {
        if i < left.len() && j < right.len() && left[i] == right[j] {
            edits.push(Edit::Same(left[i].clone()));
            (i, j) = (i + 1, j + 1);
        } else if j == right.len() || (i < left.len() && common[(i + 1) * width + j] >= common[i * width + j + 1]) {
            edits.push(Edit::Left(left[i].clone()));
            i += 1;
        } else {
            edits.push(Edit::Right(right[j].clone()));
            j += 1;
        }
    }
    edits
}

pub fn differs(edits: &[Edit]) -> bool {
    edits.iter().any(|edit| !matches!(edit, Edit::Same(_)))
}

/// The changed lines with two lines of context around each.
pub fn unified(edits: &[Edit]) -> String {
    const CONTEXT: usize = 2;
    let changed: Vec<bool> = edits.iter().map(|edit| !matches!(edit, Edit::Same(_))).collect();
    let mut text = String::new();
    let mut shown = true;
    for (i, edit) in edits.iter().enumerate() {
        let near = changed[i.saturating_sub(CONTEXT)..(i + CONTEXT + 1).min(edits.len())].contains(&true);
        if !near {
            if shown {
                text += " ...\n";
            }
            shown = false;
            continue;
        }
        shown = true;
        let (sign, line) = match edit {
            Edit::Same(line) => (' ', line),
            Edit::Left(line) => ('-', line),
            Edit::Right(line) => ('+', line),
        };
        text += &format!("{sign} {line}\n");
    }
    text
}

#[test]
fn lines_that_moved_apart_are_found() {
    let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let edits = diff(&lines("a b c d"), &lines("a c x d"));
    assert_eq!(unified(&edits), "  a\n- b\n  c\n+ x\n  d\n");
}
