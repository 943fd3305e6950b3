//! Keys of a file system's master node (object 1) and of its FUID table (spec 03 §9.1, §13.1).

/// The object that holds these keys.
pub const MASTER_NODE_OBJ: u64 = 1;

/// File system version, 1-5.
pub const VERSION: &str = "VERSION";
/// Root directory.
pub const ROOT: &str = "ROOT";
/// Unlinked set.
pub const DELETE_QUEUE: &str = "DELETE_QUEUE";
/// SA master node (version 5).
pub const SA_ATTRS: &str = "SA_ATTRS";
/// Table of id domains.
pub const FUID: &str = "FUID";
/// Directory of shares (illumos, FreeBSD).
pub const SHARES: &str = "SHARES";
/// Unicode form of names: [`crate::zap::NormFlags`].
pub const NORMALIZATION: &str = "normalization";
/// 1 = names must be UTF-8.
pub const UTF8ONLY: &str = "utf8only";
/// 0 sensitive, 1 insensitive, 2 mixed.
pub const CASESENSITIVITY: &str = "casesensitivity";

/// Highest version of a file system.
pub const VERSION_MAX: u64 = 5;
/// First version with system attributes.
pub const VERSION_SA: u64 = 5;

/// FUID table: array of nvlists.
pub const FUID_NVP_ARRAY: &str = "fuid_nvlist";
/// FUID table: index of a domain, from 1.
pub const FUID_IDX: &str = "fuid_idx";
/// FUID table: 0.
pub const FUID_OFFSET: &str = "fuid_offset";
/// FUID table: name of a domain.
pub const FUID_DOMAIN: &str = "fuid_domain";

/// Objects of a volume: its data.
pub const ZVOL_OBJ: u64 = 1;
/// Objects of a volume: ZAP with its size.
pub const ZVOL_ZAP_OBJ: u64 = 2;
/// Key of a volume's size in bytes.
pub const ZVOL_SIZE: &str = "size";
