//! The native properties of datasets and pools, in OpenZFS's order (spec 04 §7.4, 01 §12).
//!
//! `zfs get all` prints them in this order; usage texts take names, values and columns from here.
//! The meaning of a number (bytes, a count, a ratio) is part of the entry, so that output code
//! needs no lists of names. Entries are those of OpenZFS 2.3.

/// Meaning of a number, which determines its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Bytes.
    Bytes,
    /// Bytes, with 0 for "none".
    BytesOrNone,
    /// A plain number.
    Number,
    /// A count, with 2^64-1 for "none".
    CountOrNone,
    /// Hundredths, shown with two decimals.
    Ratio,
    /// Percent.
    Percent,
    /// Seconds since 1970.
    Date,
}

/// Names and values of an index property.
pub type Names = &'static [(&'static str, u64)];

/// The type of a property's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropType {
    /// A number.
    Number(Form),
    /// A text.
    Text,
    /// One of several names.
    Index(Names),
}

/// The default value of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropDefault {
    /// A number or an index value.
    Number(u64),
    /// A text.
    Text(&'static str),
    /// No default.
    None,
}

/// When a property can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Never: a statistic.
    ReadOnly,
    /// Only when the dataset is created.
    SetOnce,
    /// At any time.
    ReadWrite,
}

/// One native property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Type of its value.
    pub value_type: PropType,
    /// Types of datasets that have it: f file system, s snapshot, v volume, b bookmark.
    pub types: &'static str,
    /// When it can be set.
    pub access: Access,
    /// Whether children inherit it.
    pub is_inheritable: bool,
    /// Default value.
    pub default: PropDefault,
    /// Column heading of `list`.
    pub column: &'static str,
    /// Whether the column is aligned to the right.
    pub align_right: bool,
    /// Values in the usage text; `None` for hidden properties, which are shown by name only.
    pub values: Option<&'static str>,
}

use Access::{ReadOnly as RO, ReadWrite as RW, SetOnce as ONCE};
use PropType::{Index, Number, Text};

const ON_OFF: Names = &[("off", 0), ("on", 1)];
const CACHE: Names = &[("none", 0), ("metadata", 1), ("all", 2)];
/// Checksum algorithms by stored value.
pub const CHECKSUM: Names = &[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
];
/// Compression algorithms by stored value; zstd has its level from bit 7 up.
pub const COMPRESSION: Names = &[
    ("on", 1),
    ("off", 2),
    ("lzjb", 3),
    ("gzip-1", 5),
    ("gzip-2", 6),
    ("gzip-3", 7),
    ("gzip-4", 8),
    ("gzip-5", 9),
    ("gzip", 10),
    ("gzip-7", 11),
    ("gzip-8", 12),
    ("gzip-9", 13),
    ("zle", 14),
    ("lz4", 15),
    ("zstd", 16),
    ("zstd-1", 144),
    ("zstd-2", 272),
    ("zstd-3", 400),
    ("zstd-4", 528),
    ("zstd-5", 656),
    ("zstd-6", 784),
    ("zstd-7", 912),
    ("zstd-8", 1040),
    ("zstd-9", 1168),
    ("zstd-10", 1296),
    ("zstd-11", 1424),
    ("zstd-12", 1552),
    ("zstd-13", 1680),
    ("zstd-14", 1808),
    ("zstd-15", 1936),
    ("zstd-16", 2064),
    ("zstd-17", 2192),
    ("zstd-18", 2320),
    ("zstd-19", 2448),
    ("zstd-fast", 13200),
    ("zstd-fast-2", 13328),
    ("zstd-fast-3", 13456),
    ("zstd-fast-4", 13584),
    ("zstd-fast-5", 13712),
    ("zstd-fast-6", 13840),
    ("zstd-fast-7", 13968),
    ("zstd-fast-8", 14096),
    ("zstd-fast-9", 14224),
    ("zstd-fast-10", 14352),
    ("zstd-fast-20", 14480),
    ("zstd-fast-30", 14608),
    ("zstd-fast-40", 14736),
    ("zstd-fast-50", 14864),
    ("zstd-fast-60", 14992),
    ("zstd-fast-70", 15120),
    ("zstd-fast-80", 15248),
    ("zstd-fast-90", 15376),
    ("zstd-fast-100", 15504),
    ("zstd-fast-500", 15632),
    ("zstd-fast-1000", 15760),
];
const DEDUP: Names = &[
    ("on", 1),
    ("off", 2),
    ("sha256", 8),
    ("sha512", 11),
    ("skein", 12),
    ("blake3", 14),
    ("verify", 257),
    ("sha256,verify", 264),
    ("sha512,verify", 267),
    ("skein,verify", 268),
    ("edonr,verify", 269),
    ("blake3,verify", 270),
];
const SNAPDIR: Names = &[("hidden", 0), ("visible", 1), ("disabled", 2)];
const ACLMODE: Names = &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];
const ACLINHERIT: Names =
    &[("discard", 0), ("noallow", 1), ("passthrough", 3), ("restricted", 4), ("passthrough-x", 5)];
const CANMOUNT: Names = &[("off", 0), ("on", 1), ("noauto", 2)];
// Value 2 is "on" in 2.3, with the alias "sa".
const XATTR: Names = &[("off", 0), ("dir", 1), ("on", 2), ("sa", 2)];
const COPIES: Names = &[("1", 1), ("2", 2), ("3", 3)];
const VERSION: Names = &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5)];
const NORMALIZATION: Names =
    &[("none", 0), ("formD", 16), ("formKD", 32), ("formC", 80), ("formKC", 96)];
const CASE: Names = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];
const LOGBIAS: Names = &[("latency", 0), ("throughput", 1)];
const SYNC: Names = &[("standard", 0), ("always", 1), ("disabled", 2)];
const DNODESIZE: Names = &[
    ("legacy", 0),
    ("auto", 1),
    ("1k", 1024),
    ("2k", 2048),
    ("4k", 4096),
    ("8k", 8192),
    ("16k", 16384),
];
const VOLMODE: Names = &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];
const SNAPDEV: Names = &[("hidden", 0), ("visible", 1)];
const ACLTYPE: Names = &[("off", 0), ("posix", 1), ("nfsv4", 2)];
const REDUNDANT: Names = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];
/// Cipher suites by stored value.
pub const ENCRYPTION: Names = &[
    ("on", 1),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
];
const KEYFORMAT: Names = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];
const KEYSTATUS: Names = &[("none", 0), ("unavailable", 1), ("available", 2)];
const DIRECT: Names = &[("disabled", 0), ("standard", 1), ("always", 2)];
const FAILMODE: Names = &[("wait", 0), ("continue", 1), ("panic", 2)];

const NONE: u64 = u64::MAX;
const BYTES: PropType = Number(Form::Bytes);
const OR_NONE: PropType = Number(Form::BytesOrNone);
const COUNT: PropType = Number(Form::CountOrNone);
const PLAIN: PropType = Number(Form::Number);
const RATIO: PropType = Number(Form::Ratio);
const SIZE: Option<&str> = Some("<size>");
const SIZE_NONE: Option<&str> = Some("<size> | none");
const SWITCH: Option<&str> = Some("on | off");
const YES_NO: Option<&str> = Some("yes | no");
const RATIO_TEXT: Option<&str> = Some("<1.00x or higher if compressed>");
const CHECKSUM_TEXT: &str =
    "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3";
const COMPRESSION_TEXT: &str = "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | \
    zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]";
const DEDUP_TEXT: &str = "on | off | verify | sha256[,verify] | sha512[,verify] | \
    skein[,verify] | edonr,verify | blake3[,verify]";
const ENCRYPTION_TEXT: &str = "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | \
    aes-128-gcm | aes-192-gcm | aes-256-gcm";

/// Returns a property; columns of numbers are aligned right.
#[expect(clippy::too_many_arguments, reason = "rows of a table")]
const fn property(
    name: &'static str,
    value_type: PropType,
    types: &'static str,
    access: Access,
    is_inheritable: bool,
    default: PropDefault,
    column: &'static str,
    values: Option<&'static str>,
) -> Property {
    let align_right = matches!(value_type, Number(_));
    Property {
        name,
        value_type,
        types,
        access,
        is_inheritable,
        default,
        column,
        align_right,
        values,
    }
}

/// Returns a number or index property.
#[expect(clippy::too_many_arguments, reason = "rows of a table")]
const fn row(
    name: &'static str,
    value_type: PropType,
    types: &'static str,
    access: Access,
    is_inheritable: bool,
    default: u64,
    column: &'static str,
    values: Option<&'static str>,
) -> Property {
    let default = PropDefault::Number(default);
    property(name, value_type, types, access, is_inheritable, default, column, values)
}

/// Returns a text property.
const fn text(
    name: &'static str,
    types: &'static str,
    access: Access,
    is_inheritable: bool,
    default: Option<&'static str>,
    column: &'static str,
    values: Option<&'static str>,
) -> Property {
    let default = match default {
        Some(text) => PropDefault::Text(text),
        None => PropDefault::None,
    };
    property(name, Text, types, access, is_inheritable, default, column, values)
}

/// Returns a date property, the only kind of number whose column is aligned left.
const fn date(name: &'static str, types: &'static str, column: &'static str) -> Property {
    let mut property = row(name, Number(Form::Date), types, RO, false, 0, column, Some("<date>"));
    property.align_right = false;
    property
}

/// Properties of datasets.
#[rustfmt::skip]
pub const DATASET_PROPERTIES: &[Property] = &[
    text("type", "fsvb", RO, false, None, "TYPE", Some("filesystem | volume | snapshot | bookmark")),
    date("creation", "fsvb", "CREATION"),
    row("used", BYTES, "fsv", RO, false, 0, "USED", SIZE),
    row("available", BYTES, "fv", RO, false, 0, "AVAIL", SIZE),
    row("referenced", BYTES, "fsvb", RO, false, 0, "REFER", SIZE),
    row("compressratio", RATIO, "fsvb", RO, false, 0, "RATIO", RATIO_TEXT),
    row("mounted", Index(&[("no", 0), ("yes", 1)]), "f", RO, false, 0, "MOUNTED", YES_NO),
    text("origin", "fv", RO, false, None, "ORIGIN", Some("<snapshot>")),
    row("quota", OR_NONE, "f", RW, false, 0, "QUOTA", SIZE_NONE),
    row("reservation", OR_NONE, "fv", RW, false, 0, "RESERV", SIZE_NONE),
    row("volsize", BYTES, "sv", RW, false, 0, "VOLSIZE", SIZE),
    row("volblocksize", BYTES, "v", ONCE, true, 16384, "VOLBLOCK", Some("512 to 128k, power of 2")),
    row("recordsize", BYTES, "f", RW, true, 131072, "RECSIZE", Some("512 to 1M, power of 2")),
    text("mountpoint", "f", RW, true, Some("/"), "MOUNTPOINT", Some("<path> | legacy | none")),
    text("sharenfs", "f", RW, true, Some("off"), "SHARENFS", Some("on | off | NFS share options")),
    row("checksum", Index(CHECKSUM), "fv", RW, true, 1, "CHECKSUM", Some(CHECKSUM_TEXT)),
    row("compression", Index(COMPRESSION), "fv", RW, true, 1, "COMPRESS", Some(COMPRESSION_TEXT)),
    row("atime", Index(ON_OFF), "f", RW, true, 1, "ATIME", SWITCH),
    row("devices", Index(ON_OFF), "fs", RW, true, 1, "DEVICES", SWITCH),
    row("exec", Index(ON_OFF), "fs", RW, true, 1, "EXEC", SWITCH),
    row("setuid", Index(ON_OFF), "fs", RW, true, 1, "SETUID", SWITCH),
    row("readonly", Index(ON_OFF), "fv", RW, true, 0, "RDONLY", SWITCH),
    row("zoned", Index(ON_OFF), "f", RW, true, 0, "ZONED", SWITCH),
    row("snapdir", Index(SNAPDIR), "f", RW, true, 0, "SNAPDIR", Some("disabled | hidden | visible")),
    row("aclmode", Index(ACLMODE), "f", RW, true, 0, "ACLMODE", Some("discard | groupmask | passthrough | restricted")),
    row("aclinherit", Index(ACLINHERIT), "f", RW, true, 4, "ACLINHERIT", Some("discard | noallow | restricted | passthrough | passthrough-x")),
    row("createtxg", PLAIN, "fsvb", RO, false, 0, "CREATETXG", Some("<uint64>")),
    text("name", "fsvb", RO, false, None, "NAME", None),
    row("canmount", Index(CANMOUNT), "f", RW, false, 1, "CANMOUNT", Some("on | off | noauto")),
    text("iscsioptions", "v", RW, true, None, "ISCSIOPTIONS", None),
    row("xattr", Index(XATTR), "fs", RW, true, 2, "XATTR", Some("on | off | dir | sa")),
    row("numclones", PLAIN, "s", RO, false, 0, "NUMCLONES", None),
    row("copies", Index(COPIES), "fv", RW, true, 1, "COPIES", Some("1 | 2 | 3")),
    row("version", Index(VERSION), "fs", RW, false, 0, "VERSION", Some("1 | 2 | 3 | 4 | 5 | current")),
    row("utf8only", Index(ON_OFF), "fs", ONCE, true, 0, "UTF8ONLY", SWITCH),
    row("normalization", Index(NORMALIZATION), "fs", ONCE, true, 0, "NORMALIZATION", Some("none | formC | formD | formKC | formKD")),
    row("casesensitivity", Index(CASE), "fs", ONCE, true, 0, "CASE", Some("sensitive | insensitive | mixed")),
    row("vscan", Index(ON_OFF), "f", RW, true, 0, "VSCAN", SWITCH),
    row("nbmand", Index(ON_OFF), "fs", RW, true, 0, "NBMAND", SWITCH),
    text("sharesmb", "f", RW, true, Some("off"), "SHARESMB", Some("on | off | SMB share options")),
    row("refquota", OR_NONE, "f", RW, false, 0, "REFQUOTA", SIZE_NONE),
    row("refreservation", OR_NONE, "fv", RW, false, 0, "REFRESERV", SIZE_NONE),
    row("guid", PLAIN, "fsvb", RO, false, 0, "GUID", Some("<uint64>")),
    row("primarycache", Index(CACHE), "fsv", RW, true, 2, "PRIMARYCACHE", Some("all | none | metadata")),
    row("secondarycache", Index(CACHE), "fsv", RW, true, 2, "SECONDARYCACHE", Some("all | none | metadata")),
    row("usedbysnapshots", BYTES, "fv", RO, false, 0, "USEDSNAP", SIZE),
    row("usedbydataset", BYTES, "fv", RO, false, 0, "USEDDS", SIZE),
    row("usedbychildren", BYTES, "fv", RO, false, 0, "USEDCHILD", SIZE),
    row("usedbyrefreservation", BYTES, "fv", RO, false, 0, "USEDREFRESERV", SIZE),
    row("useraccounting", PLAIN, "fsv", RO, false, 0, "USERACCOUNTING", None),
    text("stmf_sbd_lu", "v", RW, true, None, "STMF_SBD_LU", None),
    row("defer_destroy", Index(ON_OFF), "s", RO, false, 0, "DEFER_DESTROY", YES_NO),
    row("userrefs", PLAIN, "s", RO, false, 0, "USERREFS", Some("<count>")),
    row("logbias", Index(LOGBIAS), "fv", RW, true, 0, "LOGBIAS", Some("latency | throughput")),
    row("unique", BYTES, "fsv", RO, false, 0, "UNIQUE", None),
    row("objsetid", PLAIN, "fsv", RO, false, 0, "OBJSETID", Some("<uint64>")),
    row("dedup", Index(DEDUP), "fv", RW, true, 2, "DEDUP", Some(DEDUP_TEXT)),
    text("mlslabel", "fsv", RW, true, Some("none"), "MLSLABEL", Some("<sensitivity label>")),
    row("sync", Index(SYNC), "fv", RW, true, 0, "SYNC", Some("standard | always | disabled")),
    row("dnodesize", Index(DNODESIZE), "f", RW, true, 0, "DNSIZE", Some("legacy | auto | 1k | 2k | 4k | 8k | 16k")),
    row("refcompressratio", RATIO, "fsv", RO, false, 0, "REFRATIO", RATIO_TEXT),
    row("written", BYTES, "fsv", RO, false, 0, "WRITTEN", SIZE),
    text("clones", "s", RO, false, None, "CLONES", Some("<dataset>[,...]")),
    row("logicalused", BYTES, "fv", RO, false, 0, "LUSED", SIZE),
    row("logicalreferenced", BYTES, "fsvb", RO, false, 0, "LREFER", SIZE),
    row("inconsistent", PLAIN, "fsv", RO, false, 0, "INCONSISTENT", None),
    row("volmode", Index(VOLMODE), "fv", RW, true, 0, "VOLMODE", Some("default | full | geom | dev | none")),
    row("filesystem_limit", COUNT, "f", RW, false, NONE, "FSLIMIT", Some("<count> | none")),
    row("snapshot_limit", COUNT, "fv", RW, false, NONE, "SSLIMIT", Some("<count> | none")),
    row("filesystem_count", COUNT, "f", RO, false, NONE, "FSCOUNT", Some("<count>")),
    row("snapshot_count", COUNT, "fv", RO, false, NONE, "SSCOUNT", Some("<count>")),
    row("snapdev", Index(SNAPDEV), "fv", RW, true, 0, "SNAPDEV", Some("hidden | visible")),
    row("acltype", Index(ACLTYPE), "fs", RW, true, 0, "ACLTYPE", Some("off | nfsv4 | posix")),
    text("context", "fsv", RW, false, Some("none"), "CONTEXT", Some("<selinux context>")),
    text("fscontext", "fsv", RW, false, Some("none"), "FSCONTEXT", Some("<selinux fscontext>")),
    text("defcontext", "fsv", RW, false, Some("none"), "DEFCONTEXT", Some("<selinux defcontext>")),
    text("rootcontext", "fsv", RW, false, Some("none"), "ROOTCONTEXT", Some("<selinux rootcontext>")),
    row("relatime", Index(ON_OFF), "f", RW, true, 1, "RELATIME", SWITCH),
    row("redundant_metadata", Index(REDUNDANT), "fv", RW, true, 0, "REDUND_MD", Some("all | most | some | none")),
    row("overlay", Index(ON_OFF), "f", RW, true, 1, "OVERLAY", SWITCH),
    text("prevsnap", "fv", RO, false, None, "PREVSNAP", None),
    text("receive_resume_token", "fv", RO, false, None, "RESUMETOK", Some("<string token>")),
    row("encryption", Index(ENCRYPTION), "fsv", ONCE, true, 2, "ENCRYPTION", Some(ENCRYPTION_TEXT)),
    text("keylocation", "fv", RW, false, Some("none"), "KEYLOCATION", Some("prompt | <file URI> | <https URL> | <http URL>")),
    row("keyformat", Index(KEYFORMAT), "fv", ONCE, false, 0, "KEYFORMAT", Some("none | raw | hex | passphrase")),
    row("pbkdf2salt", PLAIN, "fv", ONCE, false, 0, "PBKDF2SALT", None),
    row("pbkdf2iters", PLAIN, "fv", ONCE, false, 0, "PBKDF2ITERS", Some("<iters>")),
    text("encryptionroot", "fsv", RO, false, None, "ENCROOT", Some("<filesystem | volume>")),
    row("keyguid", PLAIN, "fsv", RO, false, 0, "KEYGUID", None),
    row("keystatus", Index(KEYSTATUS), "fsv", RO, false, 0, "KEYSTATUS", Some("none | unavailable | available")),
    row("remaptxg", PLAIN, "fsv", RO, false, 0, "REMAPTXG", None),
    row("special_small_blocks", BYTES, "f", RW, true, 0, "SPECIAL_SMALL_BLOCKS", Some("zero or 512 to 1M, power of 2")),
    row("ivsetguid", PLAIN, "fsvb", RO, false, 0, "IVSETGUID", None),
    row("redacted", PLAIN, "fsv", RO, false, 0, "REDACTED", None),
    text("redact_snaps", "fsvb", RO, false, None, "RSNAPS", Some("<snapshot>[,...]")),
    date("snapshots_changed", "fv", "SNAPSHOTS_CHANGED"),
    row("prefetch", Index(CACHE), "fsv", RW, true, 2, "PREFETCH", Some("none | metadata | all")),
    row("volthreading", Index(ON_OFF), "v", RW, false, 1, "zvol threading", SWITCH),
    row("direct", Index(DIRECT), "f", RW, true, 1, "DIRECT", Some("disabled | standard | always")),
    row("longname", Index(ON_OFF), "f", RW, true, 0, "LONGNAME", SWITCH),
];

/// Returns a number property of a pool.
const fn pool(
    name: &'static str,
    value_type: PropType,
    access: Access,
    default: u64,
    column: &'static str,
    values: Option<&'static str>,
) -> Property {
    row(name, value_type, "", access, false, default, column, values)
}

/// Returns a text property of a pool.
const fn pool_text(
    name: &'static str,
    access: Access,
    default: Option<&'static str>,
    column: &'static str,
    values: Option<&'static str>,
) -> Property {
    text(name, "", access, false, default, column, values)
}

/// Properties of pools.
#[rustfmt::skip]
pub const POOL_PROPERTIES: &[Property] = &[
    pool_text("name", RO, None, "NAME", None),
    pool("size", BYTES, RO, 0, "SIZE", SIZE),
    pool("capacity", Number(Form::Percent), RO, 0, "CAP", Some("<percent>")),
    pool_text("altroot", RW, None, "ALTROOT", Some("<path>")),
    pool("health", PLAIN, RO, 0, "HEALTH", Some("<state>")),
    pool("guid", PLAIN, RO, 0, "GUID", Some("<guid>")),
    pool("version", PLAIN, RW, 5000, "VERSION", Some("<version>")),
    pool_text("bootfs", RW, None, "BOOTFS", Some("<filesystem>")),
    pool("delegation", Index(ON_OFF), RW, 1, "DELEGATION", SWITCH),
    pool("autoreplace", Index(ON_OFF), RW, 0, "REPLACE", SWITCH),
    pool_text("cachefile", RW, None, "CACHEFILE", Some("<file> | none")),
    pool("failmode", Index(FAILMODE), RW, 0, "FAILMODE", Some("wait | continue | panic")),
    pool("listsnapshots", Index(ON_OFF), RW, 0, "LISTSNAPS", SWITCH),
    pool("autoexpand", Index(ON_OFF), RW, 0, "EXPAND", SWITCH),
    pool("dedupditto", PLAIN, RW, 0, "DEDUPDITTO", None),
    pool("dedupratio", RATIO, RO, 0, "DEDUP", Some("<1.00x or higher if deduped>")),
    pool("free", BYTES, RO, 0, "FREE", SIZE),
    pool("allocated", BYTES, RO, 0, "ALLOC", SIZE),
    pool("readonly", Index(ON_OFF), RW, 0, "RDONLY", SWITCH),
    pool("ashift", PLAIN, RW, 0, "ASHIFT", Some("<ashift, 9-16, or 0=default>")),
    pool_text("comment", RW, None, "COMMENT", Some("<comment-string>")),
    pool("expandsize", BYTES, RO, 0, "EXPANDSZ", SIZE),
    pool("freeing", BYTES, RO, 0, "FREEING", SIZE),
    pool("fragmentation", Number(Form::Percent), RO, 0, "FRAG", Some("<percent>")),
    pool("leaked", BYTES, RO, 0, "LEAKED", SIZE),
    pool("maxblocksize", BYTES, RO, 0, "MAXBLOCKSIZE", None),
    pool_text("tname", ONCE, None, "TNAME", None),
    pool("maxdnodesize", BYTES, RO, 0, "MAXDNODESIZE", None),
    pool("multihost", Index(ON_OFF), RW, 0, "MULTIHOST", SWITCH),
    pool("checkpoint", BYTES, RO, 0, "CKPOINT", SIZE),
    pool("load_guid", PLAIN, RO, 0, "LOAD_GUID", Some("<load_guid>")),
    pool("autotrim", Index(ON_OFF), RW, 0, "AUTOTRIM", SWITCH),
    pool_text("compatibility", RW, Some("off"), "COMPATIBILITY", Some("<file[,file...]> | off | legacy")),
    pool("bcloneused", BYTES, RO, 0, "BCLONE_USED", SIZE),
    pool("bclonesaved", BYTES, RO, 0, "BCLONE_SAVED", SIZE),
    pool("bcloneratio", RATIO, RO, 0, "BCLONE_RATIO", Some("<1.00x or higher if cloned>")),
    pool("dedup_table_size", BYTES, RO, 0, "DDTSIZE", SIZE),
    pool("dedup_table_quota", BYTES, RW, NONE, "DDTQUOTA", SIZE),
    pool("dedupcached", BYTES, RO, 0, "DEDUPCACHED", None),
    pool("last_scrubbed_txg", PLAIN, RO, 0, "LAST_SCRUBBED_TXG", Some("<txg>")),
];

/// Returns the property with this name, or with this heading in lower case (`recsize`).
#[must_use]
pub fn property_named(table: &'static [Property], name: &str) -> Option<&'static Property> {
    let is_heading = |property: &&Property| property.column.to_ascii_lowercase() == name;
    table.iter().find(|property| property.name == name).or_else(|| table.iter().find(is_heading))
}

/// Returns the dataset property with this name.
#[must_use]
pub fn dataset_property(name: &str) -> Option<&'static Property> {
    DATASET_PROPERTIES.iter().find(|property| property.name == name)
}

/// Returns the pool property with this name.
#[must_use]
pub fn pool_property(name: &str) -> Option<&'static Property> {
    POOL_PROPERTIES.iter().find(|property| property.name == name)
}

impl Property {
    /// Whether listings of all properties omit it.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.values.is_none()
    }

    /// Returns the name of an index value.
    #[must_use]
    pub fn index_name(&self, value: u64) -> Option<&'static str> {
        let Index(names) = self.value_type else { return None };
        names.iter().find(|(_, number)| *number == value).map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_tables_are_complete_and_unique() {
        assert_eq!((DATASET_PROPERTIES.len(), POOL_PROPERTIES.len()), (100, 40));
        for table in [DATASET_PROPERTIES, POOL_PROPERTIES] {
            for (index, property) in table.iter().enumerate() {
                let twice = table[..index].iter().any(|other| other.name == property.name);
                assert!(!twice, "{}", property.name);
                if let (Index(names), PropDefault::Number(value)) =
                    (property.value_type, property.default)
                {
                    let known = names.iter().any(|(_, number)| *number == value);
                    // Statistics have no default; a file system always has a version.
                    assert!(known || property.access == RO || property.name == "version");
                }
            }
        }
    }

    #[test]
    fn index_values_show_their_first_name() {
        let name = |property, value| dataset_property(property).unwrap().index_name(value);
        assert_eq!(name("xattr", 2), Some("on"));
        assert_eq!(name("compression", 13712), Some("zstd-fast-5"));
        assert_eq!(name("dedup", 0x10c), Some("skein,verify"));
        assert_eq!(name("sync", 9), None);
    }
}
