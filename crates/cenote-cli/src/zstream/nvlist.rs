//! Text of an nvlist as libnvpair's `nvlist_print` writes it.
//!
//! ```text
//!   nvlist version: 0
//!           tosnap = all
//!           fss = (embedded nvlist)
//!           nvlist version: 0
//!                   ...
//!           (end fss)
//! ```

use std::fmt::{Display, LowerHex};
use std::io::{Result, Write};

use cenote_ondisk::nvlist::{NvList, NvString, NvValue};

/// Writes a list, its pairs behind `indent` + 1 tabs.
pub(crate) fn print(out: &mut (dyn Write + Send), list: &NvList, indent: usize) -> Result<()> {
    let tabs = "\t".repeat(indent);
    writeln!(out, "{tabs}nvlist version: 0")?;
    for (name, value) in list.iter() {
        print_pair(out, name, value, indent + 1)?;
    }
    Ok(())
}

fn print_pair(
    out: &mut (dyn Write + Send),
    name: &NvString,
    value: &NvValue,
    indent: usize,
) -> Result<()> {
    let tabs = "\t".repeat(indent);
    let mut line = |after: &[&[u8]]| -> Result<()> {
        out.write_all(tabs.as_bytes())?;
        after.iter().try_for_each(|part| out.write_all(part))
    };
    match value {
        NvValue::List(inner) => {
            line(&[name.as_bytes(), b" = (embedded nvlist)\n"])?;
            print(out, inner, indent)?;
            out.write_all(tabs.as_bytes())?;
            out.write_all(&[b"(end ", name.as_bytes(), b")\n\n"].concat())
        }
        NvValue::ListArray(lists) => {
            line(&[name.as_bytes(), b" = (array of embedded nvlists)\n"])?;
            for (index, inner) in lists.iter().enumerate() {
                let tail = format!("[{index}])\n");
                out.write_all(tabs.as_bytes())?;
                out.write_all(&[b"(start ", name.as_bytes(), tail.as_bytes()].concat())?;
                print(out, inner, indent)?;
                out.write_all(tabs.as_bytes())?;
                out.write_all(&[b"(end ", name.as_bytes(), tail.as_bytes()].concat())?;
            }
            out.write_all(b"\n")
        }
        value => {
            let text = text(value);
            // An array without elements has an empty line.
            if text.is_empty() && !matches!(value, NvValue::String(_)) {
                return out.write_all(b"\n");
            }
            line(&[name.as_bytes(), b" = ", &text, b"\n"])
        }
    }
}

fn hex(value: impl LowerHex) -> Vec<u8> {
    format!("{value:#x}").into_bytes()
}

fn decimal(value: impl Display) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn byte(value: u8) -> Vec<u8> {
    format!("{value:#04x}").into_bytes()
}

fn join<T: Copy>(values: &[T], text: impl Fn(T) -> Vec<u8>) -> Vec<u8> {
    values.iter().map(|value| text(*value)).collect::<Vec<_>>().join(&b' ')
}

/// The text of a value that is no list, or of all elements of an array.
fn text(value: &NvValue) -> Vec<u8> {
    match value {
        NvValue::Boolean => b"1".to_vec(),
        NvValue::BooleanValue(value) => decimal(u8::from(*value)),
        NvValue::Byte(value) => byte(*value),
        NvValue::Int8(value) => decimal(value),
        NvValue::Uint8(value) => hex(value),
        NvValue::Int16(value) => decimal(value),
        NvValue::Uint16(value) => hex(value),
        NvValue::Int32(value) => decimal(value),
        NvValue::Uint32(value) => hex(value),
        NvValue::Int64(value) => decimal(value),
        NvValue::Uint64(value) => hex(value),
        NvValue::Hrtime(value) => hex(value),
        NvValue::Double(value) => format!("0x{value:.6}").into_bytes(),
        NvValue::String(value) => value.as_bytes().to_vec(),
        NvValue::BooleanArray(values) => join(values, |value| decimal(u8::from(value))),
        NvValue::ByteArray(values) => join(values, byte),
        NvValue::Int8Array(values) => join(values, decimal),
        NvValue::Uint8Array(values) => join(values, hex),
        NvValue::Int16Array(values) => join(values, decimal),
        NvValue::Uint16Array(values) => join(values, hex),
        NvValue::Int32Array(values) => join(values, decimal),
        NvValue::Uint32Array(values) => join(values, hex),
        NvValue::Int64Array(values) => join(values, decimal),
        NvValue::Uint64Array(values) => join(values, hex),
        NvValue::StringArray(values) => {
            values.iter().map(NvString::as_bytes).collect::<Vec<_>>().join(&b' ')
        }
        NvValue::List(_) | NvValue::ListArray(_) => Vec::new(),
    }
}
