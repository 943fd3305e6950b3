//! Normalization of names: case folding and Unicode forms (spec 03 §7).
//!
//! Same order as in OpenZFS: every character is folded to upper case first, then decomposed, then
//! (for the C forms) composed. Bytes that are not UTF-8 pass through and end a sequence. All of it
//! according to Unicode 5.0.0: see [`super::case`] for how a current library is restricted to that.
//! Names can differ only in characters that are newer than 2006 *and* have a decomposition, a
//! combining class or a case; they are left alone, as in OpenZFS. Compared with OpenZFS's own
//! normalization over every code point, each with nine sets of flags, and over 60 000 random
//! strings. Not reproduced: its cut of runs of more than 31 combining marks, U+0345 before another
//! mark while folding, a digraph like U+01C4 with a mark under formKC, and malformed UTF-8 under a
//! form (forms imply `utf8only`, so that no such name exists).
//!
//! The hash of a name uses all flags of the ZAP. A comparison may omit the case bit
//! ([`MatchKind::NormalizedCase`]), so equal hashes do not imply equal names.

use super::case;
use bitflags::bitflags;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

bitflags! {
    /// How names of a ZAP are normalized; unknown bits are kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct NormFlags: u64 {
        /// Upper case.
        const TOUPPER = 0x02;
        /// Canonical decomposition.
        const DECOMPOSE = 0x10;
        /// Compatibility decomposition.
        const COMPATIBILITY = 0x20;
        /// Composition after the decomposition.
        const COMPOSE = 0x40;
        /// Property `normalization=formD`.
        const FORM_D = 0x10;
        /// `formKD`.
        const FORM_KD = 0x20;
        /// `formC`.
        const FORM_C = 0x50;
        /// `formKC`.
        const FORM_KC = 0x60;
        const _ = !0;
    }
}

/// How two names are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchKind {
    /// Byte by byte.
    Exact,
    /// After normalization with all flags.
    Normalized,
    /// After normalization without the case flag.
    NormalizedCase,
}

/// Whether a stored name matches a search.
#[must_use]
pub fn matches(stored: &[u8], wanted: &[u8], kind: MatchKind, flags: NormFlags) -> bool {
    let flags = match kind {
        MatchKind::Exact => NormFlags::empty(),
        MatchKind::Normalized => flags,
        MatchKind::NormalizedCase => flags.difference(NormFlags::TOUPPER),
    };
    stored == wanted || (!flags.is_empty() && normalize(stored, flags) == normalize(wanted, flags))
}

/// Normalizes a name.
#[must_use]
pub fn normalize(name: &[u8], flags: NormFlags) -> Cow<'_, [u8]> {
    let fold = flags.contains(NormFlags::TOUPPER);
    if !flags.intersects(NormFlags::TOUPPER | NormFlags::DECOMPOSE | NormFlags::COMPATIBILITY)
        || (name.is_ascii() && !fold)
    {
        return Cow::Borrowed(name);
    }
    if name.is_ascii() {
        return Cow::Owned(name.to_ascii_uppercase());
    }
    let mut prepared = Vec::with_capacity(name.len().saturating_mul(2));
    let mut run = String::new();
    let mut rest = name;
    while let Some(lead) = rest.first() {
        let (unit, tail) = rest.split_at_checked(unit_len(*lead)).unwrap_or((rest, &[]));
        if let Ok(c) = str::from_utf8(unit) {
            run.push_str(c);
        } else {
            prepare(&run, flags, &mut prepared);
            run.clear();
            prepared.extend_from_slice(unit);
        }
        rest = tail;
    }
    prepare(&run, flags, &mut prepared);
    Cow::Owned(prepared)
}

/// Length of a character according to its first byte: a malformed one passes through with this many
/// bytes, even if valid characters begin among them.
const fn unit_len(lead: u8) -> usize {
    match lead {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    }
}

/// Normalizes a piece of valid UTF-8, run by run of characters that Unicode 5.0 had.
fn prepare(text: &str, flags: NormFlags, out: &mut Vec<u8>) {
    let fold = |c| if flags.contains(NormFlags::TOUPPER) { case::to_upper(c) } else { c };
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !case::is_known(c)).unwrap_or(rest.len());
        let (known, tail) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let mut bytes = [0; 4];
        for c in form(known.chars().map(fold), flags) {
            out.extend_from_slice(c.encode_utf8(&mut bytes).as_bytes());
        }
        let mut chars = tail.chars();
        if let Some(unknown) = chars.next() {
            out.extend_from_slice(unknown.encode_utf8(&mut bytes).as_bytes());
        }
        rest = chars.as_str();
    }
}

fn form(chars: impl Iterator<Item = char>, flags: NormFlags) -> Vec<char> {
    let is_k = flags.contains(NormFlags::COMPATIBILITY);
    match (is_k, flags.contains(NormFlags::DECOMPOSE), flags.contains(NormFlags::COMPOSE)) {
        (true, _, true) => chars.nfkc().collect(),
        (true, _, false) => chars.nfkd().collect(),
        (false, true, true) => chars.nfc().collect(),
        (false, true, false) => chars.nfd().collect(),
        (false, false, _) => chars.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms_and_case() {
        let upper = NormFlags::TOUPPER;
        for (name, flags, want) in [
            ("Straße", upper, "STRAßE"),
            ("e\u{301}x", NormFlags::FORM_C, "éx"),
            ("éx", NormFlags::FORM_D, "e\u{301}x"),
            ("éx", NormFlags::FORM_D | upper, "E\u{301}X"),
            ("ﬁ", NormFlags::FORM_C, "ﬁ"),
            ("ﬁ", NormFlags::FORM_KC, "fi"),
            ("ﬁ", NormFlags::FORM_KD | upper, "fi"),
            ("\u{1f0}", NormFlags::FORM_C | upper, "\u{1f0}"),
            ("각", NormFlags::FORM_D, "\u{1100}\u{1161}\u{11a8}"),
            ("\u{1e9e}\u{2c6f}", upper, "\u{1e9e}\u{2c6f}"),
            ("é", NormFlags::empty(), "é"),
        ] {
            let got = normalize(name.as_bytes(), flags);
            assert_eq!(got, want.as_bytes(), "{name} {flags:?}");
        }
        let raw = normalize(b"a\xff\xe9bcd", upper);
        assert_eq!(&*raw, b"A\xff\xe9bcD");
    }

    #[test]
    fn kinds_of_match() {
        let flags = NormFlags::FORM_D | NormFlags::TOUPPER;
        let (one, two) = ("Éa".as_bytes(), "e\u{301}A".as_bytes());
        assert!(!matches(one, two, MatchKind::Exact, flags));
        assert!(matches(one, two, MatchKind::Normalized, flags));
        assert!(!matches(one, two, MatchKind::NormalizedCase, flags));
        assert!(matches("É".as_bytes(), "E\u{301}".as_bytes(), MatchKind::NormalizedCase, flags));
    }

    proptest! {
        #[test]
        fn normalizing_twice_changes_nothing(name: Vec<u8>, text: String, bits in 0_u64..0x80) {
            for name in [name.as_slice(), text.as_bytes()] {
                // Folding after decomposition may find letters that folding before it did not.
                let flags = NormFlags::from_bits_retain(bits).difference(NormFlags::TOUPPER);
                let once = normalize(name, flags);
                prop_assert_eq!(normalize(&once, flags), once.clone());
            }
        }
    }
}
