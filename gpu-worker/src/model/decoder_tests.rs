//! The decoder against plain loops in float64 over whole sequences, written from the families' papers.

use super::config::Architecture;
use super::tiny::{CONTEXT, HIDDEN, MLP, NORM_EPS, ROPE_BASE, Sizes, Tiny, VOCAB, WINDOW};
use crate::engine::plan::{Forward, StepPlan};
use crate::forward::{candle::CandleForward, push_span};

type Row = Vec<f64>;

struct Reference {
    tiny: Tiny,
    architecture: Architecture,
    sizes: Sizes,
}

impl Reference {
    fn new(architecture: Architecture) -> Self {
        Self { tiny: Tiny::new(architecture), architecture, sizes: Sizes::of(architecture) }
    }

    fn weights(&self, name: &str) -> Row {
        self.tiny.weights[name].iter().map(|&weight| f64::from(weight)).collect()
    }

    fn product(&self, name: &str, x: &[f64]) -> Row {
        self.weights(name).chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Row {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean_square + f64::from(NORM_EPS)).sqrt();
        self.weights(name).iter().zip(x).map(|(w, x)| w * x * factor).collect()
    }

    fn is_local(&self, layer: usize) -> bool {
        self.architecture == Architecture::Gemma3 && layer % 6 != 5
    }

    /// One query, key or value row: product, bias, norm of every head, turn.
    fn heads(&self, layer: usize, which: &str, x: &[f64], position: usize) -> Vec<Row> {
        let mut all = self.product(&format!("blk.{layer}.attn_{which}.weight"), x);
        if self.architecture == Architecture::Qwen2 {
            let bias = self.weights(&format!("blk.{layer}.attn_{which}.bias"));
            all.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        let heads = all.chunks(self.sizes.head_dim).map(<[f64]>::to_vec);
        if which == "v" {
            return heads.collect();
        }
        let base = if self.is_local(layer) { 10_000.0 } else { f64::from(ROPE_BASE) };
        heads
            .map(|head| match self.architecture {
                Architecture::Llama | Architecture::Phi3 | Architecture::Qwen2 => head,
                Architecture::Qwen3 | Architecture::Gemma3 => {
                    self.norm(&format!("blk.{layer}.attn_{which}_norm.weight"), &head)
                }
            })
            .map(|head| {
                let half = head.len() / 2;
                let angle = |i: usize| position as f64 * base.powf(-(i as f64) / half as f64);
                let turned = |i: usize| head[i] * angle(i).cos() - head[half + i] * angle(i).sin();
                let other = |i: usize| head[half + i] * angle(i).cos() + head[i] * angle(i).sin();
                (0..half).map(turned).chain((0..half).map(other)).collect()
            })
            .collect()
    }

    fn attention(&self, layer: usize, xs: &[Row]) -> Vec<Row> {
        let rows = |which| xs.iter().enumerate().map(|(p, x)| self.heads(layer, which, x, p)).collect::<Vec<_>>();
        let (q, k, v) = (rows("q"), rows("k"), rows("v"));
        let group = self.sizes.n_heads / self.sizes.n_kv_heads;
        (0..xs.len())
            .map(|p| {
                let first = if self.is_local(layer) { (p + 1).saturating_sub(WINDOW) } else { 0 };
                let out: Row = (0..self.sizes.n_heads)
                    .flat_map(|h| {
                        let dot = |t: usize| q[p][h].iter().zip(&k[t][h / group]).map(|(q, k)| q * k).sum::<f64>();
                        let weight = |t: usize| (dot(t) / (self.sizes.head_dim as f64).sqrt()).exp();
                        let total: f64 = (first..=p).map(weight).sum();
                        let value = |i: usize| (first..=p).map(|t| weight(t) / total * v[t][h / group][i]).sum();
                        (0..self.sizes.head_dim).map(value).collect::<Row>()
                    })
                    .collect();
                self.product(&format!("blk.{layer}.attn_output.weight"), &out)
            })
            .collect()
    }

    fn mlp(&self, layer: usize, x: &[f64]) -> Row {
        let gate = self.product(&format!("blk.{layer}.ffn_gate.weight"), x);
        let up = self.product(&format!("blk.{layer}.ffn_up.weight"), x);
        let activation = |x: f64| match self.architecture {
            Architecture::Llama | Architecture::Phi3 | Architecture::Qwen2 | Architecture::Qwen3 => {
                x / (1.0 + (-x).exp())
            }
            Architecture::Gemma3 => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
            }
        };
        let hidden: Row = gate.iter().zip(up).map(|(&gate, up)| activation(gate) * up).collect();
        assert_eq!(hidden.len(), MLP);
        self.product(&format!("blk.{layer}.ffn_down.weight"), &hidden)
    }

    /// Logits after every token of `ids`.
    fn logits(&self, ids: &[u32]) -> Vec<Row> {
        let is_gemma = self.architecture == Architecture::Gemma3;
        let factor = if is_gemma { (HIDDEN as f64).sqrt() } else { 1.0 };
        let table = self.weights("token_embd.weight");
        let embed = |&id: &u32| table[id as usize * HIDDEN..][..HIDDEN].iter().map(|x| x * factor).collect();
        let mut xs: Vec<Row> = ids.iter().map(embed).collect();
        for layer in 0..self.sizes.n_layers {
            let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
            let normed: Vec<Row> = xs.iter().map(|x| self.norm(&name("attn_norm"), x)).collect();
            for (x, out) in xs.iter_mut().zip(self.attention(layer, &normed)) {
                let out = if is_gemma { self.norm(&name("post_attention_norm"), &out) } else { out };
                x.iter_mut().zip(out).for_each(|(x, out)| *x += out);
                let out = self.mlp(layer, &self.norm(&name("ffn_norm"), x));
                let out = if is_gemma { self.norm(&name("post_ffw_norm"), &out) } else { out };
                x.iter_mut().zip(out).for_each(|(x, out)| *x += out);
            }
        }
        let head = if is_gemma { "token_embd.weight" } else { "output.weight" };
        xs.iter().map(|x| self.product(head, &self.norm("output_norm.weight", x))).collect()
    }
}

const IDS: [u32; 21] = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 4, 6, 26, 4, 33, 8, 32, 7];

fn close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!((found.len(), expected.len()), (VOCAB, VOCAB));
    for (token, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(found) - expected).abs();
        assert!(difference < 2e-4 * (1.0 + expected.abs()), "{what}, token {token}: {found}, not {expected}");
    }
}

fn agrees_with_the_reference(architecture: Architecture) {
    let reference = Reference::new(architecture);
    let mut forward = CandleForward::new(reference.tiny.load().unwrap(), 8).unwrap();
    assert_eq!((forward.vocab_size(), forward.context_tokens()), (VOCAB, CONTEXT));
    let (all, short) = (reference.logits(&IDS), reference.logits(&IDS[2..9]));

    // Every row of a prompt; rows here and there; none, and then the next token alone.
    let mut plan = StepPlan::default();
    push_span(&mut plan, &IDS, 0, &[5, 2], 0..IDS.len());
    let logits = forward.step(&plan).unwrap();
    all.iter().enumerate().for_each(|(row, expected)| close(logits.row(row), expected, "whole prompt"));

    plan.logit_rows = vec![1, 2, 7, 20];
    let logits = forward.step(&plan).unwrap();
    for (idx, &row) in plan.logit_rows.iter().enumerate() {
        close(logits.row(idx), &all[row as usize], "chosen rows");
    }

    let mut plan = StepPlan::default();
    push_span(&mut plan, &IDS[..20], 0, &[7, 1], 0..0);
    push_span(&mut plan, &IDS[2..8], 0, &[3], 0..0);
    assert!(forward.step(&plan).unwrap().data.is_empty());
    let mut plan = StepPlan::default();
    push_span(&mut plan, &IDS[20..], 20, &[7, 1], 0..1);
    push_span(&mut plan, &IDS[8..9], 6, &[3], 0..1);
    let logits = forward.step(&plan).unwrap();
    close(logits.row(0), &all[20], "decode of the long sequence");
    close(logits.row(1), &short[6], "decode of the short sequence");
}

#[test]
fn qwen2_agrees_with_plain_loops() {
    agrees_with_the_reference(Architecture::Qwen2);
}

#[test]
fn gemma3_agrees_with_plain_loops() {
    agrees_with_the_reference(Architecture::Gemma3);
}

#[test]
fn an_empty_plan_gives_no_logits_and_a_foreign_token_an_error() {
    let mut forward = CandleForward::new(Tiny::new(Architecture::Qwen2).load().unwrap(), 2).unwrap();
    assert!(forward.step(&StepPlan::default()).unwrap().data.is_empty());
    let mut plan = StepPlan::default();
    push_span(&mut plan, &[VOCAB as u32], 0, &[0], 0..1);
    assert!(forward.step(&plan).is_err());
}
