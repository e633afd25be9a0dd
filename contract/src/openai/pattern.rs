//! Limits of regular expressions from strangers: what is longer or repeats more takes too long to follow.

use std::fmt;

use regex_syntax::ast::{Ast, GroupKind, RepetitionKind, RepetitionRange, Visitor, parse::ParserBuilder, visit};

/// Most characters of a regular expression.
pub const MAX_CHARS: usize = 1_024;
/// Most times that anything is repeated by a count, repetitions inside one another multiplied.
pub const MAX_REPEATS: u64 = 4_096;
/// Deepest nesting of groups, classes and repetitions.
const MAX_NESTING: u32 = 64;

/// Why a regular expression is refused, as the end of a sentence that begins with its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadPattern(String);

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks syntax (that of Rust's `regex` crate) and size of `pattern`.
pub(super) fn check(pattern: &str) -> Result<(), BadPattern> {
    let chars = pattern.chars().count();
    if chars > MAX_CHARS {
        return Err(BadPattern(format!("has {chars} characters; {MAX_CHARS} are the most of a regular expression")));
    }
    let parsed = ParserBuilder::new().nest_limit(MAX_NESTING).build().parse(pattern);
    let ast = parsed.map_err(|err| {
        let at = err.span().start.offset;
        BadPattern(format!("is no regular expression that is supported: at byte {at}: {}", err.kind()))
    })?;
    visit(&ast, Repeats { factors: Vec::new() })
}

/// Multiplies the counts of the repetitions that the visit is inside of.
struct Repeats {
    factors: Vec<u64>,
}

impl Visitor for Repeats {
    type Output = ();
    type Err = BadPattern;

    fn finish(self) -> Result<(), BadPattern> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), BadPattern> {
        match ast {
            Ast::Repetition(repetition) => {
                self.factors.push(count(&repetition.op.kind));
                let product = self.factors.iter().fold(1u64, |product, factor| product.saturating_mul(*factor));
                if product > MAX_REPEATS {
                    return Err(BadPattern(format!(
                        "repeats something {product} times, inner repetitions counted; {MAX_REPEATS} are the most"
                    )));
                }
            }
            // The engine would take such a group for a hidden end of the answer.
            Ast::Group(group) => match &group.kind {
                GroupKind::CaptureName { name, .. } if name.name == "stop" => {
                    return Err(BadPattern("has a group named `stop`: give it another name, or none".to_owned()));
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), BadPattern> {
        if matches!(ast, Ast::Repetition(_)) {
            self.factors.pop();
        }
        Ok(())
    }
}

/// How often the repetition writes its inside out.
fn count(kind: &RepetitionKind) -> u64 {
    let times = match kind {
        RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore | RepetitionKind::OneOrMore => 1,
        RepetitionKind::Range(RepetitionRange::Exactly(n) | RepetitionRange::AtLeast(n)) => *n,
        RepetitionKind::Range(RepetitionRange::Bounded(_, n)) => *n,
    };
    u64::from(times.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_repetitions_multiply_and_others_do_not() {
        for fine in ["", r"\d{1,4096}", "(a{64}){64}", "((a*)*)+?", "a{64}b{64}c{4096}", r"^\w+@\w+\.com$", "(?P<x>a)"]
        {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for (bad, why) in [
            ("a{4097}", "4097 times"),
            ("((a{64}){64}){2,}", "8192 times"),
            ("(a{0,5}){1000}", "5000 times"),
            ("(((((a{1000}){1000}){1000}){1000}){1000}){1000}){1000}", "unopened"),
            ("(?P<stop>a)", "`stop`"),
            ("(", "unclosed group"),
            ("a(?=b)", "look-around"),
            (r"(a)\1", "backreferences"),
        ] {
            let message = check(bad).unwrap_err().to_string();
            assert!(message.contains(why), "{bad}: {message}");
        }
        assert!(check(&"a".repeat(MAX_CHARS)).is_ok() && check(&"é".repeat(MAX_CHARS + 1)).is_err());
        assert!(check(&format!("{}a{}", "(".repeat(200), ")".repeat(200))).unwrap_err().0.contains("nest"));
    }
}
