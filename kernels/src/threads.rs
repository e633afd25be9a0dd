//! Splitting work over candle's barrier pool: the one set of compute threads of the process.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// Threads that compute: the caller's and the pool's. Candle reads the count once, from `CANDLE_NUM_THREADS`, else
/// `RAYON_NUM_THREADS`, else it takes the physical cores.
pub fn threads() -> usize {
    candle_core::utils::barrier_pool().n_workers() + 1
}

/// Work below this many element operations is not worth waking another thread.
const WORTH_SPLITTING: usize = 32 * 1024;

/// Calls `f` with ranges that cover `0..n_items`, on all threads when `n_items * cost` element operations are worth it.
pub(crate) fn split(n_items: usize, cost: usize, f: impl Fn(Range<usize>) + Sync) {
    if n_items.saturating_mul(cost) < WORTH_SPLITTING || n_items < 2 {
        f(0..n_items);
    } else {
        candle_core::utils::barrier_pool().execute_chunked(n_items, f);
    }
}

/// Splits `out` into rows of `width` and calls `f(first_row, rows)` on all threads; `cost` is of one row.
pub(crate) fn split_rows<T: Send>(out: &mut [T], width: usize, cost: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let n_rows = out.len() / width;
    let shared = Shared::new(out);
    split(n_rows, cost, |rows| {
        // SAFETY: `split` hands every row to exactly one call.
        let part = unsafe { shared.slice(rows.start * width, rows.len() * width) };
        f(rows.start, part);
    });
}

/// A buffer that several threads write, each its own part.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    buffer: PhantomData<&'a mut [T]>,
}

// SAFETY: the parts that threads take are disjoint, as `slice` demands, so this is no more than sending `&mut [T]`s.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(buffer: &'a mut [T]) -> Self {
        Self { start: buffer.as_mut_ptr(), len: buffer.len(), buffer: PhantomData }
    }

    /// `len` elements from `first` on.
    ///
    /// # Safety
    /// No two slices that live at the same time may overlap.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn slice(&self, first: usize, len: usize) -> &mut [T] {
        assert!(first <= self.len && len <= self.len - first, "a part lies inside the shared buffer");
        // SAFETY: inside the buffer by the assertion, disjoint from all others by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}
