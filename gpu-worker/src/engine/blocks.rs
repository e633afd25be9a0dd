//! The accounting of the paged KV cache: which blocks are free, which belong to whom, and which hold what may be wanted
//! again.
//!
//! A full block whose keys and values are written can be made known by its tokens (`BlockPool::keep`). Sequences that
//! begin alike share it; nobody writes to it any more. Without users it is cached: it keeps its content, and counts as
//! free, until its place is needed. Then the scope that has most cached blocks loses the one it has not used for longest.
//!
//! Invariant K-1: empty + cached + used = all blocks, and a block has as many users as tables hold it. Blocks leave a
//! sequence only through [`BlockTable::free`] and [`BlockTable::discard`].

use std::collections::{BTreeMap, HashMap};

use super::plan::BLOCK_TOKENS;
use super::prefix::{BlockHash, BlockIds, CacheScope};

/// The blocks of one cache.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    /// Blocks that hold nothing.
    empty: Vec<u32>,
    cached: CachedBlocks,
    known: HashMap<BlockHash, u32>,
}

#[derive(Debug, Default)]
struct Block {
    /// Tables that hold it.
    users: u32,
    /// What it holds, once it is full and kept.
    content: Option<Content>,
}

#[derive(Debug)]
struct Content {
    scope: CacheScope,
    hash: BlockHash,
    /// A hit is compared with these: a hash alone decides nothing.
    ids: BlockIds,
    /// When its last user left it.
    left: Stamp,
}

/// Counts the moments at which blocks were left.
type Stamp = u64;

/// The blocks of one sequence, in order of its positions. Must be given back with [`BlockTable::free`] or
/// [`BlockTable::discard`].
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<u32>,
}

/// Blocks that `tokens` tokens take.
pub fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}

impl BlockPool {
    /// A pool of `total` empty blocks.
    pub fn new(total: usize) -> Self {
        // Handed out from the low end, so that a lightly used pool touches little memory.
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        Self {
            blocks: (0..total).map(|_| Block::default()).collect(),
            empty: (0..total).rev().collect(),
            cached: CachedBlocks::default(),
            known: HashMap::new(),
        }
    }

    /// Blocks that a sequence can have: the empty and the cached ones.
    pub fn n_free(&self) -> usize {
        self.empty.len() + self.cached.n
    }

    /// Blocks that nobody uses and that keep their content until their place is needed.
    pub fn n_cached(&self) -> usize {
        self.cached.n
    }

    /// Blocks of the pool.
    pub fn n_total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks in use, each counted once however many sequences share it.
    pub fn n_used(&self) -> usize {
        self.blocks.len() - self.n_free()
    }

    /// The blocks that hold the beginning of `tokens`, as far as they are known in `scope` without a gap. `chain`: the
    /// hashes of its full blocks, at most as many as are wanted.
    pub(super) fn find(&self, scope: CacheScope, chain: &[BlockHash], tokens: &[u32]) -> Vec<u32> {
        let (ids_of_blocks, _) = tokens.as_chunks::<BLOCK_TOKENS>();
        let same = |(hash, ids): (&BlockHash, &BlockIds)| {
            let block = *self.known.get(hash)?;
            let content = self.blocks[block as usize].content.as_ref()?;
            (content.scope == scope && content.ids == *ids).then_some(block)
        };
        chain.iter().zip(ids_of_blocks).map_while(same).collect()
    }

    /// How many of `blocks` somebody uses: these cost no free block to share.
    pub(super) fn n_used_among(&self, blocks: &[u32]) -> usize {
        blocks.iter().filter(|block| self.blocks[**block as usize].users > 0).count()
    }

    /// Makes a used block known by its tokens: it is full, its keys and values are written, and from now on nobody writes to
    /// it. Another block that holds the same stays the known one, and this one is left as it is.
    pub(super) fn keep(&mut self, block: u32, scope: CacheScope, hash: BlockHash, ids: BlockIds) {
        let place = &mut self.blocks[block as usize];
        debug_assert!(place.users > 0 && place.content.is_none(), "only a used block that is not known yet is kept");
        if let std::collections::hash_map::Entry::Vacant(entry) = self.known.entry(hash) {
            entry.insert(block);
            place.content = Some(Content { scope, hash, ids, left: 0 });
        }
    }

    /// Nobody finds the block any more; who uses it goes on.
    fn forget(&mut self, block: u32) {
        if let Some(content) = self.blocks[block as usize].content.take() {
            self.known.remove(&content.hash);
        }
    }

    /// A block for one user alone: an empty one, or else a cached one, which loses its content.
    fn take(&mut self) -> Option<u32> {
        let block = self.empty.pop().or_else(|| {
            let evicted = self.cached.evict();
            evicted.inspect(|block| self.forget(*block))
        })?;
        self.blocks[block as usize].users = 1;
        Some(block)
    }

    /// One user more for a known block.
    fn share(&mut self, block: u32) {
        let place = &mut self.blocks[block as usize];
        debug_assert!(place.content.is_some(), "a block is shared that is not known");
        if let Some(content) = place.content.as_ref().filter(|_| place.users == 0) {
            self.cached.remove(content.scope, content.left);
        }
        place.users += 1;
    }

    /// One user less.
    fn leave(&mut self, block: u32) {
        let place = &mut self.blocks[block as usize];
        debug_assert!(place.users > 0, "K-1: a block was freed twice");
        place.users -= 1;
        if place.users > 0 {
            return;
        }
        match &mut place.content {
            Some(content) => content.left = self.cached.insert(content.scope, block),
            None => self.empty.push(block),
        }
    }
}

impl BlockTable {
    /// Makes the table cover `tokens` tokens; false, and nothing changed, when the pool has too few free blocks.
    pub fn grow_to(&mut self, tokens: usize, pool: &mut BlockPool) -> bool {
        let missing = blocks_for(tokens).saturating_sub(self.blocks.len());
        if missing > pool.n_free() {
            return false;
        }
        self.blocks.extend((0..missing).map_while(|_| pool.take()));
        true
    }

    /// An empty table begins with these blocks, which [`BlockPool::find`] gave: their tokens are in the cache already.
    pub(super) fn begin_with(&mut self, found: &[u32], pool: &mut BlockPool) {
        debug_assert!(self.blocks.is_empty(), "a table can only begin with what is there already");
        for block in found {
            pool.share(*block);
        }
        self.blocks.extend_from_slice(found);
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

    /// Gives all blocks back. What is known of them is kept.
    pub fn free(&mut self, pool: &mut BlockPool) {
        // The last block first: it is of no use without those before it, so its place is needed first.
        for block in self.blocks.drain(..).rev() {
            pool.leave(block);
        }
    }

    /// Gives all blocks back, and nobody finds any of them again: what they hold is not to be trusted.
    pub fn discard(&mut self, pool: &mut BlockPool) {
        for block in &self.blocks {
            pool.forget(*block);
        }
        self.free(pool);
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        debug_assert!(self.blocks.is_empty() || std::thread::panicking(), "K-1: a block table was dropped with blocks");
    }
}

/// The blocks that are known and not used, those of each scope in the order in which they were left.
#[derive(Debug, Default)]
struct CachedBlocks {
    by_scope: HashMap<CacheScope, BTreeMap<Stamp, u32>>,
    n: usize,
    clock: Stamp,
}

impl CachedBlocks {
    /// Takes a block in that was left now.
    fn insert(&mut self, scope: CacheScope, block: u32) -> Stamp {
        self.clock += 1;
        self.n += 1;
        self.by_scope.entry(scope).or_default().insert(self.clock, block);
        self.clock
    }

    /// Takes out the block of `scope` that was left at `left`.
    fn remove(&mut self, scope: CacheScope, left: Stamp) -> Option<u32> {
        let blocks = self.by_scope.get_mut(&scope)?;
        let block = blocks.remove(&left)?;
        self.n -= 1;
        if blocks.is_empty() {
            self.by_scope.remove(&scope);
        }
        Some(block)
    }

    /// Takes out the block to lose: of the scope that has most, the one left longest ago; of equal scopes, the one whose
    /// own was left longest ago.
    fn evict(&mut self) -> Option<u32> {
        let oldest = |(scope, blocks): (&CacheScope, &BTreeMap<Stamp, u32>)| {
            let (left, _) = blocks.first_key_value()?;
            Some((blocks.len(), std::cmp::Reverse(*left), *scope))
        };
        let (_, std::cmp::Reverse(left), scope) =
            self.by_scope.iter().filter_map(oldest).max_by_key(|(n, left, _)| (*n, *left))?;
        self.remove(scope, left)
    }
}

#[cfg(test)]
mod tests;
