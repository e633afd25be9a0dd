//! The accounting of the paged KV cache: which blocks are free, and which belong to whom.
//!
//! Invariant K-1: free + used = all blocks. Blocks leave a sequence only through [`BlockTable::free`].

use super::plan::BLOCK_TOKENS;

/// The free blocks of one pool.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<u32>,
    total: usize,
}

/// The blocks of one sequence, in order of its positions. Must be given back with [`BlockTable::free`].
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<u32>,
}

/// Blocks that `tokens` tokens take.
pub fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}

impl BlockPool {
    /// A pool of `total` free blocks.
    pub fn new(total: usize) -> Self {
        // Handed out from the low end, so that a lightly used pool touches little memory.
        let total_u32 = u32::try_from(total).unwrap_or(u32::MAX);
        Self { free: (0..total_u32).rev().collect(), total: total_u32 as usize }
    }

    /// Blocks nobody has.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Blocks of the pool.
    pub fn n_total(&self) -> usize {
        self.total
    }

    /// Blocks in use.
    pub fn n_used(&self) -> usize {
        self.total - self.free.len()
    }
}

impl BlockTable {
    /// Makes the table cover `tokens` tokens; false, and nothing changed, when the pool has too few free blocks.
    pub fn grow_to(&mut self, tokens: usize, pool: &mut BlockPool) -> bool {
        let missing = blocks_for(tokens).saturating_sub(self.blocks.len());
        if missing > pool.free.len() {
            return false;
        }
        let from = pool.free.len() - missing;
        self.blocks.extend(pool.free.drain(from..).rev());
        true
    }

    /// Tokens the table has room for.
    pub fn room_tokens(&self) -> usize {
        self.blocks.len() * BLOCK_TOKENS
    }

    /// The block indexes in order.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The place of the token at `position`: `block * BLOCK_TOKENS + offset`.
    ///
    /// # Panics
    /// If the table does not cover the position.
    pub fn slot(&self, position: usize) -> u32 {
        self.blocks[position / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (position % BLOCK_TOKENS) as u32
    }

    /// Gives all blocks back.
    pub fn free(&mut self, pool: &mut BlockPool) {
        pool.free.extend(self.blocks.drain(..).rev());
        debug_assert!(pool.free.len() <= pool.total, "K-1: a block was freed twice");
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        debug_assert!(self.blocks.is_empty() || std::thread::panicking(), "K-1: a block table was dropped with blocks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_what_it_needs_or_nothing() {
        let mut pool = BlockPool::new(4);
        let mut table = BlockTable::default();
        assert!(table.grow_to(17, &mut pool));
        assert_eq!((table.blocks(), pool.n_free()), (&[0, 1][..], 2));
        assert_eq!((table.slot(0), table.slot(16)), (0, 16));
        assert!(table.grow_to(32, &mut pool));
        assert_eq!(pool.n_free(), 2);
        assert!(!table.grow_to(65 + 16, &mut pool));
        assert_eq!((table.room_tokens(), pool.n_used()), (32, 2));
        table.free(&mut pool);
        assert_eq!((pool.n_free(), pool.n_used()), (4, 0));
    }

    #[test]
    fn no_block_is_in_two_tables() {
        let mut pool = BlockPool::new(8);
        let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
        for tokens in 1..=64 {
            assert!(first.grow_to(tokens, &mut pool));
            assert!(second.grow_to(tokens, &mut pool));
            assert!(first.blocks().iter().all(|block| !second.blocks().contains(block)));
        }
        assert_eq!(pool.n_free(), 0);
        first.free(&mut pool);
        assert!(second.grow_to(128, &mut pool));
        second.free(&mut pool);
        assert_eq!(pool.n_free(), 8);
    }
}
