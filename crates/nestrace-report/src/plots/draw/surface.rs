//! What charts are made of: text, lines and boxes at pixels.

use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle};

use crate::plots::palette::INK;

/// Size of letters.
pub(super) const LETTERS: f64 = 16.0;
/// Size of a title's letters.
const TITLE_LETTERS: f64 = 20.0;

/// Which end of a text lies at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Middle,
    Right,
}

/// Pixels to draw on.
pub(super) trait Surface {
    /// Width and height.
    fn size(&self) -> (f32, f32);
    /// How wide a text is.
    fn width_of(&self, text: &str) -> f32;
    /// A text whose middle has this height.
    fn text(&mut self, text: &str, at: (f32, f32), align: Align, colour: RGBColor);
    /// A line.
    fn line(&mut self, points: &[(f32, f32)], colour: RGBColor, alpha: f64, width: u32);
    /// A filled box.
    fn rect(&mut self, from: (f32, f32), to: (f32, f32), colour: RGBColor, alpha: f64);
    /// The title at the top.
    fn title(&mut self, text: &str);
}

/// plotters' area as a [`Surface`]; the first failure is kept.
pub(super) struct Canvas<'a, DB: DrawingBackend> {
    root: &'a DrawingArea<DB, Shift>,
    pub failed: Option<String>,
}

impl<'a, DB: DrawingBackend> Canvas<'a, DB> {
    pub(super) const fn new(root: &'a DrawingArea<DB, Shift>) -> Self {
        Self { root, failed: None }
    }

    fn note<E: std::fmt::Display>(&mut self, result: Result<(), E>) {
        if let Err(error) = result {
            self.failed.get_or_insert_with(|| error.to_string());
        }
    }

    fn text_of_size(&mut self, text: &str, at: (i32, i32), style: &TextStyle<'_>) {
        let result = self
            .root
            .draw(&Text::new(text.to_owned(), at, style.clone()));
        self.note(result);
    }
}

fn pixel(at: (f32, f32)) -> (i32, i32) {
    (at.0.round() as i32, at.1.round() as i32)
}

fn style(size: f64, colour: RGBColor, align: Align) -> TextStyle<'static> {
    let horizontal = match align {
        Align::Left => HPos::Left,
        Align::Middle => HPos::Center,
        Align::Right => HPos::Right,
    };
    let font = ("sans-serif", size).into_font();
    TextStyle {
        font,
        color: colour.to_backend_color(),
        pos: Pos::new(horizontal, VPos::Center),
    }
}

impl<DB: DrawingBackend> Surface for Canvas<'_, DB> {
    fn size(&self) -> (f32, f32) {
        let (width, height) = self.root.dim_in_pixel();
        (width as f32, height as f32)
    }

    fn width_of(&self, text: &str) -> f32 {
        let style = style(LETTERS, INK, Align::Left);
        let size = self.root.estimate_text_size(text, &style);
        // Fonts of a page are wider than the light one that is measured.
        size.map_or(text.chars().count() as f32 * 8.0, |(width, _)| {
            width as f32 * 1.06
        })
    }

    fn text(&mut self, text: &str, at: (f32, f32), align: Align, colour: RGBColor) {
        self.text_of_size(text, pixel(at), &style(LETTERS, colour, align));
    }

    fn line(&mut self, points: &[(f32, f32)], colour: RGBColor, alpha: f64, width: u32) {
        let points: Vec<(i32, i32)> = points.iter().copied().map(pixel).collect();
        let style = ShapeStyle {
            color: colour.mix(alpha),
            filled: false,
            stroke_width: width,
        };
        let result = self.root.draw(&PathElement::new(points, style));
        self.note(result);
    }

    fn rect(&mut self, from: (f32, f32), to: (f32, f32), colour: RGBColor, alpha: f64) {
        let style = ShapeStyle {
            color: colour.mix(alpha),
            filled: true,
            stroke_width: 0,
        };
        let result = self
            .root
            .draw(&Rectangle::new([pixel(from), pixel(to)], style));
        self.note(result);
    }

    fn title(&mut self, text: &str) {
        let (width, _) = self.size();
        let wide = f64::from(self.width_of(text)) * TITLE_LETTERS / LETTERS;
        let room = f64::from(width) - 24.0;
        let size = if wide > room {
            TITLE_LETTERS * room / wide
        } else {
            TITLE_LETTERS
        };
        self.text_of_size(text, (12, 22), &style(size, INK, Align::Left));
    }
}
