//! How much memory a piece of work takes: the system's allocator, with a count for each thread.
#![allow(unsafe_code)] // an allocator cannot be made otherwise

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Without a destructor and without an allocation of their own: the allocator may use them at any time.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: every call is handed to the system's allocator as it came; counting changes nothing about it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract, which is this call's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// What `work` gives, and the most bytes that this thread held beyond what it holds now.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
