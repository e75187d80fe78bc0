//! The bearer token file: `token,user,uid,"group1,group2"`, one user a line, as kube-apiserver's `--token-auth-file`.
//!
//! Tokens are kept as digests only. A lookup compares with every line, so its time tells nothing about how much of a
//! guess was right or which line it was near.

use std::fmt;

use ring::digest::{SHA256, digest};

use super::identity::User;

#[derive(Default)]
pub struct TokenFile {
    lines: Vec<([u8; 32], User)>,
    /// What is odd but harmless: empty tokens (skipped) and repeated ones (the last counts).
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFileError {
    #[error("line {line}: must have at least 3 columns (token, user name, user uid), found {found}")]
    TooFewColumns { line: usize, found: usize },
    #[error("line {line}: the user name is empty")]
    NoUser { line: usize },
    #[error("line {line}: a quote inside a field that does not start with one")]
    BareQuote { line: usize },
    #[error("line {line}: extra text after a closing quote, or no closing quote")]
    OpenQuote { line: usize },
    #[error("line {line}: not UTF-8")]
    NotUtf8 { line: usize },
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A digest of a short token can be guessed: not even that is printed.
        write!(f, "TokenFile({} tokens)", self.lines.len())
    }
}

impl TokenFile {
    pub fn parse(bytes: &[u8]) -> Result<TokenFile, TokenFileError> {
        let text = std::str::from_utf8(bytes).map_err(|error| TokenFileError::NotUtf8 {
            line: 1 + bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count(),
        })?;
        let mut file = TokenFile::default();
        for (line, record) in records(text.strip_prefix('\u{feff}').unwrap_or(text))? {
            file.add(line, &record)?;
        }
        Ok(file)
    }

    fn add(&mut self, line: usize, record: &[String]) -> Result<(), TokenFileError> {
        let [token, name, uid, rest @ ..] = record else {
            return Err(TokenFileError::TooFewColumns { line, found: record.len() });
        };
        if token.is_empty() {
            self.warnings.push(format!("line {line}: empty token, skipped"));
            return Ok(());
        }
        if name.is_empty() {
            return Err(TokenFileError::NoUser { line });
        }
        let groups = rest.first().map(|g| g.split(',').map(str::to_owned).collect()).unwrap_or_default();
        let user = User { name: name.clone(), uid: uid.clone(), groups, ..User::default() }.authenticated();
        let key = fingerprint(token);
        if let Some(same) = self.lines.iter_mut().find(|(k, _)| *k == key) {
            self.warnings.push(format!("line {line}: repeats the token of an earlier line and replaces it"));
            same.1 = user;
        } else {
            self.lines.push((key, user));
        }
        Ok(())
    }

    pub fn find(&self, token: &str) -> Option<&User> {
        let wanted = fingerprint(token);
        let mut found = None;
        for (key, user) in &self.lines {
            let difference = key.iter().zip(&wanted).fold(0u8, |all, (a, b)| all | (a ^ b));
            if std::hint::black_box(difference) == 0 {
                found = Some(user);
            }
        }
        found
    }
}

fn fingerprint(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    out
}

/// The records of a CSV text with the line each begins on, by the rules of Go's `encoding/csv`: empty lines are skipped,
/// quoted fields may hold commas, doubled quotes and line breaks.
fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, TokenFileError> {
    let mut out = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('\n').or_else(|| rest.strip_prefix("\r\n")) {
            (rest, line) = (after, line + 1);
            continue;
        }
        let start = line;
        let mut record = Vec::new();
        loop {
            let (field, after) = field(rest, &mut line)?;
            record.push(field);
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = end_of_line(after).ok_or(TokenFileError::OpenQuote { line })?;
                    line += 1;
                    break;
                }
            }
        }
        out.push((start, record));
    }
    Ok(out)
}

fn end_of_line(rest: &str) -> Option<&str> {
    if rest.is_empty() || rest == "\r" {
        Some("")
    } else {
        rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix('\n'))
    }
}

/// One field, and what follows it.
fn field<'a>(text: &'a str, line: &mut usize) -> Result<(String, &'a str), TokenFileError> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find([',', '\n']).unwrap_or(text.len());
        let raw = &text[..end];
        let plain = raw.strip_suffix('\r').filter(|_| !text[end..].starts_with(',')).unwrap_or(raw);
        if plain.contains('"') {
            return Err(TokenFileError::BareQuote { line: *line });
        }
        return Ok((plain.to_owned(), &text[plain.len()..]));
    };
    let (mut out, start) = (String::new(), *line);
    loop {
        let end = rest.find('"').ok_or(TokenFileError::OpenQuote { line: start })?;
        out.push_str(&rest[..end]);
        *line += rest[..end].matches('\n').count();
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                out.push('"');
                rest = more;
            }
            None => return Ok((out, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::identity::AUTHENTICATED;

    #[test]
    fn a_token_finds_its_user_and_nothing_else_does() {
        let file =
            TokenFile::parse(b"s3cret,jane,1,\"dev,ops\"\r\n\n\"with \"\"quote\"\"\",joe,2\nlast,eve,\"3\"").unwrap();
        let jane = file.find("s3cret").unwrap();
        assert_eq!((jane.name.as_str(), jane.uid.as_str()), ("jane", "1"));
        assert_eq!(jane.groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(file.find("with \"quote\"").unwrap().name, "joe");
        assert_eq!(file.find("last").unwrap().groups, [AUTHENTICATED]);
        for wrong in ["", "s3cre", "s3cret ", "S3CRET", "jane"] {
            assert_eq!(file.find(wrong), None, "{wrong:?}");
        }
        assert!(file.warnings.is_empty());
    }

    #[test]
    fn an_error_names_its_line() {
        let error = |text: &str| TokenFile::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            error("a,b,c\n\na,b\n"),
            "line 3: must have at least 3 columns (token, user name, user uid), found 2"
        );
        assert!(error("a,b,c\nx,\"y,z\n").starts_with("line 2:"));
        assert!(error("a,b,c\nx,y\"y,z\n").starts_with("line 2:"));
        assert!(error("\"a\nb\",c,d\nx,\"y\"y,z\n").starts_with("line 3:"));
        assert!(error("a,b,c\nt,,1\n").starts_with("line 2: the user name"));
        assert_eq!(TokenFile::parse(b"a,b,c\n\xff").unwrap_err(), TokenFileError::NotUtf8 { line: 2 });
    }

    #[test]
    fn empty_tokens_are_skipped_and_a_repeated_token_belongs_to_its_last_line() {
        let file = TokenFile::parse(b",nobody,0\nt,first,1\nt,second,2\n").unwrap();
        assert_eq!(file.find(""), None);
        assert_eq!(file.find("t").unwrap().name, "second");
        assert_eq!(file.warnings.len(), 2);
    }

    #[test]
    fn printing_the_file_shows_no_token() {
        assert_eq!(format!("{:?}", TokenFile::parse(b"s3cret,jane,1").unwrap()), "TokenFile(1 tokens)");
    }
}
