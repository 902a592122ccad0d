//! sysbench's fileio: one file, O_DIRECT, synchronous, one thread.

use super::workload::{FOLDER, RESULT, Scale};

/// The program.
pub const PROGRAM: &str = "sysbench";

/// One of its tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIo {
    /// `seqrd`, `seqwr`, `seqrewr`, `rndrd`, `rndwr`, `rndrw`.
    pub mode: String,
    /// Bytes of each request.
    pub block_bytes: u64,
}

/// Its tests.
pub const MODES: [&str; 6] = ["seqwr", "seqrewr", "seqrd", "rndrd", "rndwr", "rndrw"];

impl FileIo {
    /// Shell that lays out the file.
    #[must_use]
    pub fn prepare_script(&self, scale: &Scale) -> String {
        format!("cd {FOLDER}\n{}\ncd /", self.run(scale, "prepare"))
    }

    /// Shell that does it: `warm_up` seconds that do not count, then `seconds` that do.
    #[must_use]
    pub fn measure_script(&self, scale: &Scale, warm_up: u32, seconds: u32) -> String {
        let run = |seconds: u32| {
            let time = format!("--time={seconds} --events=0 --histogram=on run");
            self.run(scale, &time)
        };
        let mut lines = vec![format!("cd {FOLDER}")];
        if warm_up > 0 {
            lines.push(run(warm_up));
        }
        lines.push(run(seconds));
        lines.join(" &&\n")
    }

    fn run(&self, scale: &Scale, what: &str) -> String {
        let (mode, block, total) = (&self.mode, self.block_bytes, scale.data_bytes);
        // What goes wrong sysbench says on stdout.
        format!(
            "{{ {PROGRAM} fileio --file-num=1 --file-total-size={total} --file-test-mode={mode} \
             --file-block-size={block} --file-io-mode=sync --file-extra-flags=direct {what} > {RESULT} \
             || {{ cat {RESULT} >&2; exit 1; }}; }}"
        )
    }
}

/// Bytes of fio's words for them (`4096`, `8k`, `1m`); `None` for no such word.
#[must_use]
pub fn bytes(word: &str) -> Option<u64> {
    let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &word[number.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        _ => return None,
    };
    let bytes = number.parse::<u32>().ok().map(u64::from)? * unit;
    (bytes > 0).then_some(bytes)
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
        };
        let test = FileIo {
            mode: String::from("rndrd"),
            block_bytes: bytes("4k").unwrap(),
        };
        let common = "--file-total-size=100663296 --file-test-mode=rndrd --file-block-size=4096";
        let prepare = test.prepare_script(&scale);
        assert!(
            prepare.contains(common) && prepare.contains(" prepare >"),
            "{prepare}"
        );
        let measure = test.measure_script(&scale, 1, 3);
        let runs: Vec<&str> = measure.lines().skip(1).collect();
        assert!(runs[0].contains("--time=1 ") && runs[1].contains("--time=3 "));
        assert!(runs.iter().all(|run| run.contains(common)), "{measure}");
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
