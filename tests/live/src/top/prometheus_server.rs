//! Debian's Prometheus, which scrapes a running `nestrace serve`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::cache_dir;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::packages;
use nestrace_rig::recorder::Recorder;
use serde_json::Value;
use tempfile::TempDir;

use super::serving::Address;
use super::{LiveContext, PATIENCE};

/// The alert rules of the package.
pub const RULES: &str = include_str!("../../../../packaging/nestrace-alerts.yml");
const RULES_TESTS: &str = include_str!("alerts_test.yml");

/// The folder with Debian's `prometheus` and `promtool`: unpacked and not installed, since an installed one runs as a service.
pub fn programs(ctx: &LiveContext) -> anyhow::Result<PathBuf> {
    let folder = cache_dir::entry(&cache_dir::root()?, "prometheus", |folder| {
        ctx.progress.say("downloading prometheus");
        packages::update_lists()?;
        Tool::new("apt-get")
            .args(["download", "-q", "prometheus"])
            .current_dir(folder)
            .run()?;
        for archive in nestrace_rig::debian_archive::archives_in(folder) {
            Tool::new("dpkg-deb")
                .arg("-x")
                .arg(&archive)
                .arg(folder)
                .run()?;
            fs::remove_file(&archive)?;
        }
        anyhow::Ok(())
    })?;
    Ok(folder.join("usr/bin"))
}

/// A running Prometheus that scrapes one address each second. Dropping it ends it.
pub struct Prometheus {
    /// Where it is.
    pub address: Address,
    _recorder: Recorder,
    /// Its data, configuration and rules.
    pub folder: TempDir,
}

impl Prometheus {
    /// Starts it; `features` are those that its command line has to switch on.
    pub fn start(program: &Path, target: &Address, features: &[&str]) -> anyhow::Result<Self> {
        let Address::Loopback(target) = target else {
            anyhow::bail!("scrape a loopback address");
        };
        let folder = tempfile::Builder::new()
            .prefix("nestrace-prometheus-")
            .tempdir()?;
        let configuration = folder.path().join("prometheus.yml");
        fs::write(folder.path().join("rules.yml"), RULES)?;
        fs::write(folder.path().join("rules_test.yml"), RULES_TESTS)?;
        fs::write(
            &configuration,
            format!(
                "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
                 rule_files: [ rules.yml ]\n\
                 scrape_configs:\n  - job_name: nestrace\n    static_configs: [ {{ targets: [ \"{target}\" ] }} ]\n"
            ),
        )?;
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut command = Command::new(program);
        command
            .arg(option("config.file", &configuration))
            .arg(option("storage.tsdb.path", &folder.path().join("data")))
            .arg("--web.listen-address=127.0.0.1:0")
            .args(features.iter().map(|it| format!("--enable-feature={it}")));
        let mut recorder = Recorder::spawn(command, false)?;
        recorder.wait_for_line(&["Listening", "on"], PATIENCE)?;
        let said = recorder.stderr();
        let address = said
            .lines()
            .find(|line| line.contains("\"Listening on\""))
            .and_then(|line| {
                let (_, rest) = line.split_once("address=")?;
                rest.split(' ').next()?.parse().ok()
            });
        let address = Address::Loopback(address.context("see Prometheus' address")?);
        let deadline = Instant::now() + PATIENCE;
        while address.get("/-/ready")?.status != 200 {
            anyhow::ensure!(Instant::now() < deadline, "see Prometheus ready");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(Self {
            address,
            _recorder: recorder,
            folder,
        })
    }

    /// `data` of an answer of its API.
    pub fn api(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.address.get(&format!("/api/v1/{path}"))?;
        let json: Value = serde_json::from_str(&answer.body)
            .with_context(|| format!("read Prometheus' answer: {}", answer.head))?;
        anyhow::ensure!(
            json["status"] == "success",
            "have Prometheus answer {path}: {json}"
        );
        Ok(json["data"].clone())
    }

    /// The answer to a query now.
    pub fn query(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let data = self.api(&format!("query?query={}", encoded(query)))?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    /// The only value of the answer to a query.
    pub fn number(&self, query: &str) -> anyhow::Result<f64> {
        let result = self.query(query)?;
        let [one] = &result[..] else {
            anyhow::bail!("get one value of {query}: {result:?}");
        };
        let value = one.pointer("/value/1").and_then(Value::as_str);
        let value = value.and_then(|text| text.parse().ok());
        value.with_context(|| format!("read the value of {query}"))
    }

    /// Waits until the answer to a query is so.
    pub fn wait_for(&self, query: &str, is_so: impl Fn(&[Value]) -> bool) -> anyhow::Result<bool> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if is_so(&self.query(query)?) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(false)
    }
}

/// For a place in a URL.
pub fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
