//! Drawing with plotters: SVG for pages, PNG for everything else.

mod columns;
mod field;
mod lines;
mod points;
mod spans;
mod surface;
mod waterfall;

use std::sync::OnceLock;

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::style::{FontStyle, register_font};

use super::palette::PAPER;
use super::{Chart, Plot};
use surface::{Canvas, Surface};

/// A picture that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrawError {
    /// plotters could not draw it.
    #[error("draw plot {id}: {reason}")]
    Plot {
        /// Of the plot.
        id: String,
        /// As plotters says it.
        reason: String,
    },
    /// The pixels could not be written as PNG.
    #[error("encode plot {id} as PNG")]
    Encode {
        /// Of the plot.
        id: String,
        /// What failed.
        source: png::EncodingError,
    },
}

/// How large a picture is, in pixels, and whether it stands alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Pixels.
    pub width: u32,
    /// Pixels of a chart; charts of rows are as high as they need to be.
    pub height: u32,
    /// With title and background.
    pub is_alone: bool,
}

impl Frame {
    /// In a page, on a screen or on paper.
    pub const WIDE: Self = Self {
        width: 860,
        height: 340,
        is_alone: false,
    };
    /// In a page, on a phone.
    pub const NARROW: Self = Self {
        width: 340,
        height: 270,
        is_alone: false,
    };
    /// A file of its own.
    pub const FILE: Self = Self {
        width: 960,
        height: 480,
        is_alone: true,
    };

    fn sized(&self, plot: &Plot) -> (u32, u32) {
        let title = if self.is_alone { TITLE } else { 0 };
        let height = match &plot.chart {
            Chart::Spans(chart) => spans::height(chart, self.width),
            Chart::Waterfall(chart) => waterfall::height(chart, self.width),
            Chart::Points(chart) => self.height * chart.panels.len().max(1) as u32 * 3 / 4,
            _ => self.height,
        };
        (
            self.width.clamp(200, 8_000),
            (height + title).clamp(80, 16_000),
        )
    }
}

/// Height of a title.
const TITLE: u32 = 44;

/// Draws a plot as SVG.
///
/// # Errors
/// If plotters cannot draw it.
pub fn svg(plot: &Plot, frame: &Frame) -> Result<String, DrawError> {
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, frame.sized(plot)).into_drawing_area();
    draw(plot, frame, root)?;
    Ok(text)
}

/// Draws a plot as PNG.
///
/// # Errors
/// If plotters cannot draw it, or the picture cannot be encoded.
pub fn png(plot: &Plot, frame: &Frame) -> Result<Vec<u8>, DrawError> {
    let (width, height) = frame.sized(plot);
    let mut pixels = vec![0xff; width as usize * height as usize * 3];
    let root = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
    draw(plot, frame, root)?;
    let encode = || -> Result<Vec<u8>, png::EncodingError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()?;
        Ok(file)
    };
    encode().map_err(|source| DrawError::Encode {
        id: plot.id.clone(),
        source,
    })
}

fn draw<DB: DrawingBackend>(
    plot: &Plot,
    frame: &Frame,
    root: DrawingArea<DB, Shift>,
) -> Result<(), DrawError> {
    let failed = |reason: String| DrawError::Plot {
        id: plot.id.clone(),
        reason,
    };
    font().map_err(failed)?;
    if frame.is_alone {
        root.fill(&PAPER)
            .map_err(|error| failed(error.to_string()))?;
    }
    let mut canvas = Canvas::new(&root);
    let top = if frame.is_alone {
        title(plot, &mut canvas)
    } else {
        0.0
    };
    match &plot.chart {
        Chart::Lines(chart) => lines::draw(chart, top, &mut canvas),
        Chart::Columns(chart) => columns::draw(chart, top, &mut canvas),
        Chart::Spans(chart) => spans::draw(chart, top, &mut canvas),
        Chart::Points(chart) => points::draw(chart, top, &mut canvas),
        Chart::Waterfall(chart) => waterfall::draw(chart, top, &mut canvas),
    }
    if let Some(reason) = canvas.failed {
        return Err(failed(reason));
    }
    root.present().map_err(|error| failed(error.to_string()))
}

fn title(plot: &Plot, surface: &mut dyn Surface) -> f32 {
    let subject = if plot.subject.is_empty() {
        String::new()
    } else {
        format!(" · {}", plot.subject)
    };
    surface.title(&format!("{}{subject}", plot.question));
    TITLE as f32
}

/// The font that letters are measured and, in PNG, drawn with: Ubuntu Light comes with the program, so
/// that pictures look alike everywhere and need nothing of the system.
fn font() -> Result<(), String> {
    static FONT: OnceLock<bool> = OnceLock::new();
    let known = FONT.get_or_init(|| {
        let bytes = epaint_default_fonts::UBUNTU_LIGHT;
        register_font("sans-serif", FontStyle::Normal, bytes).is_ok()
    });
    known
        .then_some(())
        .ok_or_else(|| String::from("the font is damaged"))
}
