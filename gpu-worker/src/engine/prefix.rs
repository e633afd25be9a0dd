//! By what a full block of the cache is known: a keyed hash of the tokens up to its end.
//!
//! Keys and values of a token depend on the tokens before it and on nothing else, so two blocks with equal tokens up to
//! their ends hold the same bits. Each scope has a key of its own: equal prompts of two scopes are known by different
//! hashes, and neither finds the other's blocks.

use std::fmt;

use sha2::{Digest, Sha256};

use super::plan::BLOCK_TOKENS;

/// The token ids of one full block.
pub(super) type BlockIds = [u32; BLOCK_TOKENS];

/// Among whom blocks are shared. Whoever has the same scope finds blocks of the same tokens; nobody else does.
///
/// Whatever else than its tokens changes a sequence's keys and values (an adapter, say) must change its scope too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheScope([u8; 32]);

impl CacheScope {
    /// The scope with this key, which must be secret and random, or derived from what is.
    pub fn from_key(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// By what a block of `ids` behind `parent` is known; the first block of a sequence has no parent.
    pub(super) fn block_hash(&self, parent: Option<BlockHash>, ids: &BlockIds) -> BlockHash {
        // Every input has the same length, and no hash is ever shown: a key in front is enough.
        let mut hash = Sha256::new_with_prefix(self.0);
        hash.update(parent.unwrap_or_default().0);
        for id in ids {
            hash.update(id.to_le_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut half = [0; 16];
        half.copy_from_slice(&digest[..16]);
        BlockHash(half)
    }
}

impl fmt::Debug for CacheScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheScope(***)")
    }
}

/// 128 bits that name a block's tokens, and all before them, within a scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct BlockHash([u8; 16]);

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: BlockIds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 70_000];

    fn hex(hash: BlockHash) -> String {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_chain_of_blocks_has_the_hashes_that_python_gives_it() {
        // sha256(key + parent + b"".join(struct.pack("<I", id) for id in ids)).digest()[:16], parent of the first b"\0" * 16
        let scope = CacheScope::from_key(std::array::from_fn(|at| at as u8));
        let first = scope.block_hash(None, &IDS);
        assert_eq!(hex(first), "ea138ed58271db7c810778031aa1bfac");
        assert_eq!(hex(scope.block_hash(Some(first), &IDS)), "1f0870c3ecbc8fb0faa724a5f92c4d3e");
    }

    #[test]
    fn key_parent_and_every_id_change_the_hash() {
        let scope = CacheScope::from_key([1; 32]);
        let hash = scope.block_hash(None, &IDS);
        let mut others = vec![CacheScope::from_key([2; 32]).block_hash(None, &IDS), scope.block_hash(Some(hash), &IDS)];
        for at in 0..BLOCK_TOKENS {
            let mut ids = IDS;
            ids[at] ^= 1;
            others.push(scope.block_hash(None, &ids));
        }
        let distinct: std::collections::HashSet<_> = others.iter().chain([&hash]).collect();
        assert_eq!(distinct.len(), BLOCK_TOKENS + 3);
    }

    #[test]
    fn a_scope_does_not_print_its_key() {
        assert_eq!(format!("{:?}", CacheScope::from_key([7; 32])), "CacheScope(***)");
    }
}
