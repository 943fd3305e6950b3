//! Writes a scene as SVG.
//!
//! Paints are classes, so that a style sheet has both themes: a reader whose system is dark sees
//! light text on dark. The attributes have the light theme for programs without style sheets.
//! Numbers have two decimals at most.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::Theme;
use super::colours::colour_of;
use super::scene::{Anchor, Label, Paint, Scene, Shape};

const FONT: &str = "system-ui, 'DejaVu Sans', Verdana, sans-serif";

pub(super) fn render(scene: &Scene) -> String {
    let mut text = String::new();
    let (width, height) = (number(scene.width), number(scene.height));
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"{FONT}\">"
    );
    text.push_str(&style(scene));
    let paper = colour(Paint::Paper, Theme::Light);
    let _ = writeln!(
        text,
        "<rect class=\"paper\" width=\"{width}\" height=\"{height}\" fill=\"{paper}\"/>"
    );
    for shape in &scene.shapes {
        write_shape(&mut text, shape);
    }
    text.push_str("</svg>\n");
    text
}

/// Returns the rules of the dark theme for the paints that the scene uses.
fn style(scene: &Scene) -> String {
    let mut rules = BTreeSet::new();
    let mut add = |paint: Paint, is_stroke: bool| {
        if let Some(name) = class_of(paint) {
            let (kind, property) = if is_stroke { ("-line", "stroke") } else { ("", "fill") };
            let colour = colour(paint, Theme::Dark);
            rules.insert(format!(".{name}{kind}{{{property}:{colour}}}"));
        }
    };
    add(Paint::Paper, false);
    for shape in &scene.shapes {
        match shape {
            Shape::Rect { paint, .. } | Shape::Dot { paint, .. } => add(*paint, false),
            Shape::Label(label) => add(label.paint, false),
            Shape::Path { paint, .. } => add(*paint, true),
        }
    }
    let rules: Vec<_> = rules.into_iter().collect();
    format!("<style>@media (prefers-color-scheme: dark){{{}}}</style>\n", rules.join(""))
}

fn write_shape(text: &mut String, shape: &Shape) {
    let _ = match shape {
        Shape::Rect { x, y, width, height, paint } => writeln!(
            text,
            "<rect{} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>",
            class(*paint, ""),
            number(*x),
            number(*y),
            number(*width),
            number(*height),
            colour(*paint, Theme::Light)
        ),
        Shape::Dot { x, y, radius, paint } => writeln!(
            text,
            "<circle{} cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>",
            class(*paint, ""),
            number(*x),
            number(*y),
            number(*radius),
            colour(*paint, Theme::Light)
        ),
        Shape::Path { points, width, paint } => {
            let points: Vec<_> =
                points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
            writeln!(
                text,
                "<polyline{} points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" \
                 stroke-linejoin=\"round\"/>",
                class(*paint, "-line"),
                points.join(" "),
                colour(*paint, Theme::Light),
                number(*width)
            )
        }
        Shape::Label(label) => {
            write_label(text, label);
            Ok(())
        }
    };
}

fn write_label(text: &mut String, label: &Label) {
    let (x, y) = (number(label.x), number(label.y));
    let anchor = match label.anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let weight = if label.is_bold { " font-weight=\"600\"" } else { "" };
    let rotation = if label.is_upright {
        format!(" transform=\"rotate(-90 {x} {y})\"")
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "<text{} x=\"{x}\" y=\"{y}\" font-size=\"{}\"{anchor}{weight}{rotation} fill=\"{}\">{}</text>",
        class(label.paint, ""),
        number(label.size),
        colour(label.paint, Theme::Light),
        escaped(&label.text)
    );
}

/// Returns the class of a paint that depends on the theme.
fn class_of(paint: Paint) -> Option<String> {
    match paint {
        Paint::Paper => Some("paper".to_owned()),
        Paint::Ink => Some("ink".to_owned()),
        Paint::Muted => Some("muted".to_owned()),
        Paint::Faint => Some("faint".to_owned()),
        Paint::Series(index) => Some(format!("s{index}")),
        Paint::Rgb(_) => None,
    }
}

fn class(paint: Paint, kind: &str) -> String {
    class_of(paint).map_or_else(String::new, |name| format!(" class=\"{name}{kind}\""))
}

fn colour(paint: Paint, theme: Theme) -> String {
    let [red, green, blue] = colour_of(paint, theme);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Returns a number with at most two decimals.
fn number(value: f64) -> String {
    let text = format!("{:.2}", crate::report::rounded(value, 2));
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a text as XML has it, which has no control characters and no noncharacters.
fn escaped(text: &str) -> String {
    let is_excluded = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    let text = text.replace(is_excluded, "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_short_and_escaped() {
        assert_eq!([number(1.0), number(0.105), number(-0.001)], ["1", "0.11", "0"]);
        assert_eq!(escaped("a<b & c>\x1b\u{ffff}"), "a&lt;b &amp; c&gt;\u{fffd}\u{fffd}");
    }

    #[test]
    fn paints_have_both_themes() {
        let mut scene = Scene { width: 10.0, height: 5.0, shapes: Vec::new() };
        scene.rect((1.0, 1.0), (2.0, 2.0), Paint::Series(0));
        scene.upright((5.0, 5.0), 9.0, Paint::Ink, "up");
        let svg = render(&scene);
        assert!(svg.contains(".ink{fill:#e8eaed}") && svg.contains(".s0{fill:#56aae6}"), "{svg}");
        assert!(svg.contains("class=\"s0\"") && svg.contains("fill=\"#0072b2\""), "{svg}");
        assert!(svg.contains("rotate(-90 5 5)"), "{svg}");
        assert_eq!(svg.matches("http").count(), 1, "{svg}");
    }
}
