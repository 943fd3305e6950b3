//! Shapes of a picture, in pixels from the upper left corner.

/// A colour by its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paint {
    /// The background.
    Paper,
    /// Text.
    Ink,
    /// Axes and less important text.
    Muted,
    /// Grid lines.
    Faint,
    /// A series of data.
    Series(usize),
    /// A fixed colour.
    Rgb([u8; 3]),
}

/// Where the given position is in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A text on its baseline.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Label {
    pub x: f64,
    pub y: f64,
    pub size: f64,
    pub anchor: Anchor,
    pub paint: Paint,
    pub is_bold: bool,
    /// Whether it is read from below to above.
    pub is_upright: bool,
    pub text: String,
}

/// A shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Rect { x: f64, y: f64, width: f64, height: f64, paint: Paint },
    Path { points: Vec<(f64, f64)>, width: f64, paint: Paint },
    Dot { x: f64, y: f64, radius: f64, paint: Paint },
    Label(Label),
}

/// A picture.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scene {
    pub width: f64,
    pub height: f64,
    pub shapes: Vec<Shape>,
}

impl Scene {
    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), paint: Paint) {
        self.shapes.push(Shape::Rect { x, y, width, height, paint });
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, paint: Paint) {
        self.path(vec![from, to], width, paint);
    }

    pub(super) fn path(&mut self, points: Vec<(f64, f64)>, width: f64, paint: Paint) {
        self.shapes.push(Shape::Path { points, width, paint });
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, paint: Paint) {
        self.shapes.push(Shape::Dot { x, y, radius, paint });
    }

    /// Draws a cross, the sign of published figures.
    pub(super) fn cross(&mut self, (x, y): (f64, f64), radius: f64, paint: Paint) {
        for side in [-radius, radius] {
            self.line((x - radius, y - side), (x + radius, y + side), 2.0, paint);
        }
    }

    pub(super) fn text(
        &mut self,
        at: (f64, f64),
        size: f64,
        anchor: Anchor,
        paint: Paint,
        text: &str,
    ) {
        self.shapes.push(Shape::Label(Label {
            x: at.0,
            y: at.1,
            size,
            anchor,
            paint,
            is_bold: false,
            is_upright: false,
            text: text.to_owned(),
        }));
    }

    /// Draws the title of a chart.
    pub(super) fn title(&mut self, at: (f64, f64), text: &str) {
        self.text(at, 15.0, Anchor::Start, Paint::Ink, text);
        if let Some(Shape::Label(label)) = self.shapes.last_mut() {
            label.is_bold = true;
        }
    }

    /// Draws a centered text that is read from below to above.
    pub(super) fn upright(&mut self, at: (f64, f64), size: f64, paint: Paint, text: &str) {
        self.text(at, size, Anchor::Middle, paint, text);
        if let Some(Shape::Label(label)) = self.shapes.last_mut() {
            label.is_upright = true;
        }
    }
}
