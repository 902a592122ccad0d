//! The columns of a stream: one list gives the Arrow schema, the writer's buffers and the
//! reader's slices.

use arrow_buffer::{MutableBuffer, ToByteSlice};
use arrow_schema::DataType;

use crate::Event;

/// One column of a stream: non-null, an unsigned little-endian integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, which is the name of the field in [`Event`].
    pub name: &'static str,
    /// Its Arrow type.
    pub data_type: DataType,
    /// Bytes of one value.
    pub width: usize,
}

/// The Arrow type of a Rust integer.
trait ColumnType {
    const DATA_TYPE: DataType;
}
impl ColumnType for u8 {
    const DATA_TYPE: DataType = DataType::UInt8;
}
impl ColumnType for u16 {
    const DATA_TYPE: DataType = DataType::UInt16;
}
impl ColumnType for u32 {
    const DATA_TYPE: DataType = DataType::UInt32;
}
impl ColumnType for u64 {
    const DATA_TYPE: DataType = DataType::UInt64;
}

/// Declares the columns once, in the order in which they are stored.
macro_rules! columns {
    ($($(#[doc = $doc:literal])+ $position:literal $name:ident: $type:ident,)+) => {
        /// Every column that this release writes, in the order of the schema.
        pub const COLUMNS: &[Column] = &[$(Column {
            name: stringify!($name),
            data_type: <$type as ColumnType>::DATA_TYPE,
            width: size_of::<$type>(),
        },)+];

        /// The rows of a batch as columns, all of the same length.
        #[derive(Clone, Copy, Debug)]
        pub struct Columns<'a> {
            $($(#[doc = $doc])+ pub $name: &'a [$type],)+
        }

        impl<'a> Columns<'a> {
            /// Reads decoded buffers, which stand in the order of [`COLUMNS`].
            pub(crate) fn of(buffers: &'a [MutableBuffer; COLUMNS.len()]) -> Self {
                Self { $($name: buffers[$position].typed_data::<$type>(),)+ }
            }

            /// One row as an [`Event`], or `None` past the end.
            #[must_use]
            pub fn get(&self, row: usize) -> Option<Event> {
                Some(Event { $($name: *self.$name.get(row)?,)+ })
            }

            /// Appends the rows of `range` (cut to what is there) to `rows`, column by column.
            pub(crate) fn append_rows(&self, range: std::ops::Range<usize>, rows: &mut Vec<Event>) {
                let end = range.end.min(self.ts_ns.len());
                let start = range.start.min(end);
                let first = rows.len();
                rows.resize(first + (end - start), Event::default());
                let rows = &mut rows[first..];
                $(for (row, value) in rows.iter_mut().zip(&self.$name[start..end]) {
                    row.$name = *value;
                })+
            }
        }

        /// Rows that wait to be written, as columns.
        #[derive(Debug, Default)]
        pub(crate) struct PendingColumns {
            $($name: Vec<$type>,)+
        }

        impl PendingColumns {
            /// Appends rows. Column by column over a block that fits the cache: a row at a time
            /// would keep nineteen write streams open.
            pub(crate) fn append(&mut self, rows: &[Event]) {
                $(self.$name.extend(rows.iter().map(|row| row.$name));)+
            }

            /// Forgets the rows and keeps the memory.
            pub(crate) fn clear(&mut self) {
                $(self.$name.clear();)+
            }

            /// The columns as bytes, in the order of [`COLUMNS`].
            pub(crate) fn as_bytes(&self) -> [&[u8]; COLUMNS.len()] {
                [$(self.$name.to_byte_slice(),)+]
            }

            /// The stamps.
            pub(crate) fn ts_ns(&self) -> &[u64] {
                &self.ts_ns
            }
        }
    };
}

columns! {
    /// `CLOCK_MONOTONIC` of the recording machine, nanoseconds.
    0 ts_ns: u64,
    /// Number of a [`crate::Kind`].
    1 kind: u8,
    /// Small extra fact of the kind.
    2 sub: u8,
    /// Processor.
    3 cpu: u16,
    /// Thread id.
    4 tid: u32,
    /// Device, or the guest's index.
    5 dev: u32,
    /// The identity that the event is about.
    6 object: u64,
    /// A second identity.
    7 related: u64,
    /// Byte offset on the device or in the file.
    8 offset: u64,
    /// Length in bytes.
    9 bytes: u64,
    /// Operation and flags.
    10 flags: u32,
    /// Inode of the owner.
    11 inode: u64,
    /// Byte offset in the owner.
    12 file_offset: u64,
    /// Device of the owner's super block.
    13 owner_dev: u32,
    /// The kernel's kiocb.
    14 iocb: u64,
    /// What the kiocb was made from.
    15 origin: u64,
    /// Index into [`crate::end_io::SYMBOLS`].
    16 end_io: u8,
    /// cgroup id.
    17 cgroup: u64,
    /// Priority, status or errno, by kind.
    18 aux: u32,
}
