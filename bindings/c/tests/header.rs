//! The header says what the crate exports: functions with as many parameters, and numbers of codes.

use std::collections::BTreeMap;

use hedgerow_kvssd::ResultCode;

const HEADER: &str = include_str!("../include/hedgerow_kvssd.h");
const SOURCES: [&str; 2] = [include_str!("../src/exports.rs"), include_str!("../src/exports_pairs.rs")];

/// How many parameters there are in what follows an opening parenthesis.
fn parameters(text: &str) -> usize {
    let list = &text[..text.find(')').expect("a list of parameters ends")];
    list.split(',').filter(|parameter| !parameter.trim().is_empty()).count()
}

/// Functions after each `mark`, and how many parameters they have.
fn functions(text: &str, mark: &str) -> BTreeMap<String, usize> {
    let after = text.match_indices(mark).map(|(at, _)| &text[at + mark.len()..]);
    let named = after.filter_map(|rest| {
        let (name, list) = rest.split_once('(')?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then(|| (name.to_owned(), parameters(list)))
    });
    named.collect()
}

#[test]
fn what_is_declared_is_exported_and_the_other_way_round() {
    let declared = functions(HEADER, "\nkvs_result ");
    let mut exported = BTreeMap::new();
    for source in SOURCES {
        let marks = source.matches("#[unsafe(no_mangle)]").count();
        let mut of_file = functions(source, "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn ");
        of_file.extend(functions(source, "#[unsafe(no_mangle)]\npub extern \"C\" fn "));
        assert_eq!(of_file.len(), marks, "every exported function is found");
        exported.extend(of_file);
    }
    assert_eq!(declared, exported);
    assert_eq!(declared.len(), 31);
}

#[test]
fn codes_have_the_numbers_of_the_standard() {
    use ResultCode::*;
    let codes = [
        ("KVS_SUCCESS", Success),
        ("KVS_ERR_BUFFER_SMALL", BufferSmall),
        ("KVS_ERR_DEV_CAPACITY", DeviceCapacity),
        ("KVS_ERR_DEV_NOT_EXIST", DeviceNotExist),
        ("KVS_ERR_KS_CAPACITY", KeySpaceCapacity),
        ("KVS_ERR_KS_EXIST", KeySpaceExist),
        ("KVS_ERR_KS_INDEX", KeySpaceIndex),
        ("KVS_ERR_KS_NAME", KeySpaceName),
        ("KVS_ERR_KS_NOT_EXIST", KeySpaceNotExist),
        ("KVS_ERR_KS_NOT_OPEN", KeySpaceNotOpen),
        ("KVS_ERR_KS_OPEN", KeySpaceOpen),
        ("KVS_ERR_ITERATOR_FILTER_INVALID", IteratorFilterInvalid),
        ("KVS_ERR_ITERATOR_MAX", IteratorMax),
        ("KVS_ERR_ITERATOR_NOT_EXIST", IteratorNotExist),
        ("KVS_ERR_ITERATOR_OPEN", IteratorOpen),
        ("KVS_ERR_KEY_LENGTH_INVALID", KeyLengthInvalid),
        ("KVS_ERR_KEY_NOT_EXIST", KeyNotExist),
        ("KVS_ERR_OPTION_INVALID", OptionInvalid),
        ("KVS_ERR_PARAM_INVALID", ParamInvalid),
        ("KVS_ERR_SYS_IO", SystemIo),
        ("KVS_ERR_VALUE_LENGTH_INVALID", ValueLengthInvalid),
        ("KVS_ERR_VALUE_OFFSET_INVALID", ValueOffsetInvalid),
        ("KVS_ERR_VALUE_OFFSET_MISALIGNED", ValueOffsetMisaligned),
        ("KVS_ERR_VALUE_UPDATE_NOT_ALLOWED", ValueUpdateNotAllowed),
        ("KVS_ERR_DEV_NOT_OPENED", DeviceNotOpened),
    ];
    let expected: BTreeMap<_, _> = codes.map(|(name, code)| (name, code as u32)).into();
    let declared: BTreeMap<_, _> = HEADER
        .lines()
        .filter_map(|line| {
            let (name, number) = line.trim().split_once(" = 0x")?;
            let number = number.split([',', ' ']).next()?;
            Some((name, u32::from_str_radix(number, 16).ok()?))
        })
        .collect();
    assert_eq!(declared, expected);
}

#[test]
fn other_numbers_are_those_of_the_crate() {
    for (text, number) in [
        ("#define HR_ASYNC_DEPTH ", hedgerow_kvssd_c::ASYNC_DEPTH as u32),
        ("KVS_CMD_DELETE = ", hedgerow_kvssd_c::OPERATION_DELETE),
        ("KVS_CMD_RETRIEVE = ", hedgerow_kvssd_c::OPERATION_RETRIEVE),
        ("KVS_CMD_STORE = ", hedgerow_kvssd_c::OPERATION_STORE),
    ] {
        let at = HEADER.find(text).expect("the header has it") + text.len();
        let digits: String = HEADER[at..].chars().take_while(char::is_ascii_digit).collect();
        assert_eq!(digits.parse(), Ok(number), "{text}");
    }
}
