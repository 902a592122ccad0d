//! A page and what pages are built of. Texts are escaped by `html!`, unless they are marked as HTML.

use maud::{Markup, PreEscaped, html};
use nestrace_trace::is_printable;

use super::super::plots::Hue;
use crate::table::Table;

/// What the page looks like.
const STYLE: &str = include_str!("style.css");
/// Nothing is fetched and nothing is run, whatever a name in the recording says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// What a page of nestrace has before its title.
pub const GENERATOR: &str = r#"<meta name="generator" content="nestrace">"#;

/// The whole file. Characters that cannot be printed are replaced, wherever a recording put them.
pub(super) fn document(title: &str, body: &Markup) -> String {
    let title = if title.is_empty() { "recording" } else { title };
    let page = html! {
        (PreEscaped("<!doctype html>\n"))
        html lang="en" {
            head {
                meta charset="utf-8";
                (PreEscaped(GENERATOR))
                title { (title) " – nestrace" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    let printed = |c: char| match c {
        '\n' => c,
        c if is_printable(c) => c,
        _ => char::REPLACEMENT_CHARACTER,
    };
    let mut text: String = page.into_string().chars().map(printed).collect();
    text.push('\n');
    text
}

/// A part of the page with a heading.
pub(super) fn section(id: &str, title: &str, body: &Markup) -> Markup {
    html! {
        section id=(id) {
            h2 { (prose(title)) }
            (body)
        }
    }
}

/// A sentence or several.
pub(super) fn paragraph(text: &str) -> Markup {
    html! { p { (prose(text)) } }
}

/// A paragraph for each.
pub(super) fn paragraphs<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Markup {
    html! { @for text in texts { (paragraph(text.as_ref())) } }
}

/// A remark in small letters.
pub(super) fn note(text: &str) -> Markup {
    html! { p class="note" { (prose(text)) } }
}

/// Facts under a heading, in small letters.
pub(super) fn facts(text: &str) -> Markup {
    html! { p class="facts" { (prose(text)) } }
}

/// Lines with dots before them; nothing where there is none.
pub(super) fn list<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> Markup {
    let mut lines = lines.into_iter().peekable();
    html! {
        @if lines.peek().is_some() {
            ul { @for line in lines { li { (prose(line.as_ref())) } } }
        }
    }
}

/// What was not listed, and where it is.
pub(super) fn more(n_all: usize, n_shown: usize) -> Markup {
    let left = n_all.saturating_sub(n_shown);
    html! {
        @if left > 0 { (paragraph(&format!("{left} more: see --format json."))) }
    }
}

/// The foot of a page about recordings: the command that prints every number.
pub(super) fn footer(command: &str) -> Markup {
    html! { footer { p { "Every number: " code { (command) } } } }
}

/// A table that scrolls by itself where it is too wide. The first column is text, the rest numbers.
pub(super) fn table(head: &[impl AsRef<str>], rows: &[Vec<String>]) -> Markup {
    html! {
        div class="scroll" {
            table {
                thead { tr { @for cell in head { th { (cell.as_ref()) } } } }
                tbody {
                    @for row in rows { tr { @for cell in row { td { (cell) } } } }
                }
            }
        }
    }
}

/// What is seen on a click.
pub(super) fn details(title: &str, body: &Markup) -> Markup {
    html! {
        details {
            summary { (prose(title)) }
            (body)
        }
    }
}

/// A table of the text's, folded, with what else is to be said of it.
pub(super) fn folded(title: &str, of_text: &Table, remarks: &[String]) -> Markup {
    if of_text.is_empty() && remarks.is_empty() {
        return Markup::default();
    }
    let body = html! {
        @if !of_text.is_empty() { (table(of_text.header(), of_text.rows())) }
        @for remark in remarks { (note(remark)) }
    };
    details(title, &body)
}

/// A bar of a share, in the colour of a layer.
pub(super) fn bar(share: f64, hue: Hue) -> Markup {
    let percent = (share * 100.0).clamp(0.0, 100.0);
    let style = format!("width:{percent:.1}%;background:var({})", hue.variable());
    html! { i class="bar" style=(style) {} }
}

/// A sentence: a number stays with its percent sign, and commands in backticks are set as such.
pub(super) fn prose(text: &str) -> Markup {
    let text = text.replace(" %", "\u{a0}%");
    let parts: Vec<&str> = text.split('`').collect();
    let n_ticks = parts.len() - 1;
    html! {
        @for (place, part) in parts.into_iter().enumerate() {
            @if place % 2 == 0 {
                (part)
            } @else if place < n_ticks {
                code { (part) }
            } @else {
                // A single backtick.
                "`" (part)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_percents() {
        for (text, expected) in [
            (
                "5 % of `a < b` and `",
                "5\u{a0}% of <code>a &lt; b</code> and `",
            ),
            ("`a` and `b`", "<code>a</code> and <code>b</code>"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(prose(text).into_string(), expected);
        }
    }

    /// Wherever a name may stand: in text, in a cell, in an attribute, in a title.
    #[test]
    fn names_cannot_become_markup() {
        let name = "\"><b a='\"&\u{7}";
        let body = html! {
            (section(name, name, &facts(name)))
            (paragraphs([name]))
            (note(name))
            (list([name]))
            (table(&[name], &[vec![name.to_owned()]]))
            (details(name, &prose(name)))
            (footer(name))
        };
        let page = document(name, &body);
        assert_eq!(page.matches("&lt;b a=").count(), 12, "{page}");
        assert!(!page.contains("<b ") && !page.contains('\u{7}'));
        assert!(page.contains("id=\"&quot;&gt;&lt;b a='&quot;&amp;\u{fffd}\""));
    }
}
