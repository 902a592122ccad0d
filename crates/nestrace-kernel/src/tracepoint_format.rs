//! Fields of a classic tracepoint, from the text of tracefs' `events/SYSTEM/NAME/format`.

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatField {
    /// Its name.
    pub name: String,
    /// Its type in C, as printed: `char[16]`, `unsigned int`, `__data_loc char[]`.
    pub type_name: String,
    /// Offset in bytes from the start of the record.
    pub byte_offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Whether it is signed.
    pub is_signed: bool,
}

/// The fields of a format file in their order, the common ones included. Lines that are no fields,
/// or that cannot be understood, are passed over.
#[must_use]
pub fn fields(format: &str) -> Vec<FormatField> {
    format.lines().filter_map(field).collect()
}

/// `field:char rwbs[8]; offset:34; size:8; signed:1;`, with tabs
fn field(line: &str) -> Option<FormatField> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';');
    let declaration = parts.next()?;
    let mut number =
        |label: &str| -> Option<u32> { parts.next()?.trim().strip_prefix(label)?.parse().ok() };
    let (byte_offset, size, signed) = (number("offset:")?, number("size:")?, number("signed:")?);
    let (declared, array) = match declaration.find('[') {
        // `__data_loc char[] name` carries the brackets at the type.
        Some(at) if !declaration.get(at..)?.contains(' ') => declaration.split_at(at),
        _ => (declaration, ""),
    };
    let (type_name, name) = declared.rsplit_once(' ')?;
    let stars = name.len().checked_sub(name.trim_start_matches('*').len())?;
    let (stars, name) = name.split_at(stars);
    Some(FormatField {
        name: name.to_owned(),
        type_name: format!("{type_name}{stars}{array}"),
        byte_offset,
        size,
        is_signed: signed == 1,
    })
}

#[cfg(test)]
mod tests {
    use super::{FormatField, fields};

    fn check(
        line: &str,
        name: &str,
        type_name: &str,
        byte_offset: u32,
        size: u32,
        is_signed: bool,
    ) {
        let (name, type_name) = (name.to_owned(), type_name.to_owned());
        let expected = FormatField {
            name,
            type_name,
            byte_offset,
            size,
            is_signed,
        };
        assert_eq!(fields(line), [expected], "{line}");
    }

    #[test]
    fn forms_of_a_field() {
        let line = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;";
        check(line, "common_type", "unsigned short", 0, 2, false);
        let line = "\tfield:char rwbs[10];\toffset:34;\tsize:10;\tsigned:1;";
        check(line, "rwbs", "char[10]", 34, 10, true);
        let line = "\tfield:__data_loc char[] cmd;\toffset:60;\tsize:4;\tsigned:1;";
        check(line, "cmd", "__data_loc char[]", 60, 4, true);
        let line = "\tfield:struct file *file;\toffset:8;\tsize:8;\tsigned:0;";
        check(line, "file", "struct file*", 8, 8, false);
    }

    #[test]
    fn what_is_no_field() {
        let text = "name: block_rq_issue\nID: 1290\nformat:\n\nprint fmt: \"%d\", REC->dev\n\
                    field:int\nfield:;offset:1;size:2;signed:0;\nfield:int a;offset:x;size:2;signed:0;\n";
        assert_eq!(fields(text), []);
    }
}
