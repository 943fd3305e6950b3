//! Draws a scene in pixels, and writes it as PNG.
//!
//! Each shape covers a part of each pixel: rectangles by the area that they share with it, lines
//! and dots by the distance of its middle. Letters are lines, too: the strokes of the font "Roman
//! Simplex" by A. V. Hershey (U.S. National Bureau of Standards, 1967; free to use with this
//! acknowledgement), which needs no font of the system, so that the pixels are the same everywhere.
//!
//! ```text
//!   hershey.txt   a line for each character from space to '~': width, then strokes of points
//!                 x = first byte - 'R', y = second byte - 'R'; baseline 9, capitals from -12 on
//! ```

use std::io::Write;

use super::Theme;
use super::colours::colour_of;
use super::scene::{Anchor, Label, Paint, Scene, Shape};

/// Pixels for each unit of a scene.
const FACTOR: f64 = 2.0;

const FONT: &str = include_str!("hershey.txt");
const BASELINE: f64 = 9.0;
/// Height of capitals in units of the font, and in parts of the font's size.
const CAPITALS: f64 = 21.0;
const CAPITALS_PART: f64 = 0.70;

pub(super) fn render(scene: &Scene, theme: Theme) -> Vec<u8> {
    let mut canvas = Canvas::new(scene, theme);
    for shape in &scene.shapes {
        canvas.draw(shape);
    }
    encode(canvas.width, canvas.height, &canvas.pixels)
}

struct Canvas {
    width: usize,
    height: usize,
    /// Red, green and blue of each pixel, by row.
    pixels: Vec<u8>,
    theme: Theme,
}

impl Canvas {
    fn new(scene: &Scene, theme: Theme) -> Self {
        let [width, height] =
            [scene.width, scene.height].map(|length| (length * FACTOR).ceil() as usize);
        let pixels = colour_of(Paint::Paper, theme).repeat(width * height);
        Self { width, height, pixels, theme }
    }

    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Rect { x, y, width, height, paint } => {
                self.rect((*x, *y), (x + width, y + height), *paint);
            }
            Shape::Dot { x, y, radius, paint } => {
                self.stroke(&[(*x, *y), (*x, *y)], radius * 2.0, *paint);
            }
            Shape::Path { points, width, paint } => self.stroke(points, *width, *paint),
            Shape::Label(label) => self.label(label),
        }
    }

    fn rect(&mut self, from: (f64, f64), to: (f64, f64), paint: Paint) {
        let [left, top, right, bottom] = [from.0, from.1, to.0, to.1].map(|edge| edge * FACTOR);
        let shared = |pixel: usize, low: f64, high: f64| {
            (high.min(pixel as f64 + 1.0) - low.max(pixel as f64)).clamp(0.0, 1.0)
        };
        for row in pixels_of(top, bottom, self.height) {
            for column in pixels_of(left, right, self.width) {
                let part = shared(row, top, bottom) * shared(column, left, right);
                self.blend((column, row), part, paint);
            }
        }
    }

    /// Draws lines between successive points, with round ends.
    fn stroke(&mut self, points: &[(f64, f64)], width: f64, paint: Paint) {
        let radius = (width * FACTOR / 2.0).max(0.5);
        let scaled: Vec<_> = points.iter().map(|(x, y)| (x * FACTOR, y * FACTOR)).collect();
        for pair in scaled.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let reach = radius + 1.0;
            let (low, high) = (from.1.min(to.1) - reach, from.1.max(to.1) + reach);
            for row in pixels_of(low, high, self.height) {
                let (low, high) = (from.0.min(to.0) - reach, from.0.max(to.0) + reach);
                for column in pixels_of(low, high, self.width) {
                    let middle = (column as f64 + 0.5, row as f64 + 0.5);
                    let part = (radius + 0.5 - distance(middle, from, to)).clamp(0.0, 1.0);
                    self.blend((column, row), part, paint);
                }
            }
        }
    }

    fn label(&mut self, label: &Label) {
        let scale = label.size * CAPITALS_PART / CAPITALS;
        let length = text_units(&label.text) * scale;
        let start = match label.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -length / 2.0,
            Anchor::End => -length,
        };
        let width = label.size * if label.is_bold { 0.115 } else { 0.08 };
        let mut units = 0.0;
        for character in label.text.chars() {
            let glyph = glyph_of(character);
            for stroke in glyph.strokes {
                let place = |(x, y): (f64, f64)| {
                    let (along, down) = (start + (units + x) * scale, (y - BASELINE) * scale);
                    if label.is_upright {
                        (label.x + down, label.y - along)
                    } else {
                        (label.x + along, label.y + down)
                    }
                };
                let points: Vec<_> = stroke.into_iter().map(place).collect();
                self.stroke(&points, width, label.paint);
            }
            units += glyph.width;
        }
    }

    fn blend(&mut self, (column, row): (usize, usize), part: f64, paint: Paint) {
        if part <= 0.0 {
            return;
        }
        let colour = colour_of(paint, self.theme);
        let start = (row * self.width + column) * 3;
        for (channel, value) in colour.into_iter().enumerate() {
            let old = f64::from(self.pixels[start + channel]);
            self.pixels[start + channel] = (old + (f64::from(value) - old) * part).round() as u8;
        }
    }
}

/// Returns the pixels that a range touches.
fn pixels_of(low: f64, high: f64, count: usize) -> std::ops::Range<usize> {
    let edge = |value: f64| value.clamp(0.0, count as f64) as usize;
    edge(low.floor())..edge(high.ceil())
}

/// Returns the distance of a point from a line between two points.
fn distance(point: (f64, f64), from: (f64, f64), to: (f64, f64)) -> f64 {
    let (part, run, rise) = {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx * dx + dy * dy;
        let at = ((point.0 - from.0) * dx + (point.1 - from.1) * dy) / length.max(1e-12);
        (at.clamp(0.0, 1.0), dx, dy)
    };
    let (x, y) = (from.0 + part * run - point.0, from.1 + part * rise - point.1);
    (x * x + y * y).sqrt()
}

struct Glyph {
    width: f64,
    strokes: Vec<Vec<(f64, f64)>>,
}

/// Returns the strokes of a character. Characters that the font lacks are drawn as a question mark.
fn glyph_of(character: char) -> Glyph {
    let line = |character: char| {
        let index = u32::from(character).checked_sub(u32::from(' '))?;
        FONT.lines().nth(index as usize)
    };
    let text = line(character).or_else(|| line('?')).unwrap_or_default();
    let value = |byte: u8| f64::from(byte) - f64::from(b'R');
    let mut words = text.split(' ');
    let width = words.next().and_then(|word| word.bytes().next()).map_or(0.0, value);
    let points = |word: &str| {
        let (pairs, _) = word.as_bytes().as_chunks::<2>();
        pairs.iter().map(|[x, y]| (value(*x), value(*y))).collect()
    };
    Glyph { width, strokes: words.map(points).collect() }
}

fn text_units(text: &str) -> f64 {
    text.chars().fold(0.0, |sum, character| sum + glyph_of(character).width)
}

/// Encodes pixels of three bytes.
fn encode(width: usize, height: usize, pixels: &[u8]) -> Vec<u8> {
    let mut rows = Vec::with_capacity(pixels.len() + height);
    for row in pixels.chunks(width * 3) {
        // Filter 0: bytes as they are.
        rows.push(0);
        rows.extend_from_slice(row);
    }
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
    // A Vec takes every write.
    let packed = encoder.write_all(&rows).and_then(|()| encoder.finish()).unwrap_or_default();
    let mut header = Vec::new();
    header.extend_from_slice(&(width as u32).to_be_bytes());
    header.extend_from_slice(&(height as u32).to_be_bytes());
    // Eight bits per channel, red, green and blue; no interlacing.
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", header), (b"IDAT", packed), (b"IEND", Vec::new())] {
        let mut chunk = kind.to_vec();
        chunk.extend_from_slice(&data);
        let mut crc = flate2::Crc::new();
        crc.update(&chunk);
        file.extend_from_slice(&(data.len() as u32).to_be_bytes());
        file.extend_from_slice(&chunk);
        file.extend_from_slice(&crc.sum().to_be_bytes());
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_strokes() {
        assert_eq!(FONT.lines().count(), 95);
        for character in '!'..='~' {
            let glyph = glyph_of(character);
            assert!(glyph.width > 0.0 && !glyph.strokes.is_empty(), "{character}");
            assert!(glyph.strokes.iter().all(|stroke| !stroke.is_empty()), "{character}");
        }
        assert_eq!(glyph_of('ü').strokes, glyph_of('?').strokes);
    }

    #[test]
    fn pixels_are_covered_and_encoded() {
        let mut scene = Scene { width: 4.0, height: 2.0, shapes: Vec::new() };
        scene.rect((0.0, 0.0), (1.0, 1.25), Paint::Rgb([0, 0, 0]));
        let mut canvas = Canvas::new(&scene, Theme::Light);
        canvas.draw(&scene.shapes[0]);
        let red = |column: usize, row: usize| canvas.pixels[(row * canvas.width + column) * 3];
        assert_eq!([red(0, 0), red(1, 1), red(2, 0), red(0, 3)], [0, 0, 255, 255]);
        assert_eq!(red(0, 2), 128, "half covered");
        let png = render(&scene, Theme::Dark);
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        assert_eq!(&png[16..24], &[0, 0, 0, 8, 0, 0, 0, 4]);
        assert_eq!(&png[png.len() - 4..], &0xae42_6082_u32.to_be_bytes(), "sum of an empty end");
    }
}
