//! The limits of one row.

/// Bytes in a key: 1 to this.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Bytes in one value and in one row's values together.
pub const ROW_BYTES_MAX: usize = 64 << 20;
/// Fields in a table.
pub const FIELDS_MAX: usize = 1024;
/// Bytes in the body of one row: its values, the room of those of a fixed length that are absent, and what says where each is and when it expires.
pub const BODY_BYTES_MAX: usize = ROW_BYTES_MAX + (4096 + 64) * FIELDS_MAX;
/// Bytes in a table's name: 1 to this.
pub const TABLE_NAME_BYTES_MAX: usize = 255;
/// Bytes of what one transaction is about to write, held in memory at once, keys and what each write takes besides included: where a transaction is staged
/// before it is written, as the server does, and over a store of pairs.
pub const TRANSACTION_BYTES_MAX: usize = 256 << 20;
