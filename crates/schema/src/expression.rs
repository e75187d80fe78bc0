//! CEL expressions that people wrote: parsed without trusting them.
//!
//! The generated parser underneath takes tens of kilobytes of stack for each bracket, panics on some inputs, and evaluation
//! recurses as deep as the expression does; an expression of a few dozen bytes could otherwise end the process. So parsing has
//! a thread of its own with a large stack, and what nests too deep to be evaluated anywhere is refused.

use std::panic::catch_unwind;

use kube_cel::cel::parser::{Expression, Parser};

use crate::structural::children;

/// Evaluating this deep fits in a thread's usual 2 MB, also without optimization.
pub const MAX_DEPTH: usize = 30;
/// What the parser's stack suffices for, however the expression nests.
pub const MAX_BYTES: usize = 8 * 1024;
/// Reserved, not used: pages are taken as the parser needs them.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// The expression, or the compiler's words on why it is none.
pub fn parse(source: &str) -> Result<Expression, String> {
    if source.len() > MAX_BYTES {
        return Err(format!("ERROR: <input>:1:1: an expression may have at most {MAX_BYTES} bytes"));
    }
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || parse_here(source));
        match parser.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(syntax_error()),
            Err(error) => Err(format!("ERROR: <input>:1:1: no memory to parse the expression: {error}")),
        }
    })
}

fn parse_here(source: &str) -> Result<Expression, String> {
    match catch_unwind(|| Parser::new().enable_optional_syntax(true).parse(source)) {
        Ok(Ok(expression)) if depth(&expression) > MAX_DEPTH => {
            Err(format!("ERROR: <input>:1:1: an expression may nest at most {MAX_DEPTH} levels deep"))
        }
        Ok(Ok(expression)) => Ok(expression),
        Ok(Err(error)) => Err(error.to_string().replace("\n| ", "\n | ")),
        Err(_) => Err(syntax_error()),
    }
}

fn syntax_error() -> String {
    "ERROR: <input>:1:1: Syntax error".to_owned()
}

fn depth(expression: &Expression) -> usize {
    let mut below = 0;
    children(expression, &mut |child| below = below.max(depth(child)));
    below + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_nests_without_end_is_refused() {
        for (open, close) in [
            ("(", ")"),
            ("(", ""),
            ("[", "]"),
            ("{'a':", "}"),
            ("!(", ")"),
            ("", ".a"),
            ("", "[0]"),
            ("", "+1"),
            ("", "<1"),
            ("", ".size()"),
            ("size(", ")"),
            ("[1].all(x,", ")"),
            ("true?1:", ""),
        ] {
            for n in [200, 1000, 4000, 20_000] {
                let source = format!("{}a{}", open.repeat(n), close.repeat(n));
                assert!(parse(&source).is_err(), "{open}{close} {n}");
            }
        }
    }

    #[test]
    fn what_people_write_is_accepted() {
        let long = vec!["self.a == 'x'"; 300].join(" || ");
        for source in [
            "self.replicas <= self.maxReplicas",
            "object.spec.template.spec.containers.all(c, has(c.resources) && c.resources.limits.all(k, k in ['cpu', 'memory']))",
            "'a' + self.b + 'c' + self.d + 'e' + self.f + 'g' + self.h",
            "((((((((1))))))))",
            long.as_str(),
        ] {
            assert!(parse(source).is_ok(), "{source}");
        }
    }
}
