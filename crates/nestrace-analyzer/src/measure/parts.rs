//! Histograms of the parts of an I/O's way.

use crate::measure::histogram::Histogram;
use crate::result::analysis::Parts;

/// Histograms of the parts of the way.
#[derive(Debug, Default)]
pub(crate) struct PartMeters {
    pub q2a: Histogram,
    pub q2g: Histogram,
    pub s2g: Histogram,
    pub g2i: Histogram,
    pub g2d: Histogram,
    pub i2d: Histogram,
    pub q2m: Histogram,
    pub m2d: Histogram,
    pub d2c: Histogram,
    pub q2c: Histogram,
}

impl PartMeters {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.q2a.merge(&other.q2a);
        self.q2g.merge(&other.q2g);
        self.s2g.merge(&other.s2g);
        self.g2i.merge(&other.g2i);
        self.g2d.merge(&other.g2d);
        self.i2d.merge(&other.i2d);
        self.q2m.merge(&other.q2m);
        self.m2d.merge(&other.m2d);
        self.d2c.merge(&other.d2c);
        self.q2c.merge(&other.q2c);
    }

    /// A part that this recording cannot have is `None`; one that it could have but did not has n = 0.
    pub(crate) fn parts(&self, bios: bool, requests: bool) -> Parts {
        let of = |histogram: &Histogram, recorded: bool| recorded.then(|| histogram.dist());
        let way = bios && requests;
        Parts {
            q2a: of(&self.q2a, bios),
            q2g: of(&self.q2g, way),
            s2g: of(&self.s2g, way),
            g2i: of(&self.g2i, way),
            g2d: of(&self.g2d, way),
            i2d: of(&self.i2d, way),
            q2m: of(&self.q2m, way),
            m2d: of(&self.m2d, way),
            d2c: of(&self.d2c, requests),
            q2c: of(&self.q2c, bios),
        }
    }
}
