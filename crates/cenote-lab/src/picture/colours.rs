//! Colours: cividis for figures, and those of series and roles in both themes.
//!
//! cividis is readable without colour vision and in grey: its lightness rises evenly. The table has
//! 17 entries of the published map (public domain), with linear interpolation. The colours of
//! series are those of Okabe and Ito, lighter or darker where the background needs it.

use super::Theme;
use super::scene::Paint;

const CIVIDIS: [[u8; 3]; 17] = [
    [0, 34, 78],
    [0, 47, 110],
    [26, 57, 111],
    [47, 67, 108],
    [63, 77, 107],
    [77, 87, 108],
    [91, 98, 111],
    [104, 108, 115],
    [117, 119, 119],
    [131, 130, 121],
    [146, 141, 119],
    [162, 153, 115],
    [178, 166, 109],
    [195, 179, 100],
    [213, 193, 87],
    [232, 207, 69],
    [254, 232, 56],
];

const SERIES_LIGHT: [[u8; 3]; 6] =
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [120, 94, 20]];
const SERIES_DARK: [[u8; 3]; 6] = [
    [86, 170, 230],
    [240, 130, 50],
    [40, 190, 145],
    [225, 150, 195],
    [150, 210, 245],
    [230, 200, 90],
];

/// Returns the colour of a part of the range, 0 to 1.
pub(super) fn cividis(part: f64) -> [u8; 3] {
    let last = CIVIDIS.len() - 1;
    let at = part.clamp(0.0, 1.0) * last as f64;
    let index = (at as usize).min(last - 1);
    let rest = at - index as f64;
    let (low, high) = (CIVIDIS[index], CIVIDIS[index + 1]);
    std::array::from_fn(|channel| {
        let (low, high) = (f64::from(low[channel]), f64::from(high[channel]));
        (low + (high - low) * rest).round() as u8
    })
}

/// Returns whether dark text is readable on a colour.
pub(super) fn is_light([red, green, blue]: [u8; 3]) -> bool {
    let luma = 0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue);
    luma > 128.0
}

/// Returns the colour of a paint.
pub(super) fn colour_of(paint: Paint, theme: Theme) -> [u8; 3] {
    let is_dark = theme == Theme::Dark;
    match paint {
        Paint::Rgb(colour) => colour,
        Paint::Paper if is_dark => [24, 26, 30],
        Paint::Paper => [255, 255, 255],
        Paint::Ink if is_dark => [232, 234, 237],
        Paint::Ink => [28, 30, 34],
        Paint::Muted if is_dark => [165, 170, 178],
        Paint::Muted => [92, 97, 105],
        Paint::Faint if is_dark => [58, 62, 69],
        Paint::Faint => [222, 225, 230],
        Paint::Series(index) if is_dark => SERIES_DARK[index % SERIES_DARK.len()],
        Paint::Series(index) => SERIES_LIGHT[index % SERIES_LIGHT.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cividis_becomes_lighter_evenly() {
        let lightness = |part: f64| {
            let linear = |value: u8| {
                let value = f64::from(value) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            let [red, green, blue] = cividis(part).map(linear);
            let luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
            116.0 * luminance.cbrt() - 16.0
        };
        let steps: Vec<f64> = (0..16)
            .map(|step| lightness(f64::from(step + 1) / 16.0) - lightness(f64::from(step) / 16.0))
            .collect();
        let mean = steps.iter().sum::<f64>() / 16.0;
        assert!(steps.iter().all(|step| *step > mean * 0.5 && *step < mean * 1.75), "{steps:?}");
        assert_eq!((cividis(-1.0), cividis(2.0)), ([0, 34, 78], [254, 232, 56]));
    }
}
