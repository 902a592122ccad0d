//! Where the SMB client's callbacks have the message whose reply came.

use crate::layout::Layout;

/// Which argument of its callbacks the message is: the first, or the one behind the server.
#[must_use]
pub fn message_argument(layout: &Layout) -> Option<u8> {
    let arguments = layout.functions.get("smb2_readv_callback")?;
    let is_message = |argument: &crate::btf::Arg| argument.type_name == "mid_q_entry";
    let place = arguments.iter().position(is_message)?;
    u8::try_from(place).ok().filter(|place| *place < 2)
}
