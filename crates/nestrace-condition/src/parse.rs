//! A condition from its text.
//!
//! ```text
//! expression = all, { "or", all }
//! all        = term, { "and", term }
//! term       = "(", expression, ")" | comparison
//! comparison = statistic, "(", operation, [ ",", layer ], ")", relation, limit, [ "for", time ]
//! ```

use std::fmt;

use winnow::ascii::multispace0;
use winnow::combinator::opt;
use winnow::error::{AddContext, ContextError, ErrMode, StrContext, StrContextValue};
use winnow::prelude::*;
use winnow::stream::Stream;
use winnow::token::take_while;

use crate::expression::{Comparison, Expression, Layer, Limit, Relation, Statistic, Subject};

/// Characters of a condition.
pub const MAX_TEXT: usize = 1000;
/// Comparisons of a condition: each has a window of its own.
pub const MAX_COMPARISONS: usize = 16;
/// The longest window, in nanoseconds.
const MAX_WINDOW_NS: f64 = 3600e9;
/// The longest time of a limit, in nanoseconds.
const MAX_TIME_NS: f64 = 1e6 * 1e9;
/// Parentheses within each other.
const MAX_DEPTH: usize = 32;

const A_STATISTIC: &str = "p50, p99, max, mean, count, rate or oldest, or an opening parenthesis";
const AN_OPERATION: &str = "an operation: read, write, flush, discard or any";
const A_LAYER: &str = "a layer: guest, qemu, file_io, host_queue or device";
const A_COMMA: &str = "a comma and a layer, or a closing parenthesis";
const A_RELATION: &str = ">, >=, < or <=";
const A_TIME: &str = "a time with its unit, such as 100ms (ns, us, ms, s)";
const A_COUNT: &str = "a whole number of requests, such as 20";
const A_RATE: &str = "a number of requests a second, such as 20 or 20/s";
const A_WINDOW: &str = "a time with its unit from 100ms to 3600s, such as 2s";
const A_NEXT: &str = "`for` and a time, `and`, `or`, or the end";
const A_NEXT_WITHIN: &str = "`for` and a time, `and`, `or`, or a closing parenthesis";
const A_NEXT_AFTER: &str = "`and`, `or`, or the end (`for` belongs to a single comparison)";
const TOO_DEEP: &str = "fewer parentheses within each other: 32 at most";
const TOO_MANY: &str = "fewer comparisons: 16 at most";
const TOO_LONG: &str = "a shorter condition: 1000 characters at most";

/// Why a text is no condition, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    text: String,
    at: usize,
    expected: &'static str,
}

impl ParseError {
    /// The character at which it is wrong, counted from 0.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// What may stand there, in words.
    #[must_use]
    pub const fn expected(&self) -> &'static str {
        self.expected
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, at, expected } = self;
        writeln!(f, "the condition cannot be read at character {}:", at + 1)?;
        writeln!(f, "  {text}")?;
        write!(f, "  {:at$}^ expected {expected}", "")
    }
}

impl std::error::Error for ParseError {}

impl Expression {
    /// Reads a condition.
    ///
    /// # Errors
    /// [`ParseError`]: its message is the text with a caret below the place, and what may stand there.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let shown = || text.replace(|c: char| c.is_control(), " ");
        let wrong = |offset: usize, expected| ParseError {
            text: shown(),
            at: text
                .get(..offset)
                .map_or(0, |before| before.chars().count()),
            expected,
        };
        if text.chars().count() > MAX_TEXT {
            let shown = shown().chars().take(60).collect::<String>() + " …";
            return Err(ParseError {
                text: shown,
                at: 0,
                expected: TOO_LONG,
            });
        }
        let parsed = (|input: &mut &str| whole(input)).parse(text);
        let expression = parsed.map_err(|error| {
            let expected = expected_in(error.inner()).unwrap_or(A_NEXT);
            let before = text.get(..error.offset()).unwrap_or_default();
            let expected = match before.trim_end().ends_with(')') {
                true if expected == A_NEXT => A_NEXT_AFTER,
                _ => expected,
            };
            wrong(error.offset(), expected)
        })?;
        if expression.comparisons().len() > MAX_COMPARISONS {
            return Err(wrong(0, TOO_MANY));
        }
        Ok(expression)
    }
}

fn expected_in(error: &ContextError) -> Option<&'static str> {
    error.context().find_map(|context| match context {
        StrContext::Expected(StrContextValue::Description(words)) => Some(*words),
        _ => None,
    })
}

/// The parse ends here, and this is what may stand here.
fn wrong<T>(input: &&str, expected: &'static str) -> ModalResult<T> {
    let context = StrContext::Expected(StrContextValue::Description(expected));
    let error = ContextError::new().add_context(input, &input.checkpoint(), context);
    Err(ErrMode::Cut(error))
}

fn whole(input: &mut &str) -> ModalResult<Expression> {
    let expression = any_of(input, 0)?;
    if input.is_empty() {
        Ok(expression)
    } else {
        wrong(input, after(&expression, false))
    }
}

/// What may stand after a part that is complete.
fn after(expression: &Expression, within: bool) -> &'static str {
    let last = match expression {
        Expression::Comparison(comparison) => Some(comparison),
        Expression::All(parts) | Expression::Any(parts) => match parts.last() {
            Some(Expression::Comparison(comparison)) => Some(comparison),
            _ => None,
        },
    };
    match (last, within) {
        (_, true) => A_NEXT_WITHIN,
        (Some(comparison), false) if comparison.window_ns.is_none() => A_NEXT,
        (_, false) => A_NEXT_AFTER,
    }
}

fn any_of(input: &mut &str, depth: usize) -> ModalResult<Expression> {
    joined(input, "or", Expression::Any, |input| all_of(input, depth))
}

fn all_of(input: &mut &str, depth: usize) -> ModalResult<Expression> {
    joined(input, "and", Expression::All, |input| term(input, depth))
}

/// One part, or several with this word between them.
fn joined(
    input: &mut &str,
    word: &str,
    join: impl Fn(Vec<Expression>) -> Expression,
    mut part: impl FnMut(&mut &str) -> ModalResult<Expression>,
) -> ModalResult<Expression> {
    let first = part(input)?;
    let mut parts = vec![first];
    while takes_word(input, word)? {
        parts.push(part(input)?);
    }
    Ok(match parts.len() {
        1 => parts.remove(0),
        _ => join(parts),
    })
}

fn term(input: &mut &str, depth: usize) -> ModalResult<Expression> {
    multispace0.parse_next(input)?;
    if !takes(input, "(")? {
        return comparison(input).map(Expression::Comparison);
    }
    if depth >= MAX_DEPTH {
        return wrong(input, TOO_DEEP);
    }
    let inner = any_of(input, depth + 1)?;
    if takes(input, ")")? {
        Ok(inner)
    } else {
        wrong(input, after(&inner, true))
    }
}

fn comparison(input: &mut &str) -> ModalResult<Comparison> {
    let statistic = one_of(input, Statistic::ALL, A_STATISTIC)?;
    if !takes(input, "(")? {
        return wrong(input, "an opening parenthesis");
    }
    let op = one_of(input, Subject::OPS, AN_OPERATION)?;
    let layer = match takes(input, ",")? {
        true => Some(one_of(input, Layer::ALL, A_LAYER)?),
        false => None,
    };
    if !takes(input, ")")? {
        let expected = match layer {
            None => A_COMMA,
            Some(_) => "a closing parenthesis",
        };
        return wrong(input, expected);
    }
    let relation = relation(input)?;
    let limit = limit(input, statistic)?;
    let window_ns = match takes_word(input, "for")? {
        true => Some(window(input)?),
        false => None,
    };
    Ok(Comparison {
        statistic,
        subject: Subject { op, layer },
        relation,
        limit,
        window_ns,
    })
}

fn relation(input: &mut &str) -> ModalResult<Relation> {
    for (name, relation) in Relation::ALL {
        if takes(input, name)? {
            return Ok(*relation);
        }
    }
    wrong(input, A_RELATION)
}

fn limit(input: &mut &str, statistic: Statistic) -> ModalResult<Limit> {
    match statistic {
        Statistic::Count => count(input).map(Limit::Count),
        Statistic::Rate => rate(input).map(Limit::Rate),
        _ => time(input, A_TIME, 0.0..=MAX_TIME_NS).map(Limit::Time),
    }
}

fn window(input: &mut &str) -> ModalResult<u64> {
    time(input, A_WINDOW, 100e6..=MAX_WINDOW_NS)
}

fn time(
    input: &mut &str,
    expected: &'static str,
    allowed_ns: std::ops::RangeInclusive<f64>,
) -> ModalResult<u64> {
    let start = input.checkpoint();
    let value = number(input)?.unwrap_or(f64::NAN);
    let unit = letters(input)?;
    let unit_ns = match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => f64::NAN,
    };
    let ns = (value * unit_ns).round();
    if allowed_ns.contains(&ns) {
        return Ok(ns as u64);
    }
    input.reset(&start);
    wrong(input, expected)
}

fn count(input: &mut &str) -> ModalResult<u64> {
    let start = input.checkpoint();
    let value = number(input)?;
    match value.filter(|value| value.fract() == 0.0 && *value <= 1e15) {
        Some(value) if letters(input)?.is_empty() => Ok(value as u64),
        _ => {
            input.reset(&start);
            wrong(input, A_COUNT)
        }
    }
}

fn rate(input: &mut &str) -> ModalResult<f64> {
    let start = input.checkpoint();
    let value = number(input)?;
    opt("/s").parse_next(input)?;
    match value.filter(|value| *value <= 1e15) {
        Some(value) if letters(input)?.is_empty() => Ok(value),
        _ => {
            input.reset(&start);
            wrong(input, A_RATE)
        }
    }
}

/// A number without a sign; `None` where there is none.
fn number(input: &mut &str) -> ModalResult<Option<f64>> {
    let digits = take_while(0.., |c: char| c.is_ascii_digit() || c == '.').parse_next(input)?;
    Ok(digits.parse::<f64>().ok())
}

fn letters<'a>(input: &mut &'a str) -> ModalResult<&'a str> {
    take_while(0.., char::is_alphanumeric).parse_next(input)
}

/// A word of a table.
fn one_of<T: Copy>(
    input: &mut &str,
    table: &[(&'static str, T)],
    expected: &'static str,
) -> ModalResult<T> {
    multispace0.parse_next(input)?;
    let start = input.checkpoint();
    let word = take_while(0.., |c: char| c.is_alphanumeric() || c == '_').parse_next(input)?;
    if let Some((_, value)) = table.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    input.reset(&start);
    wrong(input, expected)
}

/// Passes over this sign and the spaces around it, if it is there.
fn takes(input: &mut &str, sign: &str) -> ModalResult<bool> {
    multispace0.parse_next(input)?;
    let found = opt(sign).parse_next(input)?.is_some();
    if found {
        multispace0.parse_next(input)?;
    }
    Ok(found)
}

/// The same of a word.
fn takes_word(input: &mut &str, word: &str) -> ModalResult<bool> {
    multispace0.parse_next(input)?;
    let start = input.checkpoint();
    if letters(input)? == word {
        multispace0.parse_next(input)?;
        return Ok(true);
    }
    input.reset(&start);
    Ok(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_what_is_meant() {
        for (text, shown) in [
            (
                "p99(write, guest) > 100ms for 2s",
                "p99(write, guest) > 100ms for 2s",
            ),
            ("  p50 ( any )>=1.5ms  ", "p50(any) >= 1.5ms"),
            ("count(flush,qemu)<20", "count(flush, qemu) < 20"),
            (
                "rate(read)<=100/s for 500ms",
                "rate(read) <= 100/s for 500ms",
            ),
            ("rate(read)<=0.5", "rate(read) <= 0.5/s"),
            ("max(discard, file_io)>10µs", "max(discard, file_io) > 10us"),
            ("oldest(any, device) > 1s", "oldest(any, device) > 1s"),
            (
                "mean(any, host_queue) > 1ns and p99(read) > 1s or count(any) > 3",
                "(mean(any, host_queue) > 1ns and p99(read) > 1s) or count(any) > 3",
            ),
            (
                "(max(read)>1s or max(write)>1s) and ((count(any)>1))",
                "(max(read) > 1s or max(write) > 1s) and count(any) > 1",
            ),
        ] {
            let expression = Expression::parse(text).unwrap();
            assert_eq!(expression.to_string(), shown);
            let again = Expression::parse(shown).unwrap();
            assert_eq!(again, expression, "{shown}");
        }
    }

    #[test]
    fn the_caret_stands_where_it_is_wrong() {
        for (text, at, expected) in [
            ("", 0, A_STATISTIC),
            ("   ", 3, A_STATISTIC),
            ("p98(write) > 1s", 0, A_STATISTIC),
            ("p99 write > 1s", 4, "an opening parenthesis"),
            ("p99(writes) > 1s", 4, AN_OPERATION),
            ("p99(write guest) > 1s", 10, A_COMMA),
            ("p99(write, host) > 1s", 11, A_LAYER),
            ("p99(write, guest > 1s", 17, "a closing parenthesis"),
            ("p99(write) = 1s", 11, A_RELATION),
            ("p99(write) > 100", 13, A_TIME),
            ("p99(write) > 100 ms", 13, A_TIME),
            ("p99(write) > -1ms", 13, A_TIME),
            ("p99(write) > 100min", 13, A_TIME),
            ("p99(write) > 1..5s", 13, A_TIME),
            ("count(write) > 100ms", 15, A_COUNT),
            ("count(write) > 1.5", 15, A_COUNT),
            ("rate(write) > 100ms", 14, A_RATE),
            ("p99(write) > 1s for", 19, A_WINDOW),
            ("p99(write) > 1s for 10ms", 20, A_WINDOW),
            ("p99(write) > 1s for 2h", 20, A_WINDOW),
            ("p99(write) > 1s 2s", 16, A_NEXT),
            ("p99(write) > 1s for 2s 3s", 23, A_NEXT_AFTER),
            ("p99(write) > 1s and", 19, A_STATISTIC),
            ("(p99(write) > 1s", 16, A_NEXT_WITHIN),
            (
                "(p99(write) > 1s or max(read) > 1s) for 2s",
                36,
                A_NEXT_AFTER,
            ),
            ("µ > 1s", 0, A_STATISTIC),
            ("max(read) > 5µs andor", 16, A_NEXT),
        ] {
            let error = Expression::parse(text).unwrap_err();
            assert_eq!((error.at(), error.expected()), (at, expected), "{text}");
        }
    }

    #[test]
    fn the_message_shows_text_place_and_what_may_stand_there() {
        let error = Expression::parse("p99(writes, guest) > 100ms").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the condition cannot be read at character 5:\n  \
             p99(writes, guest) > 100ms\n      \
             ^ expected an operation: read, write, flush, discard or any"
        );
    }

    #[test]
    fn a_condition_has_limits() {
        let one = "max(read) > 1s";
        let many = |n| vec![one; n].join(" or ");
        assert!(Expression::parse(&many(MAX_COMPARISONS)).is_ok());
        let error = Expression::parse(&many(MAX_COMPARISONS + 1)).unwrap_err();
        assert_eq!(error.expected(), TOO_MANY);
        let error = Expression::parse(&many(100)).unwrap_err();
        assert_eq!(error.expected(), TOO_LONG);
        let deep = |n: usize| format!("{}{one}{}", "(".repeat(n), ")".repeat(n));
        assert!(Expression::parse(&deep(MAX_DEPTH)).is_ok());
        let error = Expression::parse(&deep(MAX_DEPTH + 1)).unwrap_err();
        assert_eq!(error.expected(), TOO_DEEP);
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "[-p95maxcountrateoldest(),<>=.0-9µ \\PC]{0,60}") {
            if let Err(error) = Expression::parse(&text) {
                prop_assert!(error.at() <= text.chars().count());
            }
        }
    }
}
