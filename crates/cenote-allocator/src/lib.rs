//! The allocator of the program and of the benchmarks that represent it. Libraries choose none.
//!
//! This is jemalloc: a background thread returns free memory to the system within ten seconds
//! (`docs/decisions/0011-memory-from-jemalloc.md`). Zeroed memory is cleared here and not by the
//! kernel: jemalloc returns pages to have them cleared, and each costs a page fault later.

use std::alloc::{GlobalAlloc, Layout};

use tikv_jemallocator::Jemalloc;

/// To be the `#[global_allocator]`.
#[derive(Debug)]
pub struct Allocator;

#[expect(unsafe_code, reason = "the trait of allocators is unsafe")]
// SAFETY: each call goes on as it came. `alloc_zeroed` is the trait's own: it clears what `alloc`
// returned.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what the caller promises of `layout` is what is asked for.
        unsafe { Jemalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that `memory` is from `alloc` with this layout.
        unsafe { Jemalloc.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the same, and `len` is one that `alloc` could be asked for.
        unsafe { Jemalloc.realloc(memory, layout, len) }
    }
}
