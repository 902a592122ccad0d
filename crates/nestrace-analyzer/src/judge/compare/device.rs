//! Values of a block device in both recordings.

use crate::result::analysis::{Device, Parts};
use crate::result::compared::{MetricLayer, Unit};
use crate::result::dist::Dist;
use crate::result::sums::{DepthSums, DeviceSums, FLUSH, OPERATIONS, Sum, Times};
use crate::result::units;

use super::bootstrap::Ratio;
use super::comparison::{Both, ExplainedBy, Explanation, Metric};
use super::explanation;
use super::metric::Key;

/// Why times at the device are not held against each other: a request has one or several bios.
const OTHER_SAMPLES: &str = "a full recording has it per bio, a light one per request";
/// Why the places of requests are not held against each other.
const OTHER_ORDER: &str = "a light recording has requests in the order of their completion";
/// Why a number of the whole recording has no spread.
const A_TOTAL: &str = "it counts the whole recording, and a longer one has more";

/// Name, quantile, and its value in a distribution.
pub(super) type Percentile = (&'static str, f64, fn(Dist) -> Option<u64>);

/// A layer of the device: its latencies by operation.
#[derive(Clone, Copy)]
enum Latency {
    Q2c,
    D2c,
}

impl Latency {
    /// Mean, median, 99th percentile.
    const fn names(self) -> [&'static str; 3] {
        match self {
            Self::Q2c => ["q2c_mean", "q2c_p50", "q2c_p99"],
            Self::D2c => ["d2c_mean", "d2c_p50", "d2c_p99"],
        }
    }

    fn dist(self, device: &Device, place: usize) -> Dist {
        let latency = &device.latency_ns;
        let of = |parts: &Parts| match self {
            Self::Q2c => parts.q2c,
            Self::D2c => parts.d2c,
        };
        let dist = match (place, self) {
            (0, _) => of(&latency.by_op.read),
            (1, _) => of(&latency.by_op.write),
            (2, _) => of(&latency.by_op.discard),
            (_, Self::Q2c) => latency.flush,
            (_, Self::D2c) => latency.flush_d2c,
        };
        dist.unwrap_or_default()
    }

    fn times(self, sums: &DeviceSums, place: usize) -> &Times {
        match self {
            Self::Q2c => &sums.q2c[place],
            Self::D2c => &sums.d2c[place],
        }
    }
}

/// The devices, and what their values are called.
pub(super) struct DeviceView<'a> {
    pub layer: MetricLayer,
    pub devices: Both<&'a Device>,
}

impl DeviceView<'_> {
    /// Every value that either recording has.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for place in 0..OPERATIONS.len() {
            self.latency(Latency::Q2c, place, &mut metrics);
            metrics.extend(self.wait_mean(place));
            self.latency(Latency::D2c, place, &mut metrics);
            self.rates(place, &mut metrics);
        }
        self.requests(&mut metrics);
        self.merged(&mut metrics);
        self.depth(&mut metrics);
        self.device_flushes(&mut metrics);
        metrics
    }

    /// By operation: what waiting and the device have of a mean latency.
    pub(super) fn explanations(&self) -> Vec<Explanation> {
        let operations = (0..FLUSH).filter_map(|place| {
            let latency = self.mean(Latency::Q2c, place)?;
            let parts = vec![self.wait_mean(place)?, self.mean(Latency::D2c, place)?];
            explanation::of(
                OPERATIONS[place],
                ExplainedBy::QueueAndDevice,
                latency,
                parts,
            )
        });
        operations.collect()
    }

    fn each<T>(&self, of: impl Fn(&Device) -> T) -> Both<T> {
        self.devices.map(of)
    }

    /// A sum over another, stretch by stretch.
    fn series(&self, of: impl Fn(&DeviceSums, u64) -> (f64, f64)) -> Both<Ratio> {
        self.each(|device| {
            let stretches = &device.figures.series.stretches;
            Ratio {
                stretches: stretches
                    .iter()
                    .map(|(period, sums)| of(sums, period.ns))
                    .collect(),
            }
        })
    }

    fn key(&self, place: Option<usize>, name: &'static str, unit: Unit) -> Key {
        Key {
            layer: self.layer,
            operation: place.map(|place| OPERATIONS[place]),
            name,
            unit,
        }
    }

    fn mean(&self, latency: Latency, place: usize) -> Option<Metric> {
        let dists = self.each(|device| latency.dist(device, place));
        let n = dists.map(|dist| dist.n);
        if n.a + n.b == 0 {
            return None;
        }
        let values = dists.map(|dist| mean(&dist));
        let series = self.series(|sums, _| mean_of(latency.times(sums, place).sum()));
        let key = self.key(Some(place), latency.names()[0], Unit::Ns);
        Some(
            key.ratio(values, n, &series)
                .unless(self.other_samples(latency)),
        )
    }

    /// Why a latency of the one is no measure for that of the other.
    fn other_samples(&self, latency: Latency) -> Option<&'static str> {
        let light = self.each(is_light);
        (matches!(latency, Latency::D2c) && light.a != light.b).then_some(OTHER_SAMPLES)
    }

    fn latency(&self, latency: Latency, place: usize, metrics: &mut Vec<Metric>) {
        let Some(mean) = self.mean(latency, place) else {
            return;
        };
        let n = mean.n;
        metrics.push(mean);
        let dists = self.each(|device| latency.dist(device, place));
        let [_, p50, p99] = latency.names();
        let times = self.devices.map(|device| all_times(device, latency, place));
        let percentiles: [Percentile; 2] =
            [(p50, 0.5, |dist| dist.p50), (p99, 0.99, |dist| dist.p99)];
        for (name, q, of) in percentiles {
            let values = dists.map(|dist| of(dist).map(|ns| ns as f64));
            let metric = self
                .key(Some(place), name, Unit::Ns)
                .quantile(q, values, n, &times);
            metrics.push(metric.unless(self.other_samples(latency)));
        }
    }

    fn wait_mean(&self, place: usize) -> Option<Metric> {
        let series = self.series(|sums, _| mean_of(sums.wait[place]));
        let n = self.each(|device| {
            let stretches = &device.figures.series.stretches;
            stretches.iter().map(|(_, sums)| sums.wait[place].n).sum()
        });
        (n.a + n.b > 0).then(|| {
            let values = whole(&series);
            let key = self.key(Some(place), "q2d_mean", Unit::Ns);
            key.ratio(values, n, &series)
        })
    }

    /// I/Os and bytes for each second between the first I/O and the last.
    fn rates(&self, place: usize, metrics: &mut Vec<Metric>) {
        let by = |sums: &DeviceSums| sums.q2c[place].sum().n;
        let n = self.each(|device| {
            let stretches = &device.figures.series.stretches;
            stretches.iter().map(|(_, sums)| by(sums)).sum::<u64>()
        });
        if n.a + n.b == 0 {
            return;
        }
        let rate = self.series(|sums, ns| (by(sums) as f64, seconds(ns)));
        let values = self.of_bios(&rate);
        if values.a.is_some() || values.b.is_some() {
            let key = self.key(Some(place), "per_second", Unit::PerSecond);
            metrics.push(key.ratio(values, n, &rate));
        }
        if place != FLUSH {
            let rate = self.series(|sums, ns| (sums.bytes[place] as f64, seconds(ns)));
            let key = self.key(Some(place), "bytes_per_second", Unit::BytesPerSecond);
            metrics.push(key.ratio(whole(&rate), n, &rate));
        }
    }

    /// What counts bios is in a full recording only: a light one has sums of requests in their place.
    fn of_bios(&self, series: &Both<Ratio>) -> Both<Option<f64>> {
        let (whole, light) = (whole(series), self.each(is_light));
        Both {
            a: whole.a.filter(|_| !light.a),
            b: whole.b.filter(|_| !light.b),
        }
    }

    /// What requests at the device look like.
    fn requests(&self, metrics: &mut Vec<Metric>) {
        let n = self.each(|device| {
            let stretches = &device.figures.series.stretches;
            stretches.iter().map(|(_, sums)| sums.issued.n).sum::<u64>()
        });
        if n.a + n.b == 0 {
            return;
        }
        // Bios that ended here. Those that an md handed on were queued there, and have no Q of this device.
        let bios = |sums: &DeviceSums| -> f64 {
            let data = sums.d2c[..FLUSH].iter();
            data.map(|times| times.sum().n as f64).sum()
        };
        let rate = self.series(|sums, ns| (sums.issued.n as f64, seconds(ns)));
        let size = self.series(|sums, _| mean_of(sums.issued));
        let per_request = self.series(|sums, _| (bios(sums), sums.issued.n as f64));
        let next = self.series(|sums, _| (sums.sequential as f64, sums.issued.n as f64));
        for (name, unit, series) in [
            ("requests_per_second", Unit::PerSecond, rate),
            ("request_bytes", Unit::Bytes, size),
        ] {
            metrics.push(self.key(None, name, unit).ratio(whole(&series), n, &series));
        }
        let values = self.of_bios(&per_request);
        if values.a.is_some() || values.b.is_some() {
            let key = self.key(None, "bios_per_request", Unit::Ratio);
            metrics.push(key.ratio(values, n, &per_request));
        }
        let light = self.each(is_light);
        let metric = self.key(None, "sequential_share", Unit::Share);
        let metric = metric.ratio(whole(&next), n, &next);
        metrics.push(metric.unless((light.a || light.b).then_some(OTHER_ORDER)));
    }

    /// Part of the bios that were merged.
    fn merged(&self, metrics: &mut Vec<Metric>) {
        let values = self.each(|device| {
            let counts = &device.counts;
            let merges = counts.back_merges? + counts.front_merges? + counts.request_merges?;
            let queued = counts.queued.filter(|queued| *queued > 0)?;
            Some(units::share(merges, queued))
        });
        if values.a.is_none() && values.b.is_none() {
            return;
        }
        let n = self.each(|device| device.counts.queued.unwrap_or(0));
        let series = self.series(|sums, _| (sums.merged as f64, sums.queued as f64));
        let key = self.key(None, "merged_share", Unit::Share);
        metrics.push(key.ratio(values, n, &series));
    }

    /// Requests at the device between the first I/O and the last, as rates: how long a recording waits before
    /// and after says nothing of the device.
    fn depth(&self, metrics: &mut Vec<Metric>) {
        let n = self.each(|device| device.counts.completed);
        let series = |of: fn(&DepthSums) -> u64| {
            self.each(|device| {
                let stretches = device.figures.depth_series.stretches.iter();
                Ratio {
                    stretches: stretches
                        .map(|(period, sums)| (of(sums) as f64, period.ns as f64))
                        .collect(),
                }
            })
        };
        for (name, unit, series) in [
            (
                "queue_depth_mean",
                Unit::Count,
                series(|sums| sums.request_ns),
            ),
            ("busy_share", Unit::Share, series(|sums| sums.busy_ns)),
        ] {
            let values = whole(&series);
            if values.a.is_some() || values.b.is_some() {
                metrics.push(self.key(None, name, unit).ratio(values, n, &series));
            }
        }
    }

    fn device_flushes(&self, metrics: &mut Vec<Metric>) {
        let n = self.each(|device| device.counts.completed);
        let values = self.each(|device| {
            let n = device.counts.device_flushes;
            (n > 0 || device.counts.flushes > 0).then_some(n as f64)
        });
        if values.a.is_some() || values.b.is_some() {
            let key = self.key(None, "device_flushes", Unit::Count);
            metrics.push(key.unjudged(values, n, A_TOTAL));
        }
    }
}

/// Bios of an operation that ended on it.
pub(super) fn ended(device: &Device, place: usize) -> u64 {
    Latency::Q2c.dist(device, place).n
}

/// Whole requests were recorded, no bios.
const fn is_light(device: &Device) -> bool {
    device.counts.queued.is_none()
}

/// Of all stretches.
fn all_times(device: &Device, latency: Latency, place: usize) -> Vec<&Times> {
    let stretches = device.figures.series.stretches.iter();
    stretches
        .map(|(_, sums)| latency.times(sums, place))
        .collect()
}

/// The exact mean.
pub(super) fn mean(dist: &Dist) -> Option<f64> {
    (dist.n > 0).then(|| dist.sum as f64 / dist.n as f64)
}

/// What is divided by what for a mean.
pub(super) fn mean_of(sum: Sum) -> (f64, f64) {
    (sum.sum as f64, sum.n as f64)
}

/// Of all stretches.
pub(super) fn whole(series: &Both<Ratio>) -> Both<Option<f64>> {
    Both {
        a: series.a.whole(),
        b: series.b.whole(),
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
