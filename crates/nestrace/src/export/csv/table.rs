//! Rows of a table, RFC 4180: a header, CRLF, and quotes where a field needs them.

use std::fmt::{Display, Write as _};
use std::path::Path;

use super::super::new_file::NewFile;
use crate::exit::Failure;

/// A table that is being written.
pub struct Table {
    file: NewFile,
    line: String,
    rows: u64,
}

impl Table {
    /// Begins with the header.
    pub fn create<'a>(
        file: NewFile,
        columns: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Failure> {
        let mut table = Self {
            file,
            line: String::new(),
            rows: 0,
        };
        columns.into_iter().for_each(|column| table.text(column));
        table.end()?;
        table.rows = 0;
        Ok(table)
    }

    /// A field that may hold anything.
    pub fn text(&mut self, text: &str) {
        // A spreadsheet would take it for a formula, and processes and guests choose their names.
        let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
        let quoted = text.contains([',', '"', '\r', '\n']);
        if quoted {
            self.line.push('"');
        }
        if formula {
            self.line.push('\'');
        }
        match text.contains('"') {
            true => self.line.push_str(&text.replace('"', "\"\"")),
            false => self.line.push_str(text),
        }
        if quoted {
            self.line.push('"');
        }
        self.line.push(',');
    }

    /// A number.
    pub fn number(&mut self, number: impl Display) {
        // Writing into a String cannot fail.
        let _ = write!(self.line, "{number},");
    }

    /// A number that may not be known: an empty field.
    pub fn known(&mut self, number: Option<impl Display>) {
        match number {
            Some(number) => self.number(number),
            None => self.line.push(','),
        }
    }

    /// The row is whole.
    pub fn end(&mut self) -> Result<(), Failure> {
        self.line.pop();
        self.line.push_str("\r\n");
        self.rows += 1;
        let written = self.file.put(self.line.as_bytes());
        self.line.clear();
        written
    }

    /// Rows without the header.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The file's name.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file appears.
    pub fn finish(self) -> Result<(), Failure> {
        self.file.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fields: &[&str]) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.csv");
        let file = NewFile::create(&path, false).expect("there is nothing");
        let mut table = Table::create(file, ["a", "b"]).expect("there is room");
        fields.iter().for_each(|field| table.text(field));
        table.end().expect("there is room");
        assert_eq!(table.rows(), 1);
        table.finish().expect("there is room");
        let text = std::fs::read_to_string(&path).expect("it is there");
        text.strip_prefix("a,b\r\n").expect("a header").to_owned()
    }

    #[test]
    fn fields_are_quoted_where_they_need_it() {
        for (fields, expected) in [
            (["fio", "4096"], "fio,4096\r\n"),
            (["", ""], ",\r\n"),
            (["a,b", "c"], "\"a,b\",c\r\n"),
            (["say \"x\"", "a\nb"], "\"say \"\"x\"\"\",\"a\nb\"\r\n"),
            (["=cmd()", "-1"], "'=cmd(),'-1\r\n"),
            (["=\"x\"", "ü"], "\"'=\"\"x\"\"\",ü\r\n"),
        ] {
            assert_eq!(line(&fields), expected);
        }
    }
}
