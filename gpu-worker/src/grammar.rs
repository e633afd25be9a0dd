//! Compiles the rules of requests into grammars over a model's vocabulary, with `llguidance`.
//!
//! Rules come from strangers, and compiling recurses over them. So it happens on threads of its own with a large stack, few
//! at a time, each waited for a bounded time; sizes were bounded where the request was read ([`contract::openai`]). What
//! is compiled is kept for the next request with the same rule.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use contract::{Constraint, ErrorCode, JobError, Rule};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};

use crate::engine::grammar::{Grammar, GrammarFault};
use crate::text::TextTokenizer;

/// What decides, beside the model, how an answer keeps to a rule: part of the manifest.
pub const GRAMMAR_ENGINE: &str = "llguidance 1.9.1";

/// Stack of a thread that compiles: a chain of references recurses once for each, and 512 are allowed.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// Longest time that a request waits for its rule to be compiled.
const LONGEST_COMPILE: Duration = Duration::from_secs(5);
/// Threads that compile at once, those that nobody waits for any more included.
const COMPILERS: usize = 2;
/// Compiled rules that are kept.
const KEPT: usize = 32;
/// Longest token that may be part of such an answer: the trie has 1,024 levels.
const LONGEST_TOKEN: usize = 1_000;

/// Between the parts of JSON: nothing, a space, or a line break with up to twenty spaces of indentation. A model may write
/// as it is used to, and cannot go on with white space for ever.
const WHITE_SPACE: &str = r" |\n {0,20}";
/// Escapes in JSON strings. Without `u`: whatever could be written as `\u…` has a shorter way, control characters apart,
/// and a key has one spelling only, so that no second one slips past the schema's property of the same name.
const ESCAPES: &str = "nrbtf\\\"";

/// The grammars of one model.
pub struct Grammars {
    shared: Arc<Shared>,
}

struct Shared {
    tokenizer: Arc<TextTokenizer>,
    /// Made for the first rule: its tables over the vocabulary take a moment and some memory.
    factory: OnceLock<ParserFactory>,
    /// The one used last comes last.
    kept: Mutex<Vec<(Source, Compiled)>>,
    compiling: Mutex<usize>,
    freed: Condvar,
}

/// What is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Rule(Rule),
    /// A grammar in the Lark of `llguidance`, one of our own.
    Lark(String),
}

/// A compiled rule at its beginning; never followed itself, but copied.
type Compiled = Arc<Mutex<Matcher>>;

impl Grammars {
    /// For answers in the tokens of `tokenizer`.
    pub fn new(tokenizer: Arc<TextTokenizer>) -> Self {
        let shared = Shared {
            tokenizer,
            factory: OnceLock::new(),
            kept: Mutex::default(),
            compiling: Mutex::new(0),
            freed: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The grammar of one answer, at its beginning. `stop_ids`: token ids that the request names as ends. Blocks while the
    /// rule is compiled, ten seconds at most.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidRequest`] that points at the rule's field when it cannot be enforced or is too much;
    /// [`ErrorCode::EngineFailed`] when nothing could be tried.
    pub fn grammar(&self, constraint: &Constraint, stop_ids: &[u32]) -> Result<Grammar, JobError> {
        self.grammar_of(Source::Rule(constraint.rule.clone()), &constraint.field, stop_ids)
    }

    /// The same for a grammar in Lark that [`crate::calls`] made of the request's `field`.
    ///
    /// # Errors
    /// As [`Grammars::grammar`].
    pub fn grammar_of_calls(&self, lark: String, field: &str, stop_ids: &[u32]) -> Result<Grammar, JobError> {
        self.grammar_of(Source::Lark(lark), field, stop_ids)
    }

    fn grammar_of(&self, source: Source, field: &str, stop_ids: &[u32]) -> Result<Grammar, JobError> {
        let compiled = match self.shared.take_kept(&source) {
            Some(compiled) => compiled,
            None => self.compile(source, field)?,
        };
        // A copy of its own, tables included: what one answer adds to them must not run into another's limits.
        let matcher = lock(&compiled).deep_clone();
        let ends = stop_ids.iter().copied().filter(|id| self.shared.tokenizer.is_special(*id)).collect();
        Ok(Grammar::new(matcher, field.to_owned(), ends))
    }

    fn compile(&self, source: Source, field: &str) -> Result<Compiled, JobError> {
        let failed = |code, what: &str| JobError::new(code, format!("`{field}` {what}")).with_param(field);
        let busy = || failed(ErrorCode::EngineFailed, "could not be compiled: too many rules are being compiled");
        let place = Place::take(&self.shared).ok_or_else(busy)?;
        let (answer, answered) = sync_channel(1);
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES).spawn(move || {
            let _place = place;
            let compiled = shared.compile(&source).map(|matcher| Arc::new(Mutex::new(matcher)));
            if let Ok(compiled) = &compiled {
                shared.keep(source, Arc::clone(compiled));
            }
            // Nobody waits any more after the time limit.
            let _nobody_waits = answer.send(compiled);
        });
        spawned.map_err(|err| failed(ErrorCode::EngineFailed, &format!("could not be compiled: {err}")))?;
        match answered.recv_timeout(LONGEST_COMPILE) {
            Ok(Ok(compiled)) => Ok(compiled),
            Ok(Err(fault)) => Err(failed(ErrorCode::InvalidRequest, &format!("cannot be enforced: {fault}"))),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = LONGEST_COMPILE.as_secs();
                Err(failed(ErrorCode::InvalidRequest, &format!("took longer than {seconds} s to compile: simplify it")))
            }
            // The thread panicked, outside of what llguidance catches itself; nobody else is touched by that.
            Err(RecvTimeoutError::Disconnected) => {
                Err(failed(ErrorCode::InvalidRequest, "cannot be enforced: the engine of grammars tripped over it"))
            }
        }
    }
}

impl Shared {
    fn take_kept(&self, source: &Source) -> Option<Compiled> {
        let mut kept = lock(&self.kept);
        let at = kept.iter().position(|(known, _)| known == source)?;
        let found = kept.remove(at);
        let compiled = Arc::clone(&found.1);
        kept.push(found);
        Some(compiled)
    }

    fn keep(&self, source: Source, compiled: Compiled) {
        let mut kept = lock(&self.kept);
        kept.retain(|(known, _)| *known != source);
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((source, compiled));
    }

    /// Compiles, and works out the first token's mask: what is too much for that is found out here, and the next requests
    /// with the rule begin with warm tables.
    fn compile(&self, source: &Source) -> Result<Matcher, GrammarFault> {
        let grammar = match source {
            Source::Rule(rule) => top_level(rule)?,
            Source::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let mut matcher = Matcher::new(self.factory()?.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(GrammarFault::of(&error));
        }
        matcher.compute_mask().map_err(|err| GrammarFault::of(&err))?;
        Ok(matcher)
    }

    fn factory(&self) -> Result<&ParserFactory, GrammarFault> {
        if let Some(factory) = self.factory.get() {
            return Ok(factory);
        }
        let factory = factory(&self.tokenizer)?;
        Ok(self.factory.get_or_init(|| factory))
    }
}

/// The right to compile, given back when dropped.
struct Place(Arc<Shared>);

impl Place {
    /// Waits for one as long as for a compilation.
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let compiling = lock(&shared.compiling);
        let full = |compiling: &mut usize| *compiling >= COMPILERS;
        let waited = shared.freed.wait_timeout_while(compiling, LONGEST_COMPILE, full);
        let (mut compiling, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        *compiling += 1;
        Some(Self(Arc::clone(shared)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *lock(&self.0.compiling) -= 1;
        self.0.freed.notify_one();
    }
}

/// Whoever panicked with it left nothing half done that matters.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The vocabulary as `llguidance` sees it: the bytes that each token adds to the text. Control tokens add none, and are
/// marked so that no rule can let them in.
fn factory(tokenizer: &TextTokenizer) -> Result<ParserFactory, GrammarFault> {
    let ends = tokenizer.eos_ids();
    let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
        .map(|id| {
            if tokenizer.is_special(id) || ends.contains(&id) {
                let name = tokenizer.token_text(id).unwrap_or_default().bytes().take(LONGEST_TOKEN);
                return std::iter::once(TokTrie::SPECIAL_TOKEN_MARKER).chain(name).collect();
            }
            tokenizer.token_bytes(id).filter(|bytes| bytes.len() <= LONGEST_TOKEN).unwrap_or_default()
        })
        .collect();
    let info = TokRxInfo::new(words.len() as u32, ends.first().copied().unwrap_or(INVALID_TOKEN));
    let mut trie = TokTrie::from(&info, &words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(ends);
    }
    // Not canonical: the model spells what a rule leaves open, and what it does not, in tokens of its own choice.
    let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&tokens).map_err(|err| GrammarFault::of(&err))?;
    factory.quiet();
    let limits = factory.limits_mut();
    limits.initial_lexer_fuel = 200_000;
    limits.step_lexer_fuel = 100_000;
    limits.max_lexer_states = 20_000;
    limits.max_grammar_size = 50_000;
    limits.verbose_errors = false;
    Ok(factory)
}

/// The rule in `llguidance`'s form.
fn top_level(rule: &Rule) -> Result<TopLevelGrammar, GrammarFault> {
    match rule {
        Rule::JsonObject => Ok(json(serde_json::json!({"type": "object"}))),
        Rule::JsonSchema(text) => {
            let schema: serde_json::Value = serde_json::from_str(text).map_err(|err| GrammarFault::of(&err))?;
            if !schema.is_object() {
                return Err(GrammarFault::of(&"it is no JSON object"));
            }
            Ok(json(schema))
        }
        Rule::Regex(regex) => Ok(TopLevelGrammar::from_regex(regex)),
        Rule::Choice(choices) => {
            let escaped: Vec<String> = choices.iter().map(|choice| regex_syntax::escape(choice)).collect();
            Ok(TopLevelGrammar::from_regex(&escaped.join("|")))
        }
    }
}

/// `schema` is an object.
fn json(schema: serde_json::Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(with_options(schema))
}

/// `schema`, an object, with how its JSON is to be written.
pub(crate) fn with_options(mut schema: serde_json::Value) -> serde_json::Value {
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.to_owned()),
        json_allowed_escapes: Some(ESCAPES.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    schema
}
