//! The pool by itself: what it hands out, what it keeps, what it loses first, and K-1 under random operations.

use std::collections::HashMap;

use super::*;
use crate::engine::random::philox;

impl BlockPool {
    /// Counts everything anew, from the tables that there are.
    ///
    /// # Panics
    /// When K-1 does not hold.
    pub(in crate::engine) fn assert_whole<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) {
        let mut users = vec![0; self.n_total()];
        for block in tables.flat_map(BlockTable::blocks) {
            users[*block as usize] += 1;
        }
        let counted: Vec<u32> = self.blocks.iter().map(|block| block.users).collect();
        assert_eq!(counted, users, "K-1: a block has as many users as tables hold it");
        let mut seats = vec![0; self.n_total()];
        for block in &self.empty {
            assert!(self.blocks[*block as usize].content.is_none(), "an empty block holds nothing");
            seats[*block as usize] += 1;
        }
        for (scope, blocks) in &self.cached.by_scope {
            assert!(!blocks.is_empty());
            for (left, block) in blocks {
                let content = self.blocks[*block as usize].content.as_ref().expect("a cached block is known");
                assert_eq!((content.scope, content.left), (*scope, *left));
                seats[*block as usize] += 1;
            }
        }
        for (block, users) in users.iter().enumerate() {
            assert_eq!(seats[block], u32::from(*users == 0), "K-1: block {block} is free once, or used");
        }
        let n_used = users.iter().filter(|users| **users > 0).count();
        assert_eq!(self.cached.n, self.cached.by_scope.values().map(BTreeMap::len).sum::<usize>());
        assert_eq!(self.empty.len() + self.n_cached() + n_used, self.n_total(), "K-1");
        assert_eq!((self.n_used(), self.n_free()), (n_used, self.n_total() - n_used));
        let known = self.blocks.iter().enumerate().filter_map(|(block, place)| Some((block, place.content.as_ref()?)));
        let known: HashMap<BlockHash, u32> = known.map(|(block, content)| (content.hash, block as u32)).collect();
        assert_eq!(known, self.known, "each hash leads to the one block that has it");
    }
}

const A: [u8; 32] = [1; 32];
const B: [u8; 32] = [2; 32];

fn chain(scope: CacheScope, tokens: &[u32]) -> Vec<BlockHash> {
    let mut chain: Vec<BlockHash> = Vec::new();
    for ids in tokens.as_chunks().0 {
        chain.push(scope.block_hash(chain.last().copied(), ids));
    }
    chain
}

fn find(pool: &BlockPool, scope: CacheScope, tokens: &[u32]) -> Vec<u32> {
    pool.find(scope, &chain(scope, tokens), tokens)
}

/// A table over `tokens`, all of them computed and kept.
fn filled(pool: &mut BlockPool, scope: CacheScope, tokens: &[u32]) -> BlockTable {
    let mut table = BlockTable::default();
    assert!(table.grow_to(tokens.len(), pool));
    for (at, hash) in chain(scope, tokens).into_iter().enumerate() {
        pool.keep(table.blocks()[at], scope, hash, tokens.as_chunks().0[at]);
    }
    table
}

fn tokens(n: u32, first: u32) -> Vec<u32> {
    (first..first + n).collect()
}

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
fn no_block_that_was_handed_out_is_in_two_tables() {
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

#[test]
fn full_blocks_are_found_by_who_begins_alike_in_the_same_scope_and_by_nobody_else() {
    let (a, b) = (CacheScope::from_key(A), CacheScope::from_key(B));
    let mut pool = BlockPool::new(8);
    let prompt = tokens(40, 100);
    let mut first = filled(&mut pool, a, &prompt);
    assert_eq!(find(&pool, a, &prompt), [0, 1], "the third block is not full");
    assert_eq!(find(&pool, b, &prompt), [0u32; 0]);
    let other_end = [&prompt[..20], &[7; 20]].concat();
    assert_eq!(find(&pool, a, &other_end), [0]);
    // The second block's tokens behind other tokens, or at the beginning, are not what the second block holds.
    assert_eq!(find(&pool, a, &prompt[16..]), [0u32; 0]);
    assert_eq!(find(&pool, a, &[&[7; 16], &prompt[16..32]].concat()), [0u32; 0]);

    let mut second = BlockTable::default();
    second.begin_with(&find(&pool, a, &prompt), &mut pool);
    assert!(second.grow_to(40, &mut pool));
    assert_eq!((second.blocks(), pool.n_used()), (&[0, 1, 3][..], 4));
    first.free(&mut pool);
    assert_eq!((pool.n_used(), pool.n_cached()), (3, 0), "two of its three blocks are still used");
    second.free(&mut pool);
    assert_eq!((pool.n_used(), pool.n_cached(), pool.n_free()), (0, 2, 8));
    assert_eq!(find(&pool, a, &prompt), [0, 1], "kept though nobody uses them");
    pool.assert_whole(std::iter::empty());
}

#[test]
fn a_hit_is_compared_token_by_token() {
    let a = CacheScope::from_key(A);
    let mut pool = BlockPool::new(2);
    let mut table = filled(&mut pool, a, &tokens(16, 0));
    // As if two blocks of tokens had one hash.
    assert_eq!(pool.find(a, &chain(a, &tokens(16, 0)), &tokens(16, 1)), [0u32; 0]);
    assert_eq!(pool.find(CacheScope::from_key(B), &chain(a, &tokens(16, 0)), &tokens(16, 0)), [0u32; 0]);
    table.free(&mut pool);
}

#[test]
fn of_two_blocks_with_the_same_tokens_one_is_kept() {
    let a = CacheScope::from_key(A);
    let mut pool = BlockPool::new(4);
    let prompt = tokens(32, 0);
    let (mut first, mut second) = (filled(&mut pool, a, &prompt), filled(&mut pool, a, &prompt));
    assert_eq!(find(&pool, a, &prompt), [0, 1]);
    second.free(&mut pool);
    assert_eq!((pool.n_cached(), pool.n_free()), (0, 2));
    first.free(&mut pool);
    assert_eq!((pool.n_cached(), pool.n_free()), (2, 4));
    pool.assert_whole(std::iter::empty());
}

#[test]
fn what_was_left_longest_ago_goes_first_and_of_a_sequence_its_end() {
    let a = CacheScope::from_key(A);
    let mut pool = BlockPool::new(6);
    let (old, new) = (tokens(48, 0), tokens(48, 1_000));
    let mut tables = [filled(&mut pool, a, &old), filled(&mut pool, a, &new)];
    tables.iter_mut().for_each(|table| table.free(&mut pool));
    // Used again: now the other one is the older.
    let mut again = BlockTable::default();
    again.begin_with(&find(&pool, a, &old), &mut pool);
    again.free(&mut pool);
    let mut left = Vec::new();
    for n in 1..=6 {
        let mut table = BlockTable::default();
        assert!(table.grow_to(16 * n, &mut pool));
        left.push((find(&pool, a, &old).len(), find(&pool, a, &new).len()));
        pool.assert_whole(std::iter::once(&table));
        table.free(&mut pool);
    }
    // What is handed out and freed without being kept is empty, and taken first the next time: one more is lost each time.
    assert_eq!(left, [(3, 2), (3, 1), (3, 0), (2, 0), (1, 0), (0, 0)]);
}

#[test]
fn who_fills_the_cache_loses_its_own_blocks_and_not_those_of_others() {
    let (a, b) = (CacheScope::from_key(A), CacheScope::from_key(B));
    let mut pool = BlockPool::new(16);
    let small = tokens(64, 0);
    filled(&mut pool, b, &small).free(&mut pool);
    // The flood: every prompt is another one, and each is newer than b's.
    for n in 0..50 {
        filled(&mut pool, a, &tokens(32, 10_000 * (n + 1))).free(&mut pool);
        assert_eq!(find(&pool, b, &small).len(), 4, "after {n} prompts");
    }
    assert_eq!((pool.n_cached(), pool.empty.len()), (16, 0));
    // Used blocks are nobody's to evict: a has 8 of 12 left, then 4; then both have as many, and the oldest goes.
    let mut taken = BlockTable::default();
    assert!(taken.grow_to(16 * 8, &mut pool));
    assert_eq!((find(&pool, b, &small).len(), pool.n_cached()), (4, 8));
    assert!(taken.grow_to(16 * 9, &mut pool));
    assert_eq!((find(&pool, b, &small).len(), pool.n_cached()), (3, 7));
    taken.free(&mut pool);
}

#[test]
fn discarded_blocks_are_found_no_more_also_while_others_use_them() {
    let a = CacheScope::from_key(A);
    let mut pool = BlockPool::new(6);
    let prompt = tokens(48, 0);
    let mut first = filled(&mut pool, a, &prompt);
    let mut second = BlockTable::default();
    second.begin_with(&find(&pool, a, &prompt)[..2], &mut pool);
    first.discard(&mut pool);
    assert_eq!(find(&pool, a, &prompt), [0u32; 0]);
    pool.assert_whole(std::iter::once(&second));
    assert_eq!((pool.n_used(), pool.n_cached()), (2, 0));
    second.free(&mut pool);
    assert_eq!((pool.n_free(), pool.n_cached()), (6, 0));
}

/// What a block truly holds, as the test wrote it: the scope, and all tokens up to the block's end.
type Written = HashMap<u32, (CacheScope, Vec<u32>)>;

struct Holder {
    scope: CacheScope,
    tokens: Vec<u32>,
    table: BlockTable,
    /// Tokens written.
    written: usize,
}

#[test]
fn ten_thousand_random_operations_leave_the_pool_whole_and_every_hit_true() {
    const BLOCKS: usize = 16;
    let mut pool = BlockPool::new(BLOCKS);
    let mut holders: Vec<Holder> = Vec::new();
    let mut written = Written::new();
    let (mut hits, mut refused, mut discarded) = (0, 0, 0);
    for step in 0..10_000u32 {
        let draw = |what: u32, below: usize| philox([step, what, 0, 0], [31, 32])[0] as usize % below;
        match draw(0, 10) {
            // A sequence comes, with one of few beginnings, and takes what is there of it.
            0..=3 if holders.len() < 12 => {
                let scope = CacheScope::from_key([draw(1, 3) as u8; 32]);
                let n = 1 + draw(2, 90);
                let tokens: Vec<u32> = (0..n).map(|at| (draw(3, 2) * usize::from(at / 16 > 1)) as u32).collect();
                let mut chain = chain(scope, &tokens);
                chain.truncate((n - 1) / BLOCK_TOKENS);
                let found = pool.find(scope, &chain, &tokens);
                for (at, block) in found.iter().enumerate() {
                    assert_eq!(written[block], (scope, tokens[..(at + 1) * BLOCK_TOKENS].to_vec()), "step {step}");
                }
                hits += found.len();
                let mut table = BlockTable::default();
                table.begin_with(&found, &mut pool);
                holders.push(Holder { scope, tokens, table, written: found.len() * BLOCK_TOKENS });
            }
            // One computes on.
            4..=7 if !holders.is_empty() => {
                let idx = draw(1, holders.len());
                let holder = &mut holders[idx];
                let to = (holder.written + 1 + draw(2, 40)).min(holder.tokens.len());
                let before = holder.table.blocks().len();
                if !holder.table.grow_to(to, &mut pool) {
                    assert!(blocks_for(to) - before > pool.n_free());
                    refused += 1;
                } else {
                    let full = holder.written / BLOCK_TOKENS..to / BLOCK_TOKENS;
                    for position in holder.written..to {
                        let block = holder.table.blocks()[position / BLOCK_TOKENS];
                        let place = &pool.blocks[block as usize];
                        assert!(place.users == 1 && place.content.is_none(), "step {step}: a shared block is written");
                        let end = (position / BLOCK_TOKENS + 1) * BLOCK_TOKENS;
                        written.insert(block, (holder.scope, holder.tokens[..end.min(to)].to_vec()));
                    }
                    holder.written = to;
                    let chain = chain(holder.scope, &holder.tokens);
                    for at in full {
                        let ids = holder.tokens.as_chunks().0[at];
                        pool.keep(holder.table.blocks()[at], holder.scope, chain[at], ids);
                    }
                }
            }
            // One is gone: to its end, cancelled, preempted; or with what cannot be trusted.
            _ if !holders.is_empty() => {
                let mut holder = holders.swap_remove(draw(1, holders.len()));
                if draw(2, 8) == 0 {
                    holder.table.discard(&mut pool);
                    discarded += 1;
                } else {
                    holder.table.free(&mut pool);
                }
            }
            _ => {}
        }
        pool.assert_whole(holders.iter().map(|holder| &holder.table));
    }
    assert!(hits > 1_000 && refused > 100 && discarded > 100, "{hits} hits, {refused} refused, {discarded} discarded");
    for mut holder in holders {
        holder.table.free(&mut pool);
    }
    assert_eq!((pool.n_used(), pool.n_free()), (0, BLOCKS));
    pool.assert_whole(std::iter::empty());
}
