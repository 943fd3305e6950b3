//! Prints a block pointer as zdb does: the one-line form of an object's block list ([`Compact`])
//! and the form with every property ([`Verbose`], as behind `rootbp`).
//!
//! Both were compared with the output of OpenZFS 2.3.2. They accept any bytes: where OpenZFS would
//! read past its tables of names, a number is printed.

use std::fmt::{Display, Formatter, Result};

use crate::blkptr::{BlockPtr, Protection};
use crate::checksum_type::ChecksumType;
use crate::compression_type::CompressionType;
use crate::endian::Endian;
use crate::object_type::ObjectType;

impl BlockPtr {
    /// The line of an object's block list; all addresses or, as `zdb -ddddd` does, the first only.
    #[must_use]
    pub const fn compact(&self, all_dvas: bool) -> Compact<'_> {
        Compact { bp: self, all_dvas, is_freed: false }
    }

    /// The form with every property.
    #[must_use]
    pub const fn verbose(&self) -> Verbose<'_> {
        Verbose(self)
    }
}

/// `0:7d000:1000 20000L/1000P F=1 B=9/9 cksum=…`
#[derive(Debug, Clone, Copy)]
pub struct Compact<'a> {
    /// The pointer.
    pub bp: &'a BlockPtr,
    /// Print every address (six d's and more), not just the first.
    pub all_dvas: bool,
    /// Whether it is a FREE entry of a livelist.
    pub is_freed: bool,
}

impl Display for Compact<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let bp = self.bp;
        if let Some(id) = bp.embedded_type_id() {
            let (lsize, psize) = (bp.embedded_lsize(), bp.embedded_psize());
            return write!(f, "EMBEDDED et={id} {lsize:x}L/{psize:x}P B={}", bp.birth());
        }
        for dva in bp.dvas().take(if self.all_dvas { 3 } else { 1 }) {
            write!(f, "{dva} ")?;
        }
        if bp.is_hole() {
            return write!(f, "{:x}L B={}", bp.lsize(), bp.birth());
        }
        let (lsize, psize, fill) = (bp.lsize(), bp.psize(), bp.fill());
        write!(f, "{lsize:x}L/{psize:x}P F={fill} B={}/{}", bp.birth(), bp.physical_birth())?;
        if self.is_freed {
            f.write_str(" FREE")?;
        }
        write!(f, " {}", Checksum(bp.checksum()))
    }
}

/// `DVA[0]=<0:c000:1000> [L0 DMU objset] fletcher4 lz4 unencrypted LE …`
#[derive(Debug, Clone, Copy)]
pub struct Verbose<'a>(pub &'a BlockPtr);

impl Display for Verbose<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let bp = self.0;
        let (level, kind, birth) = (bp.level(), TypeName(bp.object_type()), bp.birth());
        if let Some(id) = bp.embedded_type_id() {
            let (lsize, psize) = (bp.embedded_lsize(), bp.embedded_psize());
            let compression = compression_name(bp);
            return write!(
                f,
                "EMBEDDED [L{level} {kind}] et={id} {compression} size={lsize:x}L/{psize:x}P \
                 birth={birth}L"
            );
        }
        if bp.is_hole() {
            let size = bp.lsize();
            return write!(f, "HOLE [L{level} {kind}] size={size:x}L birth={birth}L");
        }
        for index in 0..3 {
            if let Some(dva) = bp.dva(index) {
                write!(f, "DVA[{index}]=<{dva}> ")?;
            }
        }
        if bp.is_encrypted() {
            let words = bp.words();
            let (salt, head, tail) = (words[4], words[5], words[11] >> 32);
            write!(f, "salt={salt:x} iv={head:x}:{tail:x} ")?;
        }
        write!(f, "[L{level} {kind}] {} {} ", checksum_name(bp), compression_name(bp))?;
        write!(f, "{} {} ", protection_name(bp), order_name(bp))?;
        f.write_str(if bp.is_gang() { "gang " } else { "contiguous " })?;
        f.write_str(if bp.is_dedup() { "dedup " } else { "unique " })?;
        f.write_str(["zero", "single", "double", "triple"].get(bp.dva_count()).unwrap_or(&""))?;
        let (lsize, psize, fill) = (bp.lsize(), bp.psize(), bp.fill());
        write!(f, " size={lsize:x}L/{psize:x}P birth={birth}L/{}P", bp.physical_birth())?;
        write!(f, " fill={fill} {}", Checksum(bp.checksum()))
    }
}

/// The checksum words, with which both forms end.
struct Checksum([u64; 4]);

impl Display for Checksum {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let [first, second, third, fourth] = self.0;
        write!(f, "cksum={first:016x}:{second:016x}:{third:016x}:{fourth:016x}")
    }
}

/// An object type as printed in the verbose form.
struct TypeName(ObjectType);

impl Display for TypeName {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.0.is_new_style() {
            let class = if self.0.is_metadata() { "metadata" } else { "data" };
            write!(f, "bswap {class} {}", self.0)
        } else {
            self.0.fmt(f)
        }
    }
}

fn checksum_name(bp: &BlockPtr) -> &'static str {
    bp.checksum_type().map_or("unknown", ChecksumType::name)
}

fn compression_name(bp: &BlockPtr) -> &'static str {
    bp.compression().map_or("unknown", CompressionType::name)
}

fn protection_name(bp: &BlockPtr) -> &'static str {
    match bp.protection() {
        Protection::Unencrypted => "unencrypted",
        Protection::Encrypted => "encrypted",
        Protection::Authenticated => "authenticated",
        Protection::IndirectMac => "indirect-MAC",
    }
}

fn order_name(bp: &BlockPtr) -> &'static str {
    match bp.endian() {
        Endian::Little => "LE",
        Endian::Big => "BE",
    }
}
