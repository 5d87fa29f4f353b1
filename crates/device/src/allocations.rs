//! An allocator that counts, for tests and measurements of what an operation asks of it.
//!
//! Owns the count, by thread. Promises to do otherwise what the system's allocator does. Must not know who asks.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting. To be put into a `#[global_allocator]`.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingAllocator;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Allocations and reallocations that this thread has asked of [`CountingAllocator`]; 0 where it is not the allocator.
pub fn allocations() -> u64 {
    COUNT.get()
}

fn count() {
    // A thread that is being taken down has nowhere to count.
    COUNT.try_with(|count| count.set(count.get() + 1)).ok();
}

// SAFETY: all calls are passed on to the system's allocator as they came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_it_is_counted() {
        let layout = Layout::new::<u64>();
        let before = allocations();
        // SAFETY: the layout is not empty, and what is allocated is grown and freed by the same allocator.
        unsafe {
            let at = CountingAllocator.alloc(layout);
            let at = CountingAllocator.realloc(at, layout, 16);
            CountingAllocator.dealloc(at, Layout::new::<[u64; 2]>());
        }
        assert_eq!(allocations() - before, 2);
    }
}
