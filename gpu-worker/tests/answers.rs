//! Jobs with several answers, and with parameters that only the vocabulary can judge, through a whole worker whose engine
//! has no model: store, queue and bus are the real ones of one process.
#![allow(clippy::unwrap_used, reason = "the world of these tests is built by functions that are no tests themselves")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backends::memory_bus::BusLimits;
use backends::{InProcessBus, InProcessQueue, SqliteStore, local_objects};
use contract::openai::parse;
use contract::openai::views::replay;
use contract::{
    Bus, Class, ErrorCode, Job, JobEventBody, JobId, JobState, JobStore, Kind, NewJob, OnFailure, Queue, QueueId,
    Record, RecordLocation, ServedModel, TenantId, TokenEvent, TrajectoryMode,
};
use futures::StreamExt;
use gpu_worker::engine::planner::Limits;
use gpu_worker::{BeatPorts, Deps, PrefixCache, WorkerConfig, WorkerError};
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const TINY: &[u8] = include_bytes!("../../fixtures/tiny/tiny.gguf");
/// Three answers of 64 tokens each do not fit beside one another: they are preempted.
const N_BLOCKS: usize = 12;
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    store: Arc<SqliteStore>,
    queue: Arc<InProcessQueue>,
    bus: Arc<InProcessBus>,
    objects: Arc<dyn ObjectStore>,
    served: ServedModel,
    stop: oneshot::Sender<()>,
    working: JoinHandle<Result<(), WorkerError>>,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(folder.path().join("jobs.db")).await.unwrap());
        let queue = Arc::new(InProcessQueue::default());
        let bus = Arc::new(InProcessBus::new(BusLimits::default()));
        let objects: Arc<dyn ObjectStore> = Arc::new(local_objects(&folder.path().join("objects")).unwrap());
        let release = gpu_worker::trivial(TINY, N_BLOCKS).unwrap();
        let served = release.served.clone();
        let deps = Deps { store: store.clone(), queue: queue.clone(), bus: bus.clone(), objects: objects.clone() };
        let ports = BeatPorts { store: store.clone(), bus: bus.clone() };
        let beat = Box::new(move || {
            let ports = ports.clone();
            let opened: futures::future::BoxFuture<'static, _> = Box::pin(std::future::ready(Ok(ports)));
            opened
        });
        let config = WorkerConfig {
            limits: Limits { max_sequences: 4, step_tokens: 64, ..Limits::default() },
            lease_ttl: Duration::from_secs(15),
            drain_grace: Duration::from_secs(5),
            preparing: 2,
            prefix_cache: PrefixCache::Off,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = oneshot::channel();
        let on_ready = move |_| ready.send(()).unwrap();
        let shutdown = async move { drop(stopped.await) };
        let working = tokio::spawn(gpu_worker::run(deps, beat, release, config, on_ready, shutdown));
        is_ready.await.unwrap();
        Self { store, queue, bus, objects, served, stop, working, _folder: folder }
    }

    async fn accept(&self, mut body: Value) -> JobId {
        body["model"] = json!("trivial");
        let kind = if body.get("input").is_some() { Kind::Embedding } else { Kind::Completion };
        let request = parse(kind, &body).unwrap().request;
        let id = JobId::new();
        let job = NewJob {
            id,
            tenant: TenantId::local(),
            release: self.served.release.clone(),
            route: "trivial".into(),
            class: Class::Standard,
            bound: 100,
            tenant_bound: None,
            delay: Duration::ZERO,
            deadline_in: Duration::from_secs(60),
            seed: request.sampling.seed.unwrap_or(1),
            request,
            metadata: BTreeMap::new(),
            batch_line: None,
            custom_id: None,
            webhook: None,
            sequence_key: None,
            on_failure: OnFailure::Skip,
            traceparent: None,
            idempotency: None,
            published_by_caller: false,
            trajectory: TrajectoryMode::Full,
            keep: None,
        };
        self.store.accept(&[job]).await.unwrap()[0].clone().unwrap();
        id
    }

    /// What the feeder does.
    async fn publish(&self) {
        let queue = QueueId { release: self.served.release.clone(), class: Class::Standard };
        let wakes: Vec<_> = self.store.due(&queue, 100).await.unwrap();
        let wakes: Vec<_> = wakes.into_iter().map(|wake| (queue.clone(), wake)).collect();
        self.queue.publish(&wakes).await;
    }

    async fn ended(&self, id: JobId) -> Job {
        let ended = async {
            loop {
                let job = self.store.get(&TenantId::local(), &id).await.unwrap().unwrap();
                if job.state.is_terminal() {
                    return job;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the job ends")
    }

    async fn record(&self, id: JobId) -> Record {
        let job = self.ended(id).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.error);
        match job.record {
            Some(RecordLocation::Inline(bytes)) => Record::decode(&bytes).unwrap(),
            Some(RecordLocation::Staged(key)) => {
                let object = self.objects.get(&key.into()).await.unwrap();
                Record::decode(&object.bytes().await.unwrap()).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.working.await.unwrap().unwrap();
    }
}

fn body(n: u8, seed: u64) -> Value {
    json!({"prompt": [5, 6, 7, 8], "max_tokens": 60, "ignore_eos": true, "n": n, "seed": seed, "presence_penalty": 0.5,
        "repetition_penalty": 1.2, "logprobs": 0})
}

#[tokio::test]
async fn several_answers_are_drawn_streamed_and_kept() {
    let world = World::new().await;
    let several = world.accept(body(3, 7)).await;
    let single = world.accept(body(1, 7)).await;
    let others: Vec<JobId> = [world.accept(body(8, 8)).await, world.accept(body(2, 9)).await].into();
    let events = world.bus.events(&several, 0).await.unwrap();
    world.publish().await;
    let record = world.record(several).await;
    let tokens: Vec<TokenEvent> = events
        .filter_map(|event| async {
            match event.unwrap().body {
                JobEventBody::Token(token) => Some(token),
                JobEventBody::Started | JobEventBody::Ended { .. } => None,
            }
        })
        .collect()
        .await;
    assert_eq!(tokens, replay(&record, 0).unwrap(), "the stream is as the record says");
    assert_eq!(tokens.iter().map(|token| token.choice).take(5).collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
    assert_eq!(record.choices.len(), 3);
    assert_eq!((record.usage.prompt_tokens, record.usage.output_tokens), (4, 180), "the prompt counts once");
    let ids: Vec<_> = record.choices.iter().map(|choice| choice.output_ids.clone()).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    assert!(record.choices.iter().all(|choice| choice.logprobs.as_ref().is_some_and(|all| all.len() == 60)));
    let single = world.record(single).await;
    assert_eq!(single.choices, record.choices[..1], "the first answer is the same with and without others");
    for (id, n) in others.into_iter().zip([8, 2]) {
        assert_eq!(world.record(id).await.choices.len(), n);
    }
    // Again, alone: what else ran makes no difference.
    let again = world.accept(body(3, 7)).await;
    world.publish().await;
    assert_eq!(world.record(again).await.choices, record.choices);
    world.stop().await;
}

#[tokio::test]
async fn answers_that_end_early_let_the_others_go_on() {
    let world = World::new().await;
    let mut asked = body(8, 3);
    // Each token has about one chance in a few to end its answer.
    asked["stop_token_ids"] = json!((0..64).collect::<Vec<u32>>());
    let id = world.accept(asked).await;
    let events = world.bus.events(&id, 0).await.unwrap();
    world.publish().await;
    let record = world.record(id).await;
    let lengths: Vec<usize> = record.choices.iter().map(|choice| choice.output_ids.len()).collect();
    assert!(lengths.iter().any(|length| *length != lengths[0]), "{lengths:?}");
    assert_eq!(record.usage.output_tokens as usize, lengths.iter().sum::<usize>());
    let told = events.filter(|event| {
        let is_token = matches!(event.as_ref().unwrap().body, JobEventBody::Token(_));
        async move { is_token }
    });
    assert_eq!(told.count().await, lengths.iter().sum::<usize>());
    world.stop().await;
}

#[tokio::test]
async fn a_stop_text_is_shown_when_asked_for() {
    let world = World::new().await;
    let mut asked = json!({"prompt": [5], "max_tokens": 30, "ignore_eos": true, "seed": 4});
    let plain = world.accept(asked.clone()).await;
    world.publish().await;
    let whole = world.record(plain).await.choices[0].text.clone();
    // Some characters of what is said without it, the first time they are there.
    let stop: String = whole.chars().skip(6).take(2).collect();
    let before = whole.find(&stop).unwrap();
    asked["stop"] = json!(stop);
    let hidden = world.accept(asked.clone()).await;
    asked["include_stop_str_in_output"] = json!(true);
    let shown = world.accept(asked).await;
    world.publish().await;
    assert_eq!(world.record(hidden).await.choices[0].text, whole[..before]);
    let shown = world.record(shown).await.choices[0].clone();
    assert_eq!(shown.text, whole[..before + stop.len()]);
    assert_eq!(shown.stop_reason, Some(json!(stop)));
    world.stop().await;
}

#[tokio::test]
async fn a_bias_steers_and_one_beyond_the_vocabulary_is_refused() {
    let world = World::new().await;
    let vocab_size = world.served.vocab_size;
    let biased =
        |id: u32| json!({"prompt": [5], "max_tokens": 4, "ignore_eos": true, "logit_bias": {id.to_string(): 100}});
    let within = world.accept(biased(vocab_size - 1)).await;
    let beyond = world.accept(biased(vocab_size)).await;
    world.publish().await;
    assert_eq!(world.record(within).await.choices[0].output_ids, [vocab_size - 1; 4]);
    let failed = world.ended(beyond).await;
    let error = failed.error.unwrap();
    assert_eq!((failed.state, error.code), (JobState::Failed, ErrorCode::InvalidRequest));
    assert_eq!(error.param, Some(format!("logit_bias.{vocab_size}")));
    assert!(error.message.contains(&vocab_size.to_string()), "{}", error.message);
    world.stop().await;
}

#[tokio::test]
async fn a_prompt_is_shown_and_scored_with_an_answer_and_alone() {
    let world = World::new().await;
    let text = "The river ran: é and back.";
    let asked = |prompt: &Value, max_tokens: u32| json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "seed": 5, "echo": true, "logprobs": 2, "n": 2});
    let alone = world.accept(asked(&json!(text), 0)).await;
    let beside = world.accept(asked(&json!(text), 7)).await;
    let plain =
        world.accept(json!({"prompt": text, "max_tokens": 7, "ignore_eos": true, "seed": 5, "logprobs": 2})).await;
    world.publish().await;
    let (alone, beside, plain) = (world.record(alone).await, world.record(beside).await, world.record(plain).await);
    let n_prompt = alone.prompt_ids.len();
    let tokens = alone.prompt_tokens.clone().unwrap();
    assert_eq!((tokens.len(), alone.prompt_text.as_str()), (n_prompt, text));
    assert!(tokens[0].score.is_none() && tokens[1..].iter().all(|token| token.score.as_ref().unwrap().top.len() == 2));
    // Places are where the tokens' texts are, but for the character of two bytes that are two tokens.
    for token in tokens.iter().filter(|token| !token.token.contains('\u{fffd}')) {
        let from: String = text.chars().skip(token.offset as usize).collect();
        assert!(from.starts_with(&token.token), "{token:?} is not at {from:?}");
    }
    assert_eq!(alone.choices.len(), 2);
    assert!(alone.choices.iter().all(|choice| choice.output_ids.is_empty() && choice.logprobs == Some(vec![])));
    assert_eq!((alone.usage.prompt_tokens as usize, alone.usage.output_tokens), (n_prompt, 0));
    assert_eq!(beside.prompt_tokens, alone.prompt_tokens, "scores do not depend on what follows");
    assert_eq!(plain.prompt_tokens, None);
    assert_eq!(beside.choices[0], plain.choices[0], "and an answer does not depend on them");
    // By ids, the text is put together from the tokens.
    let by_ids = world.accept(asked(&json!(alone.prompt_ids), 0)).await;
    world.publish().await;
    let by_ids = world.record(by_ids).await;
    assert_eq!((&by_ids.prompt_text, &by_ids.prompt_tokens), (&alone.prompt_text, &alone.prompt_tokens));
    // A prompt that fills the cache can be scored, and have no answer.
    let full = vec![3; N_BLOCKS * 16];
    let fits = world.accept(json!({"prompt": full, "max_tokens": 0, "echo": true, "logprobs": 0})).await;
    let does_not = world.accept(json!({"prompt": full, "max_tokens": 1, "echo": true, "logprobs": 0})).await;
    let beyond = vec![3; N_BLOCKS * 16 + 1];
    let longer = world.accept(json!({"prompt": beyond, "max_tokens": 0, "echo": true})).await;
    world.publish().await;
    assert_eq!(world.record(fits).await.prompt_tokens.unwrap().len(), N_BLOCKS * 16);
    for id in [does_not, longer] {
        let error = world.ended(id).await.error.unwrap();
        assert_eq!((error.code, error.param.as_deref()), (ErrorCode::ContextLengthExceeded, Some("prompt")), "{error}");
    }
    world.stop().await;
}

#[tokio::test]
async fn vectors_of_one_job_are_those_of_their_texts_alone() {
    let world = World::new().await;
    let texts: Vec<String> = (0..70).map(|nth| "word ".repeat(1 + nth % 13) + &nth.to_string()).collect();
    for pooling in ["last", "mean"] {
        let all = world.accept(json!({"input": texts, "pooling": pooling})).await;
        let singles = [0, 1, 12, 13, 69];
        let mut alone = Vec::new();
        for nth in singles {
            alone.push(world.accept(json!({"input": texts[nth], "pooling": pooling})).await);
        }
        world.publish().await;
        let record = world.record(all).await;
        assert_eq!((record.vectors.len(), record.choices.len(), record.kind), (70, 0, Kind::Embedding));
        let mut n_tokens = 0;
        for (nth, id) in singles.into_iter().zip(alone) {
            let single = world.record(id).await;
            assert_eq!(single.vectors, record.vectors[nth..=nth], "text {nth} by {pooling}");
            n_tokens += single.usage.prompt_tokens;
        }
        assert!(record.usage.prompt_tokens > n_tokens && record.usage.output_tokens == 0);
        for vector in &record.vectors {
            let length: f64 = vector.0.iter().map(|x| f64::from(*x).powi(2)).sum();
            assert!((length - 1.0).abs() < 1e-6, "{length}");
        }
        let distinct: std::collections::HashSet<_> = record.vectors.iter().map(|vector| vector.to_base64()).collect();
        assert_eq!(distinct.len(), 70, "each text has a vector of its own");
    }
    world.stop().await;
}

#[tokio::test]
async fn two_thousand_vectors_go_to_the_object_store_and_what_is_wrong_is_named() {
    let world = World::new().await;
    let size = 24;
    let many = world.accept(json!({"input": (0..2_048).map(|nth| format!("text {nth}")).collect::<Vec<_>>()})).await;
    let cut = world.accept(json!({"input": "x", "dimensions": size})).await;
    let too_wide = world.accept(json!({"input": "x", "dimensions": size + 1})).await;
    let too_long = "long ".repeat(N_BLOCKS * 16);
    let one_long = world.accept(json!({"input": too_long})).await;
    let third_long = world.accept(json!({"input": ["a", "b", too_long]})).await;
    let no_token = world.accept(json!({"input": [[1], [world.served.vocab_size]]})).await;
    world.publish().await;
    assert_eq!(world.record(cut).await.vectors[0].0.len(), size);
    for (id, code, param) in [
        (too_wide, ErrorCode::InvalidRequest, "dimensions"),
        (one_long, ErrorCode::ContextLengthExceeded, "input"),
        (third_long, ErrorCode::ContextLengthExceeded, "input[2]"),
        (no_token, ErrorCode::InvalidRequest, "input[1]"),
    ] {
        let failed = world.ended(id).await;
        let error = failed.error.unwrap();
        assert_eq!(
            (failed.state, error.code, error.param.as_deref()),
            (JobState::Failed, code, Some(param)),
            "{error}"
        );
    }
    let record = world.record(many).await;
    assert_eq!((record.vectors.len(), record.vectors[2_047].0.len()), (2_048, size));
    let job = world.ended(many).await;
    assert!(matches!(job.record, Some(RecordLocation::Staged(_))), "{:?}", job.record);
    assert_eq!((job.usage.prompt_tokens, job.first_token_at), (record.usage.prompt_tokens, None));
    world.stop().await;
}

#[tokio::test]
async fn a_job_of_vectors_that_is_cancelled_leaves_the_engine() {
    let world = World::new().await;
    let texts: Vec<String> = (0..2_000).map(|nth| format!("{nth} ").repeat(20)).collect();
    let id = world.accept(json!({"input": texts})).await;
    world.publish().await;
    let cancelled = world.store.cancel(&TenantId::local(), &id).await.unwrap();
    assert!(matches!(cancelled, contract::CancelAnswer::Cancelled { .. }), "{cancelled:?}");
    world.bus.tell(contract::Signal::Cancelled { job: id }).await;
    // The engine is free for others.
    let after = world.accept(json!({"input": "x"})).await;
    world.publish().await;
    assert_eq!(world.record(after).await.vectors.len(), 1);
    assert_eq!(world.ended(id).await.state, JobState::Cancelled);
    world.stop().await;
}
