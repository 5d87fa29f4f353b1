//! The boundary to C.
//!
//! Owns how the caller's memory is read and written, and how a function ends. Promises that a null pointer is a code, that no panic crosses, and that what is read is copied or borrowed only while the function that was called runs. Must not know what is done with it.
//!
//! Whether a pointer that is not null leads to so many bytes nobody can check here: the header says what must be there, and that is what each `SAFETY` rests on.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hedgerow_kvssd::{KEY_BYTES_MAX, KvError, ResultCode};

use crate::layout::{KvsKey, KvsResult};

/// The result of what a function does.
pub(crate) type CodeResult<T> = Result<T, ResultCode>;

/// Runs what a function does; a panic is SYS_IO.
pub(crate) fn guarded(work: impl FnOnce() -> CodeResult<()>) -> KvsResult {
    let code = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => ResultCode::Success,
        Ok(Err(code)) => code,
        Err(_) => ResultCode::SystemIo,
    };
    code as KvsResult
}

/// The code of an error.
pub(crate) fn code_of(error: KvError) -> ResultCode {
    error.code()
}

/// What a pointer leads to; null is PARAM_INVALID.
///
/// # Safety
/// If it is not null it leads to a `T` that nobody changes while the result lives.
pub(crate) unsafe fn required<'a, T>(pointer: *const T) -> CodeResult<&'a T> {
    // SAFETY: by this function's own condition.
    unsafe { aligned(pointer)?.as_ref() }.ok_or(ResultCode::ParamInvalid)
}

/// What a pointer leads to, to be changed; null is PARAM_INVALID.
///
/// # Safety
/// If it is not null it leads to a `T` that nobody else reads or changes while the result lives.
pub(crate) unsafe fn required_mut<'a, T>(pointer: *mut T) -> CodeResult<&'a mut T> {
    aligned(pointer)?;
    // SAFETY: by this function's own condition.
    unsafe { pointer.as_mut() }.ok_or(ResultCode::ParamInvalid)
}

/// A copy of what a pointer leads to; none for null.
///
/// # Safety
/// If it is not null it leads to a `T` that nobody changes meanwhile.
pub(crate) unsafe fn optional<T: Copy>(pointer: *const T) -> CodeResult<Option<T>> {
    // SAFETY: by this function's own condition.
    Ok(unsafe { aligned(pointer)?.as_ref() }.copied())
}

/// A pointer that is not aligned for its type is no pointer to one.
fn aligned<T>(pointer: *const T) -> CodeResult<*const T> {
    if pointer.is_aligned() { Ok(pointer) } else { Err(ResultCode::ParamInvalid) }
}

/// Elements of the caller's; none need no pointer.
///
/// # Safety
/// If it is not null, `count` elements are there that nobody changes while the result lives.
pub(crate) unsafe fn elements<'a, T>(pointer: *const T, count: usize) -> CodeResult<&'a [T]> {
    match (count, aligned(pointer)?.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(ResultCode::ParamInvalid),
        // SAFETY: by this function's own condition; counts of 32 bits are less than what a slice may have.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// The bytes of a text that ends with a zero, without that.
///
/// # Safety
/// If it is not null it leads to such a text, which nobody changes while the result lives.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> CodeResult<&'a [u8]> {
    if pointer.is_null() {
        return Err(ResultCode::ParamInvalid);
    }
    // SAFETY: by this function's own condition.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Sets what a pointer leads to; null is PARAM_INVALID.
///
/// # Safety
/// If it is not null it leads to room for a `T` that nobody else reads or changes meanwhile.
pub(crate) unsafe fn set<T>(room: *mut T, value: T) -> CodeResult<()> {
    if aligned(room)?.is_null() {
        return Err(ResultCode::ParamInvalid);
    }
    // SAFETY: by this function's own condition.
    unsafe { room.write(value) };
    Ok(())
}

/// Copies bytes to the caller's room.
///
/// # Safety
/// If `room` is not null and there are bytes, it has room for all of them, which nobody else reads or changes meanwhile.
pub(crate) unsafe fn write_bytes(room: *mut u8, bytes: &[u8]) -> CodeResult<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    if room.is_null() {
        return Err(ResultCode::ParamInvalid);
    }
    // SAFETY: by this function's own condition; `bytes` is memory of this library, so the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len()) };
    Ok(())
}

/// The bytes of a key. Its length is looked at before its pointer.
///
/// # Safety
/// As of [`required`], and of [`elements`] for what it leads to.
pub(crate) unsafe fn key_bytes<'a>(key: *const KvsKey) -> CodeResult<&'a [u8]> {
    // SAFETY: by this function's own condition.
    let key = unsafe { required(key) }?;
    let bytes = usize::from(key.length);
    if bytes == 0 || bytes > KEY_BYTES_MAX {
        return Err(ResultCode::KeyLengthInvalid);
    }
    // SAFETY: as above.
    unsafe { elements(key.key.cast::<u8>(), bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A panic is a code, and so is a pointer that cannot lead to what it should.
    #[test]
    fn panics_end_here_and_wrong_pointers_are_codes() {
        assert_eq!(guarded(|| panic!("a test of panics")), ResultCode::SystemIo as u32);
        assert_eq!(guarded(|| Ok(())), 0);
        let numbers = [1u64, 2];
        // SAFETY: one is null, the other is refused before anything is read.
        unsafe {
            assert_eq!(required::<u64>(std::ptr::null()).unwrap_err(), ResultCode::ParamInvalid);
            let odd = numbers.as_ptr().wrapping_byte_add(1);
            assert_eq!(required(odd).unwrap_err(), ResultCode::ParamInvalid);
            assert_eq!(*required(&raw const numbers[1]).unwrap(), 2);
            assert_eq!(write_bytes(std::ptr::null_mut(), b"a").unwrap_err(), ResultCode::ParamInvalid);
        }
    }
}
