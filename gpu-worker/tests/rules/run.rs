//! Runs sequences through the planner, as the engine does, and keeps what each gave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use contract::{Constraint, FinishReason, Sampling};
use gpu_worker::engine::plan::Forward;
use gpu_worker::engine::planner::{Limits, Planner, StepOutput};
use gpu_worker::engine::prefix::CacheScope;
use gpu_worker::engine::sampler::Choosing;
use gpu_worker::engine::sequence::{DropMark, Ending, OutputText, Piece, Prepared, SequenceId};
use gpu_worker::forward::candle::CandleForward;
use gpu_worker::forward::trivial::{Ending as ModelEnding, TrivialConfig, TrivialForward};
use gpu_worker::grammar::Grammars;
use gpu_worker::load::GgufHeader;
use gpu_worker::load::gguf::{LoadOptions, load};
use gpu_worker::text::{TextStream, TextTokenizer};

/// The path of the small model of the repository.
pub fn tiny_path() -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/tiny.gguf")
}

/// Its tokenizer: all bytes, a few merges.
pub fn tiny_tokenizer() -> Arc<TextTokenizer> {
    let mut file = std::io::BufReader::new(std::fs::File::open(tiny_path()).unwrap());
    Arc::new(TextTokenizer::from_gguf(&GgufHeader::read(&mut file).unwrap().metadata).unwrap())
}

/// The small model itself, random weights and all.
pub fn tiny(n_blocks: usize) -> CandleForward {
    let model = load(&tiny_path(), &candle_core::Device::Cpu, LoadOptions::default()).unwrap();
    CandleForward::new(model, n_blocks).unwrap()
}

/// Logits that are noise, over the vocabulary of `tokenizer`.
pub fn noise(tokenizer: &TextTokenizer, n_blocks: usize, ending: ModelEnding) -> TrivialForward {
    TrivialForward::new(TrivialConfig {
        vocab_size: tokenizer.vocab_size(),
        context_tokens: 4_096,
        n_blocks,
        step_delay: std::time::Duration::ZERO,
        ending,
    })
}

struct Text {
    stream: Option<TextStream>,
    stops: Vec<String>,
}

impl OutputText for Text {
    fn push(&mut self, id: u32, _watch_stops: bool) -> Piece {
        let delta = self.stream.as_mut().unwrap().push(id);
        Piece { text: delta.text, stop: delta.stop.map(|hit| self.stops[hit.which].clone()) }
    }

    fn finish(&mut self) -> String {
        self.stream.take().map(TextStream::finish).unwrap_or_default()
    }
}

/// A request for the planner.
#[derive(Clone)]
pub struct Ask {
    pub id: u64,
    pub prompt: Vec<u32>,
    pub constraint: Option<Constraint>,
    pub sampling: Sampling,
    pub scope: Option<CacheScope>,
    pub max_tokens: u32,
    pub stops: Vec<String>,
    pub stop_ids: Vec<u32>,
    /// A grammar of calls, in place of a rule.
    pub calls: Option<String>,
    /// Control tokens that are shown.
    pub shown: Vec<u32>,
}

impl Ask {
    pub fn new(id: u64, constraint: Option<Constraint>) -> Self {
        let prompt = vec![40 + id as u32 % 50, 3, id as u32 % 200];
        Self {
            id,
            prompt,
            constraint,
            sampling: Sampling::default(),
            scope: None,
            max_tokens: 200,
            stops: vec![],
            stop_ids: vec![],
            calls: None,
            shown: vec![],
        }
    }

    pub fn prepared(self, grammars: &Grammars, tokenizer: &Arc<TextTokenizer>) -> Prepared {
        let rule = self.constraint.as_ref().map(|rule| grammars.grammar(rule, &self.stop_ids).unwrap());
        let calls = self.calls.map(|lark| grammars.grammar_of_calls(lark, "tools", &self.stop_ids).unwrap());
        let grammar = rule.or(calls);
        let stream = TextStream::new(Arc::clone(tokenizer), self.stops.clone(), false, true).showing(self.shown);
        Prepared {
            id: SequenceId(self.id),
            prompt: self.prompt,
            scope: self.scope,
            choosing: Choosing { sampling: self.sampling, seed: 77 + self.id, logprobs: Some(3) },
            max_tokens: self.max_tokens,
            min_tokens: 0,
            end_ids: self.stop_ids.iter().chain(tokenizer.eos_ids()).copied().collect(),
            grammar,
            text: Box::new(Text { stream: Some(stream), stops: self.stops }),
            deadline: None,
            mark: DropMark::default(),
        }
    }
}

/// Sampling at a temperature.
pub fn at(temperature: f32) -> Sampling {
    Sampling { temperature, ..Sampling::default() }
}

/// What a request got.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub ids: Vec<u32>,
    pub text: String,
    /// Bits of the log-probabilities, own and likeliest.
    pub logprobs: Vec<Vec<u32>>,
    pub ending: Option<Ending>,
}

impl Answer {
    pub fn is_whole(&self) -> bool {
        matches!(&self.ending, Some(Ending::Finished { reason: FinishReason::Stop, .. }))
    }

    pub fn is_cut(&self) -> bool {
        matches!(&self.ending, Some(Ending::Finished { reason: FinishReason::Length, .. }))
    }
}

/// Runs `asks`, one arriving at every `gap`-th step (0: all at once); also answers the preemptions.
pub fn run(
    forward: &mut dyn Forward,
    prepared: Vec<Prepared>,
    limits: Limits,
    n_blocks: usize,
    gap: usize,
) -> (BTreeMap<u64, Answer>, u64) {
    let mut planner = Planner::new(limits, n_blocks);
    let mut left = prepared.len();
    let mut arriving = prepared.into_iter();
    let mut answers: BTreeMap<u64, Answer> = BTreeMap::new();
    for step in 0.. {
        let arrivals = if gap == 0 { usize::MAX } else { usize::from(step % gap == 0 || planner.is_idle()) };
        for next in arriving.by_ref().take(arrivals) {
            planner.admit(next);
        }
        let plan = planner.plan().expect("K-2: not idle, so there is a plan");
        let logits = forward.step(&plan).unwrap();
        let mut out = StepOutput::default();
        planner.sweep(Instant::now(), &mut out);
        planner.commit(&plan, &logits, &mut out);
        for token in out.tokens {
            let answer = answers.entry(token.id.0).or_default();
            answer.ids.push(token.chosen.id);
            answer.text.push_str(&token.text);
            let (own, top) = token.chosen.logprobs.unwrap();
            assert!(own.is_finite() && top.len() == 3 && top.iter().all(|(_, logprob)| logprob.is_finite()));
            answer
                .logprobs
                .push(std::iter::once(own).chain(top.into_iter().map(|(_, x)| x)).map(f32::to_bits).collect());
        }
        for ended in out.ended {
            answers.entry(ended.id.0).or_default().ending = Some(ended.ending);
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    assert_eq!(planner.pool().n_used(), 0, "K-1");
    (answers, planner.preemptions())
}
