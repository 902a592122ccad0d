//! HTML as it grows.

use nestrace_trace::is_printable;

use super::super::plots::Hue;
use crate::table::Table;

/// What the page looks like.
const STYLE: &str = include_str!("style.css");
/// Nothing is fetched and nothing is run, whatever a name in the recording says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The page so far.
pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn new(path: &str) -> Self {
        let title = if path.is_empty() { "recording" } else { path };
        let title = escape(title);
        let text = format!(
            "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<title>{title} – nestrace</title>\n\
             <meta name=generator content=nestrace>\n\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
             <meta name=color-scheme content=\"light dark\">\n\
             <meta http-equiv=Content-Security-Policy content=\"{POLICY}\">\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n"
        );
        Self { text }
    }

    /// HTML as it is.
    pub(super) fn raw(&mut self, html: &str) {
        self.text.push_str(html);
        self.text.push('\n');
    }

    /// An element with a text in it: `p`, or with attributes `p class=facts`.
    pub(super) fn element(&mut self, tag: &str, text: &str) {
        let name = tag.split(' ').next().unwrap_or(tag);
        self.raw(&format!("<{tag}>{}</{name}>", prose(text)));
    }

    pub(super) fn section(&mut self, id: &str, title: &str) {
        self.raw(&format!("<section id={id}>"));
        self.element("h2", title);
    }

    pub(super) fn end_section(&mut self) {
        self.raw("</section>");
    }

    /// A table that scrolls by itself where it is too wide. The first column is text, the rest numbers.
    pub(super) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.raw("<div class=scroll><table>");
        let head: String = head
            .iter()
            .map(|cell| format!("<th>{}</th>", escape(cell)))
            .collect();
        self.raw(&format!("<thead><tr>{head}</tr></thead><tbody>"));
        for row in rows {
            let cells: String = row
                .iter()
                .map(|cell| format!("<td>{}</td>", escape(cell)))
                .collect();
            self.raw(&format!("<tr>{cells}</tr>"));
        }
        self.raw("</tbody></table></div>");
    }

    /// A table of the text's, folded, with what else is to be said of it.
    pub(super) fn folded(&mut self, title: &str, table: &Table, remarks: &[String]) {
        if table.is_empty() && remarks.is_empty() {
            return;
        }
        self.raw("<details>");
        self.element("summary", title);
        if !table.is_empty() {
            let head: Vec<&str> = table.header().iter().map(String::as_str).collect();
            self.table(&head, table.rows());
        }
        remarks
            .iter()
            .for_each(|it| self.element("p class=note", it));
        self.raw("</details>");
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</body>\n</html>\n");
        self.text
    }
}

/// A bar of a share, in the colour of a layer.
pub(super) fn bar(share: f64, hue: Hue) -> String {
    let percent = (share * 100.0).clamp(0.0, 100.0);
    format!(
        "<i class=bar style=\"width:{percent:.1}%;background:var({})\"></i>",
        hue.variable()
    )
}

/// A sentence: a number stays with its percent sign, and commands in backticks are set as such.
pub(super) fn prose(text: &str) -> String {
    let text = escape(text).replace(" %", "\u{a0}%");
    let mut parts = text.split('`');
    let mut html = parts.next().unwrap_or_default().to_owned();
    while let Some(code) = parts.next() {
        match parts.next() {
            Some(rest) => html.push_str(&format!("<code>{code}</code>{rest}")),
            None => html.push_str(&format!("`{code}")),
        }
    }
    html
}

/// A text in HTML, or in a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c != '\n' && !is_printable(c) => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_percents() {
        assert_eq!(
            prose("5 % of `a < b` and `"),
            "5\u{a0}% of <code>a &lt; b</code> and `"
        );
    }

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escape("<b a='\"&\u{7}"), "&lt;b a=&#39;&quot;&amp;\u{fffd}");
    }
}
