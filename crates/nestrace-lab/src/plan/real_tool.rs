//! Filebench and iozone themselves, where they are on the machine. Neither is a Debian package: without them their
//! workloads are jobs of fio ([`library`](super::library)).

use super::file_io;
use super::workload::{FOLDER, RESULT, Scale};

/// A workload as the program does it that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealTool {
    /// Its name.
    pub program: &'static str,
    /// What it does, and where that differs from what was published.
    pub note: String,
    /// Shell that lays out the files.
    pub prepare: String,
    /// Shell that is measured; its figures are in [`RESULT`].
    pub measure: String,
    /// Which of them count.
    pub figures: Figures,
    /// What the layout left in the guest's page cache stays there.
    pub is_warm: bool,
}

/// What a program prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    /// Filebench's line `IO Summary`.
    FilebenchSummary,
    /// A column of iozone's table, behind the file's size and the record's, from 0.
    IozoneColumn(usize),
}

const WORKLOAD: &str = "/run/lab-filebench.f";
const OUTPUT: &str = "/run/lab-filebench.out";
/// Filebench waits here between its files and its run.
const GO: &str = "/run/lab-filebench.go";
const READY: &str = "/run/lab-filebench.ready";
/// How it ended.
const STATUS: &str = "/run/lab-filebench.status";
const GROUP: &str = "/run/lab-filebench.pid";

/// A personality of Filebench, with the parameters of its own files (`fileserver.f`, `webserver.f`, `oltp.f`,
/// `varmail.f`). Files have the mean size: its distributions are libraries that a guest lacks.
pub(super) fn filebench(name: &str, scale: &Scale) -> RealTool {
    let text = match name {
        "fileserver" => file_server(scale),
        "webserver" => web_server(scale),
        "dbserver" => database_server(scale),
        _ => mail_server(scale),
    };
    let note = format!(
        "Filebench's {name} by Filebench itself: its threads, I/O sizes and order of operations; files have the mean size and their number is scaled; there is no warm-up"
    );
    RealTool {
        program: "filebench",
        note,
        prepare: start(&text, scale.seconds),
        measure: go(),
        figures: Figures::FilebenchSummary,
        is_warm: false,
    }
}

/// Shell that has Filebench make its files and wait then, so that this is not measured. It counts from its run on.
/// Its processes share memory by address, and hang where they are loaded at random ones.
fn start(text: &str, seconds: u32) -> String {
    let say = say();
    format!(
        "rm -f {GO} {READY} {STATUS}\n\
         echo 0 > /proc/sys/kernel/randomize_va_space\n\
         mkfifo {GO}\n\
         cat > {WORKLOAD} << 'END'\n\
         {text}\
         create files\n\
         system \"touch {READY}; read line < {GO}\"\n\
         run {seconds}\n\
         END\n\
         setsid sh -c 'echo $$ > {GROUP}; filebench -f {WORKLOAD}; echo $? > {STATUS}' > {OUTPUT} 2>&1 < /dev/null &\n\
         until [ -e {READY} ] || [ -s {STATUS} ]; do sleep 0.1; done\n\
         [ ! -s {STATUS} ] || {{ {say}; exit 1; }}"
    )
}

/// Shell that says what it said; it misses libraries that nothing here needs.
fn say() -> String {
    format!("grep -v 'cvar directory' {OUTPUT}")
}

fn go() -> String {
    let say = say();
    format!(
        "[ -s {STATUS} ] || echo > {GO}\n\
         until [ -s {STATUS} ]; do sleep 0.1; done\n\
         grep 'IO Summary' {OUTPUT} > {RESULT} || {{ {say}; exit 1; }}"
    )
}

/// Shell that ends Filebench, if it runs, so that its file system can be unmounted.
#[must_use]
pub fn stop_script() -> String {
    format!(
        "if [ -s {GROUP} ]; then\n\
         kill -KILL -$(cat {GROUP}) 2> /dev/null\n\
         rm -f {GROUP} /tmp/filebench-shm-*\n\
         fi"
    )
}

/// So many files of `bytes` that hold the scale's data, and at least ten for each thread: two to make anew. Filebench ends
/// early where a thread finds none.
fn files(scale: &Scale, bytes: u64, threads: u64) -> u64 {
    (scale.data_bytes / bytes).max(threads * 10)
}

/// Its name is none of Filebench's words.
fn set_of_files(name: &str, files: u64, size: &str, width: u32, more: &str) -> String {
    format!(
        "define fileset name={name},path={FOLDER},size={size},entries={files},dirwidth={width},{more}\n"
    )
}

fn threads(instances: u32, operations: &[String]) -> String {
    let operations: String = (1..)
        .zip(operations)
        .map(|(n, operation)| {
            let (what, rest) = operation.split_once(' ').unwrap_or((operation, ""));
            format!("flowop {what} name=op{n},{rest}\n")
        })
        .collect();
    // An operation's buffer is in it: 1 MiB.
    format!(
        "define process name=labworker,instances=1\n{{\nthread name=labthread,memsize=2m,instances={instances}\n{{\n{operations}}}\n}}\n"
    )
}

fn operations(text: &str) -> Vec<String> {
    text.split("; ").map(str::to_owned).collect()
}

fn file_server(scale: &Scale) -> String {
    let n = files(scale, 128 << 10, 50);
    set_of_files("labfiles", n, "128k", 20, "prealloc=80")
        + &threads(
            50,
            &operations(
                "createfile filesetname=labfiles,fd=1; writewholefile srcfd=1,fd=1,iosize=1m; closefile fd=1; \
                 openfile filesetname=labfiles,fd=1; appendfilerand iosize=16k,fd=1; closefile fd=1; \
                 openfile filesetname=labfiles,fd=1; readwholefile fd=1,iosize=1m; closefile fd=1; \
                 deletefile filesetname=labfiles; statfile filesetname=labfiles",
            ),
        )
}

fn web_server(scale: &Scale) -> String {
    let n = files(scale, 16 << 10, 100);
    let page = "openfile filesetname=labfiles,fd=1; readwholefile fd=1,iosize=1m; closefile fd=1; ";
    set_of_files("labfiles", n, "16k", 20, "prealloc=100,readonly")
        + &set_of_files("lablog", 1, "16k", 20, "prealloc")
        + &threads(
            100,
            &operations(&format!(
                "{}appendfilerand filesetname=lablog,iosize=16k,fd=2",
                page.repeat(10)
            )),
        )
}

fn mail_server(scale: &Scale) -> String {
    let n = files(scale, 16 << 10, 16);
    set_of_files("labfiles", n, "16k", 1_000_000, "prealloc=80")
        + &threads(
            16,
            &operations(
                "deletefile filesetname=labfiles; createfile filesetname=labfiles,fd=1; appendfilerand iosize=16k,fd=1; \
                 fsync fd=1; closefile fd=1; openfile filesetname=labfiles,fd=1; readwholefile fd=1,iosize=1m; \
                 appendfilerand iosize=16k,fd=1; fsync fd=1; closefile fd=1; openfile filesetname=labfiles,fd=1; \
                 readwholefile fd=1,iosize=1m; closefile fd=1",
            ),
        )
}

/// Ten files; 10 processes write them and 200 read them, all for the writers, and a log.
fn database_server(scale: &Scale) -> String {
    let file = (scale.data_bytes / 100 * 9 / 10).max(1 << 20) >> 12 << 12;
    set_of_files("labdata", 10, &file.to_string(), 1024, "prealloc=100,reuse")
        + &set_of_files("lablog", 1, "10m", 1024, "prealloc=100,reuse")
        + "define process name=lgwr,instances=1\n{\nthread name=lgwr,memsize=1m\n{\n\
           flowop aiowrite name=lg-write,filesetname=lablog,iosize=256k,random,dsync\n\
           flowop aiowait name=lg-aiowait\n\
           flowop semblock name=lg-block,value=3200,highwater=1000\n}\n}\n\
           define process name=dbwr,instances=10\n{\nthread name=dbwr,memsize=1m\n{\n\
           flowop aiowrite name=dbwrite-a,filesetname=labdata,iosize=2k,random,iters=100,opennext,dsync\n\
           flowop hog name=dbwr-hog,value=10000\n\
           flowop semblock name=dbwr-block,value=1000,highwater=2000\n\
           flowop aiowait name=dbwr-aiowait\n}\n}\n\
           define process name=shadow,instances=200\n{\nthread name=shadow,memsize=1m\n{\n\
           flowop read name=shadowread,filesetname=labdata,iosize=2k,random,opennext\n\
           flowop hog name=shadowhog,value=200000\n\
           flowop sempost name=shadow-post-lg,value=1,target=lg-block,blocking\n\
           flowop sempost name=shadow-post-dbwr,value=1,target=dbwr-block,blocking\n}\n}\n"
}

/// A test of iozone; `None` for a record that it cannot have.
pub(super) fn iozone(test: &str, scale: &Scale, record: &str) -> Option<RealTool> {
    let record = file_io::bytes(record).filter(|bytes| bytes.is_multiple_of(4 << 10))?;
    let file = scale.data_bytes / record * record;
    if file == 0 {
        return None;
    }
    // iozone does its tests in pairs.
    let (pair, column, is_warm, with) = match test {
        "write" => (0, 0, false, ""),
        "rewrite" => (0, 1, false, "; the first write is part of the run"),
        "read" => (1, 0, false, ""),
        "reread" => (1, 1, false, "; the first read is part of the run"),
        "randread" => (2, 0, true, "; iozone writes at random after it"),
        "randwrite" => (2, 1, true, "; iozone reads at random before it"),
        _ => return None,
    };
    let line = |pair: u32, alone: bool, more: &str| {
        let alone = if alone { " -+n" } else { "" };
        format!(
            "iozone -e -i {pair}{alone} -s {}k -r {}k -f {FOLDER}/iozone{more}",
            file >> 10,
            record >> 10
        )
    };
    let note = format!(
        "iozone's test by iozone itself (-e -i {pair}): one thread, one file, and the time includes a sync{with}"
    );
    Some(RealTool {
        program: "iozone",
        note,
        prepare: if pair == 0 {
            String::new()
        } else {
            line(0, true, " -w")
        },
        measure: format!("{} > {RESULT}", line(pair, column == 0 && pair < 2, " -w")),
        figures: Figures::IozoneColumn(column),
        is_warm,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale {
        seconds: 3,
        warm_up_seconds: 1,
        data_bytes: 64 << 20,
        most_seconds: None,
    };

    #[test]
    fn filebench_makes_its_files_before_it_is_measured() {
        for name in ["fileserver", "webserver", "dbserver", "mailserver"] {
            let tool = filebench(name, &SCALE);
            let place = |what: &str| {
                let prepare = &tool.prepare;
                prepare.find(what).unwrap_or_else(|| panic!("{prepare}"))
            };
            let order = ["create files", "read line < ", "run 3\n", "filebench -f"].map(place);
            assert!(order.is_sorted(), "{}", tool.prepare);
            assert!(!tool.measure.contains("filebench -f"));
        }
        let mails = filebench("mailserver", &SCALE).prepare;
        assert!(
            mails.contains("entries=4096,") && mails.contains("instances=16\n"),
            "{mails}"
        );
        assert_eq!(mails.matches("flowop ").count(), 13);
        assert_eq!(
            filebench("webserver", &SCALE)
                .prepare
                .matches("flowop ")
                .count(),
            31
        );
        // Each thread finds a file that it can make.
        assert_eq!(
            files(
                &Scale {
                    data_bytes: 1 << 20,
                    most_seconds: None,
                    ..SCALE
                },
                128 << 10,
                50
            ),
            500
        );
    }

    #[test]
    fn iozones_tests_come_in_pairs() {
        let line = |test: &str| iozone(test, &SCALE, "64k").unwrap().measure;
        for (test, options) in [
            ("write", "-i 0 -+n -s 65536k -r 64k"),
            ("rewrite", "-i 0 -s 65536k -r 64k"),
            ("read", "-i 1 -+n -s"),
            ("reread", "-i 1 -s"),
            ("randread", "-i 2 -s"),
            ("randwrite", "-i 2 -s"),
        ] {
            assert!(line(test).contains(options), "{}", line(test));
        }
        let read = iozone("read", &SCALE, "10m").unwrap();
        assert!(read.prepare.contains("-i 0 -+n -s 61440k -r 10240k"));
        assert_eq!(iozone("read", &SCALE, "512"), None);
        assert_eq!(iozone("read", &SCALE, "1g"), None);
        assert_eq!(iozone("copy", &SCALE, "64k"), None);
    }
}
