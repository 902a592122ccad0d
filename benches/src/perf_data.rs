//! Counts what is in a `perf.data` file: perf itself would take longer to say it than to record it.

use std::io::{self, Read, Seek, SeekFrom};

/// `PERFILE2`, the file's magic.
const MAGIC: [u8; 8] = *b"PERFILE2";
/// Where the header has offset and size of the data.
const DATA_SECTION: u64 = 40;
/// `PERF_RECORD_*` of `linux/perf_event.h`.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;

/// Samples and losses of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfCounts {
    /// Samples that were kept.
    pub samples: u64,
    /// Samples that found no room.
    pub lost: u64,
}

/// Walks the records of `file`.
pub fn count(mut file: impl Read + Seek) -> io::Result<PerfCounts> {
    let mut magic = [0; 8];
    file.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not perf.data"));
    }
    file.seek(SeekFrom::Start(DATA_SECTION))?;
    let (offset, size) = (read_u64(&mut file)?, read_u64(&mut file)?);
    file.seek(SeekFrom::Start(offset))?;
    let mut data = io::BufReader::with_capacity(1 << 20, file.take(size));
    let mut counts = PerfCounts::default();
    let mut left = size;
    let mut record = Vec::new();
    while left > 0 {
        let mut header = [0; 8];
        data.read_exact(&mut header)?;
        let [a, b, c, d, _, _, low, high] = header;
        let length = u64::from(u16::from_le_bytes([low, high]));
        let body = length.checked_sub(8).filter(|_| length <= left);
        let body = body.ok_or(io::ErrorKind::InvalidData)?;
        record.resize(usize::try_from(body).unwrap_or(0), 0);
        data.read_exact(&mut record)?;
        left -= length;
        match u32::from_le_bytes([a, b, c, d]) {
            SAMPLE => counts.samples += 1,
            // An id stands before the number.
            LOST => counts.lost += read_u64(record.get(8..).unwrap_or_default())?,
            LOST_SAMPLES => counts.lost += read_u64(&record[..])?,
            _ => {}
        }
    }
    Ok(counts)
}

fn read_u64(mut from: impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u64]) -> Vec<u8> {
        let length = 8 + 8 * u16::try_from(body.len()).unwrap();
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(length.to_le_bytes());
        bytes.extend(body.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let data = records.concat();
        let mut bytes = MAGIC.to_vec();
        bytes.resize(40, 0);
        bytes.extend(104_u64.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.resize(104, 0);
        bytes.extend(data);
        bytes
    }

    #[test]
    fn samples_and_both_kinds_of_losses_are_counted() {
        let bytes = file(&[
            record(SAMPLE, &[1, 2, 3]),
            record(LOST, &[77, 5]),
            record(3, &[9]),
            record(SAMPLE, &[]),
            record(LOST_SAMPLES, &[2]),
        ]);
        let counts = count(io::Cursor::new(bytes)).unwrap();
        assert_eq!(
            counts,
            PerfCounts {
                samples: 2,
                lost: 7
            }
        );
    }

    #[test]
    fn another_file_or_a_cut_one_is_an_error() {
        assert!(count(io::Cursor::new(b"PERFILE1 and more".to_vec())).is_err());
        let mut bytes = file(&[record(SAMPLE, &[1, 2, 3])]);
        bytes.pop();
        assert!(count(io::Cursor::new(bytes)).is_err());
        // A record that is shorter than its own header.
        assert!(count(io::Cursor::new(file(&[vec![9, 0, 0, 0, 0, 0, 0, 0]]))).is_err());
    }
}
