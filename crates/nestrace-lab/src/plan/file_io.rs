//! sysbench's fileio: one file, O_DIRECT, synchronous, one thread.

use super::section;
use super::sysbench::{self, PROGRAM};
use super::workload::{FOLDER, Scale};

/// One of its tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIo {
    /// `seqrd`, `seqwr`, `seqrewr`, `rndrd`, `rndwr`, `rndrw`.
    pub mode: String,
    /// Bytes of each request.
    pub block_bytes: u64,
}

/// The file is laid out in blocks of 1 MiB, where its size is a multiple of that.
const LAYOUT_BLOCK_BITS: u32 = 20;

/// Its tests.
pub const MODES: [&str; 6] = ["seqwr", "seqrewr", "seqrd", "rndrd", "rndwr", "rndrw"];

impl FileIo {
    /// Shell that lays out the file: in large blocks through the page cache, so that it lies on the disk in the same
    /// way whatever the test's blocks are.
    #[must_use]
    pub fn prepare_script(&self, scale: &Scale) -> String {
        // sysbench writes whole blocks.
        let block = 1 << scale.data_bytes.trailing_zeros().min(LAYOUT_BLOCK_BITS);
        let prepare = sysbench::run(&self.command(scale, block, "prepare"));
        format!("cd {FOLDER}\n{prepare}\ncd /")
    }

    /// Shell that does it: `warm_up` seconds that do not count, then `seconds` that do.
    #[must_use]
    pub fn measure_script(&self, scale: &Scale, warm_up: u32, seconds: u32) -> String {
        sysbench::measure(format!("cd {FOLDER}"), warm_up, seconds, |seconds| {
            let run =
                format!("--file-extra-flags=direct --time={seconds} --events=0 --histogram=on run");
            self.command(scale, self.block_bytes, &run)
        })
    }

    fn command(&self, scale: &Scale, block_bytes: u64, what: &str) -> String {
        let (mode, total) = (&self.mode, scale.data_bytes);
        format!(
            "{PROGRAM} fileio --file-num=1 --file-total-size={total} --file-test-mode={mode} \
             --file-block-size={block_bytes} --file-io-mode=sync {what}"
        )
    }
}

/// Bytes of fio's words for them (`4096`, `8k`, `1m`); `None` for no such word.
#[must_use]
pub fn bytes(word: &str) -> Option<u64> {
    let is_large = word.ends_with(['g', 'G', 't', 'T']);
    let bytes = section::bytes(&word.to_ascii_uppercase())?;
    (!is_large && bytes <= u64::from(u32::MAX)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_is_laid_out_is_the_one_that_is_used() {
        let scale = Scale {
            seconds: 3,
            warm_up_seconds: 1,
            data_bytes: 96 << 20,
            most_seconds: None,
        };
        let test = FileIo {
            mode: String::from("rndrd"),
            block_bytes: bytes("4k").unwrap(),
        };
        let file = "--file-num=1 --file-total-size=100663296 --file-test-mode=rndrd";
        let prepare = test.prepare_script(&scale);
        let large = format!("{file} --file-block-size=1048576 --file-io-mode=sync prepare >");
        assert!(prepare.contains(&large), "{prepare}");
        let odd = Scale {
            data_bytes: (1 << 20) + (3 << 13),
            ..scale
        };
        let prepare = test.prepare_script(&odd);
        assert!(prepare.contains("--file-block-size=8192 "), "{prepare}");
        let measure = test.measure_script(&scale, 1, 3);
        let runs: Vec<&str> = measure.lines().skip(1).collect();
        assert!(runs[0].contains("--time=1 ") && runs[1].contains("--time=3 "));
        let same =
            format!("{file} --file-block-size=4096 --file-io-mode=sync --file-extra-flags=direct");
        assert!(runs.iter().all(|run| run.contains(&same)), "{measure}");
        assert_eq!(test.measure_script(&scale, 0, 3).lines().count(), 2);
    }

    #[test]
    fn sizes_are_fios() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("16k"), Some(16 << 10));
        assert_eq!(bytes("1M"), Some(1 << 20));
        for none in ["", "k", "0", "4g", "-1", "4 k", "99999999999"] {
            assert_eq!(bytes(none), None, "{none}");
        }
    }
}
