//! The attention of a few neighbouring rows of one sequence over one key-value head.
//!
//! Softmax runs online over groups of positions. Groups lie at absolute positions, so a row meets the same groups in the
//! same order however its prompt was cut, and a group gives it the same sums whatever other rows are here. A position
//! that a row may not see is never multiplied by zero, it is left out: what lies there cannot matter.

use crate::exp::{exp, tanh};
use crate::kv::BLOCK_TOKENS;
use crate::lanes::{Kernel, LANES, Lanes};
use crate::linear::rows_of;

/// Positions between two looks at the running maximum.
const GROUP: usize = 4 * BLOCK_TOKENS;

/// Scores or weights of one query vector over a group.
type Scores = [[f32; LANES]; GROUP / LANES];

// A block's tokens are the lanes of a vector.
const _: () = assert!(BLOCK_TOKENS == LANES);

/// What all rows of a call share.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// `[block][kv_head][dim][token]`.
    pub(crate) keys: &'a [[f32; LANES]],
    /// `[block][kv_head][token][dim]`, in vectors along `dim`.
    pub(crate) values: &'a [[f32; LANES]],
    pub(crate) kv_heads: usize,
    /// Query heads of one key-value head.
    pub(crate) group_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<f32>,
}

/// Neighbouring rows of one sequence, the query heads of one key-value head.
pub(crate) struct Rows<'a> {
    pub(crate) call: Call<'a>,
    pub(crate) kv_head: usize,
    pub(crate) blocks: &'a [u32],
    /// The position of the first row.
    pub(crate) position: usize,
    /// Per row: `[group_heads * head_dim]`.
    pub(crate) queries: &'a [&'a [f32]],
    pub(crate) outputs: &'a mut [&'a mut [f32]],
    pub(crate) scratch: &'a mut Scratch,
}

/// Room that the rows of a thread use one after the other. Vector `v` is head `v % group_heads` of row
/// `v / group_heads`.
#[derive(Default)]
pub(crate) struct Scratch {
    /// `[dim][vector]`.
    queries: Vec<f32>,
    /// `[vector]`.
    scores: Vec<Scores>,
    largest: Vec<f32>,
    totals: Vec<[f32; LANES]>,
    /// `[vector][dim]`.
    sums: Vec<[f32; LANES]>,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        self.prepare();
        let n_rows = self.queries.len();
        let first = self.first_visible(self.position) / GROUP;
        let last = (self.position + n_rows - 1) / GROUP;
        for group in first..=last {
            self.score::<L>(group);
            for row in 0..n_rows {
                let position = self.position + row;
                let visible = self.first_visible(position).max(group * GROUP)..(position + 1).min((group + 1) * GROUP);
                if visible.is_empty() {
                    continue;
                }
                let visible = visible.start - group * GROUP..visible.end - group * GROUP;
                for vector in row * self.call.group_heads..(row + 1) * self.call.group_heads {
                    self.weigh::<L>(vector, visible.clone());
                }
                self.accumulate::<L>(group, row, visible);
            }
        }
        self.finish::<L>();
    }
}

impl Rows<'_> {
    /// The first position that the row at `position` sees.
    #[inline(always)]
    fn first_visible(&self, position: usize) -> usize {
        self.call.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// One head of one block: `head_dim` vectors.
    #[inline(always)]
    fn page<'p>(&self, pool: &'p [[f32; LANES]], block_index: usize) -> &'p [[f32; LANES]] {
        let page = self.blocks[block_index] as usize * self.call.kv_heads + self.kv_head;
        &pool[page * self.call.head_dim..][..self.call.head_dim]
    }

    #[inline(always)]
    fn prepare(&mut self) {
        let (heads, head_dim) = (self.call.group_heads, self.call.head_dim);
        let n_vectors = self.queries.len() * heads;
        let Scratch { queries, scores, largest, totals, sums } = &mut *self.scratch;
        queries.resize(head_dim * n_vectors, 0.0);
        for (row, from) in self.queries.iter().enumerate() {
            for (head, from) in from.chunks_exact(head_dim).enumerate() {
                for (dim, value) in from.iter().enumerate() {
                    queries[dim * n_vectors + row * heads + head] = *value;
                }
            }
        }
        scores.resize(n_vectors, [[0.0; LANES]; GROUP / LANES]);
        for (of_all, fill) in [(&mut *totals, n_vectors), (sums, n_vectors * head_dim / LANES)] {
            of_all.clear();
            of_all.resize(fill, [0.0; LANES]);
        }
        largest.clear();
        largest.resize(n_vectors, f32::NEG_INFINITY);
    }

    /// The scores of all vectors over the blocks of `group` that the last row reaches.
    #[inline(always)]
    fn score<L: Lanes>(&mut self, group: usize) {
        let n_rows = self.queries.len();
        let n_vectors = n_rows * self.call.group_heads;
        let per_group = GROUP / BLOCK_TOKENS;
        let first = (self.first_visible(self.position) / BLOCK_TOKENS).max(group * per_group);
        let last = ((self.position + n_rows - 1) / BLOCK_TOKENS).min((group + 1) * per_group - 1);
        let end = (self.position + n_rows).div_ceil(BLOCK_TOKENS);
        for block in first..=last {
            let page = self.page(self.call.keys, block);
            // Pages lie anywhere in the pool: ask for what comes next while this one is multiplied. Many rows take longer
            // over a page than it takes to come.
            if n_rows == 1 {
                prefetch::<L>(self.page(self.call.values, block));
                if block + 1 < end {
                    prefetch::<L>(self.page(self.call.keys, block + 1));
                }
            }
            let line = block % per_group;
            let mut vector = 0;
            while vector < n_vectors {
                let left = n_vectors - vector;
                let take = left.div_ceil(left.div_ceil(8));
                match take {
                    1 => self.dot::<L, 1>(page, vector, line),
                    2 => self.dot::<L, 2>(page, vector, line),
                    3 => self.dot::<L, 3>(page, vector, line),
                    4 => self.dot::<L, 4>(page, vector, line),
                    5 => self.dot::<L, 5>(page, vector, line),
                    6 => self.dot::<L, 6>(page, vector, line),
                    7 => self.dot::<L, 7>(page, vector, line),
                    _ => self.dot::<L, 8>(page, vector, line),
                }
                vector += take;
            }
        }
    }

    /// Sixteen scores of `V` vectors: one fused multiply-add after the other along the head.
    #[inline(always)]
    fn dot<L: Lanes, const V: usize>(&mut self, page: &[[f32; LANES]], vector: usize, line: usize) {
        let n_vectors = self.scratch.scores.len();
        let mut sums = [L::splat(0.0); V];
        let mut at = vector;
        for key in page {
            let key = L::load(key);
            let queries: &[f32; V] = rows_of(&self.scratch.queries, at);
            for (sum, query) in sums.iter_mut().zip(queries) {
                *sum = key.fma(L::splat(*query), *sum);
            }
            at += n_vectors;
        }
        for (sum, scores) in sums.iter().zip(&mut self.scratch.scores[vector..]) {
            let scaled = sum.mul(L::splat(self.call.scale));
            let capped = match self.call.softcap {
                Some(cap) => tanh(scaled.div(L::splat(cap))).mul(L::splat(cap)),
                None => scaled,
            };
            capped.store(&mut scores[line]);
        }
    }

    /// Turns a vector's scores of the `visible` part of a group into weights, and takes the running maximum along.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self, vector: usize, visible: std::ops::Range<usize>) {
        let scores = &mut self.scratch.scores[vector];
        let lines = visible.start / LANES..visible.end.div_ceil(LANES);
        hide(scores, &lines, &visible, f32::NEG_INFINITY);
        let mut top = L::splat(f32::NEG_INFINITY);
        for line in &scores[lines.clone()] {
            top = L::load(line).max(top);
        }
        let before = self.scratch.largest[vector];
        let top = top.largest();
        let largest = if before > top { before } else { top };
        if largest > before {
            self.scratch.largest[vector] = largest;
            let shrink = exp(L::splat(before - largest));
            let totals = &mut self.scratch.totals[vector];
            L::load(totals).mul(shrink).store(totals);
            let width = self.call.head_dim / LANES;
            for sum in &mut self.scratch.sums[vector * width..][..width] {
                L::load(sum).mul(shrink).store(sum);
            }
        }
        for line in &mut scores[lines.clone()] {
            exp(L::load(line).sub(L::splat(largest))).store(line);
        }
        hide(scores, &lines, &visible, 0.0);
        let totals = &mut self.scratch.totals[vector];
        let mut total = L::load(totals);
        for line in &scores[lines] {
            total = total.add(L::load(line));
        }
        total.store(totals);
    }

    /// Adds the weighted values of the `visible` positions to the sums of a row's vectors.
    #[inline(always)]
    fn accumulate<L: Lanes>(&mut self, group: usize, row: usize, visible: std::ops::Range<usize>) {
        let heads = self.call.group_heads;
        let width = self.call.head_dim / LANES;
        let mut head = 0;
        while head < heads {
            let take = (heads - head).min(4);
            let mut column = 0;
            while column < width {
                let columns = if width - column >= 4 { 4 } else { 1 };
                let (vector, at) = (row * heads + head, (group, column));
                match (take, columns) {
                    (4, 4) => self.mix::<L, 4, 4>(vector, at, &visible),
                    (4, _) => self.mix::<L, 4, 1>(vector, at, &visible),
                    (3, 4) => self.mix::<L, 3, 4>(vector, at, &visible),
                    (3, _) => self.mix::<L, 3, 1>(vector, at, &visible),
                    (2, 4) => self.mix::<L, 2, 4>(vector, at, &visible),
                    (2, _) => self.mix::<L, 2, 1>(vector, at, &visible),
                    (_, 4) => self.mix::<L, 1, 4>(vector, at, &visible),
                    (_, _) => self.mix::<L, 1, 1>(vector, at, &visible),
                }
                column += columns;
            }
            head += take;
        }
    }

    /// `V` vectors, `C` columns of sixteen: one fused multiply-add after the other along the positions.
    #[inline(always)]
    fn mix<L: Lanes, const V: usize, const C: usize>(
        &mut self,
        vector: usize,
        (group, column): (usize, usize),
        visible: &std::ops::Range<usize>,
    ) {
        let width = self.call.head_dim / LANES;
        let mut sums = [[L::splat(0.0); C]; V];
        for (v, sums) in sums.iter_mut().enumerate() {
            let from: &[_; C] = rows_of(&self.scratch.sums, (vector + v) * width + column);
            for (sum, from) in sums.iter_mut().zip(from) {
                *sum = L::load(from);
            }
        }
        let mut position = visible.start;
        while position < visible.end {
            let line = position / LANES;
            let page = self.page(self.call.values, group * (GROUP / BLOCK_TOKENS) + line);
            let weights: &[Scores; V] = rows_of(&self.scratch.scores, vector);
            let end = visible.end.min((line + 1) * LANES);
            let tokens = position % LANES..(end - 1) % LANES + 1;
            for token in tokens {
                let values: &[_; C] = rows_of(page, token * width + column);
                let mut loaded = [L::splat(0.0); C];
                for (loaded, values) in loaded.iter_mut().zip(values) {
                    *loaded = L::load(values);
                }
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    let weight = L::splat(weights[line][token]);
                    for (sum, value) in sums.iter_mut().zip(loaded) {
                        *sum = value.fma(weight, *sum);
                    }
                }
            }
            position = end;
        }
        for (v, sums) in sums.iter().enumerate() {
            let to = &mut self.scratch.sums[(vector + v) * width + column..][..C];
            for (sum, to) in sums.iter().zip(to) {
                sum.store(to);
            }
        }
    }

    #[inline(always)]
    fn finish<L: Lanes>(&mut self) {
        let (heads, width) = (self.call.group_heads, self.call.head_dim / LANES);
        for (row, output) in self.outputs.iter_mut().enumerate() {
            let (output, _) = output.as_chunks_mut::<LANES>();
            for head in 0..heads {
                let vector = row * heads + head;
                let total = L::splat(L::load(&self.scratch.totals[vector]).sum());
                for column in 0..width {
                    L::load(&self.scratch.sums[vector * width + column])
                        .div(total)
                        .store(&mut output[head * width + column]);
                }
            }
        }
    }
}

#[inline(always)]
fn prefetch<L: Lanes>(page: &[[f32; LANES]]) {
    for line in page {
        L::prefetch(line);
    }
}

/// Puts `fill` on those positions of `lines` that are not visible.
#[inline(always)]
fn hide(scores: &mut Scores, lines: &std::ops::Range<usize>, visible: &std::ops::Range<usize>, fill: f32) {
    for position in lines.start * LANES..visible.start {
        scores[position / LANES][position % LANES] = fill;
    }
    for position in visible.end..lines.end * LANES {
        scores[position / LANES][position % LANES] = fill;
    }
}
