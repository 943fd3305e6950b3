//! Sizes as users type them: `10M`, `1.5G`, `512`.

/// Parses a size and returns its bytes.
///
/// # Errors
/// OpenZFS's message for a malformed number, an unknown unit, or a number above 64 bits.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("bad numeric value '{text}'");
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(bad());
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let shift = shift_of(suffix).ok_or_else(|| format!("invalid numeric suffix '{suffix}'"))?;
    let too_large = || "numeric value is too large".to_owned();
    if digits.contains('.') {
        let number: f64 = digits.parse().map_err(|_| bad())?;
        let scaled = number * (1_u64.checked_shl(shift).ok_or_else(too_large)?) as f64;
        return if scaled < u64::MAX as f64 { Ok(scaled as u64) } else { Err(too_large()) };
    }
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    number.checked_mul(1_u64.checked_shl(shift).ok_or_else(too_large)?).ok_or_else(too_large)
}

/// Returns the shift of a unit: a letter, optionally followed by `B` or `iB`.
fn shift_of(suffix: &str) -> Option<u32> {
    let mut letters = suffix.chars();
    let Some(unit) = letters.next() else { return Some(0) };
    let index = "BKMGTPEZ".find(unit.to_ascii_uppercase())?;
    let rest = letters.as_str();
    let is_legal = rest.is_empty()
        || index > 0 && (rest.eq_ignore_ascii_case("b") || rest.eq_ignore_ascii_case("ib"));
    is_legal.then_some(10 * index as u32)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_parsed_like_openzfs() {
        for (text, want) in [
            ("512", Ok(512)),
            ("1K", Ok(1024)),
            ("10m", Ok(10 << 20)),
            ("1.5G", Ok(3 << 29)),
            ("2GiB", Ok(2 << 30)),
            ("2gb", Ok(2 << 30)),
            ("x", Err("bad numeric value 'x'")),
            ("1Q", Err("invalid numeric suffix 'Q'")),
            ("1Z", Err("numeric value is too large")),
        ] {
            assert_eq!(parse(text), want.map_err(str::to_owned), "{text}");
        }
    }
}
