//! Follows a job token by token: from the bus while it runs, from its record where the bus has nothing any more.

use std::collections::VecDeque;

use contract::openai::views::replay;
use contract::{Gone, Job, JobEvent, JobEventBody, JobId, TenantId, TokenEvent};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::error::ApiError;
use crate::results::{self, Finished};
use crate::state::AppState;
use crate::waiters::Waiter;

/// Failed reads of the store in a row after which following ends.
const PATIENCE: u32 = 10;

/// What a follower sees, in order: starts and tokens, then exactly one of the last two.
pub(crate) enum Followed {
    /// An attempt began.
    Started { attempt: u32 },
    /// The next token; positions have no gap and no repeat, whatever attempts they come from.
    Token(TokenEvent),
    /// The job ended; all its tokens were seen.
    Ended(Box<Finished>),
    /// It cannot be followed any further.
    Failed(ApiError),
}

/// A reader of one job's tokens.
pub(crate) struct Follow {
    state: AppState,
    tenant: TenantId,
    job: JobId,
    /// Position the reader began after.
    first: u32,
    /// Ids of the tokens given out, from `first + 1` on.
    ids: Vec<u32>,
    /// Highest attempt whose start was given out.
    attempt: u32,
    bus: Option<BoxStream<'static, Result<JobEvent, Gone>>>,
    waiter: Waiter,
    pending: VecDeque<Followed>,
    failures: u32,
    done: bool,
}

impl Follow {
    /// Follows `job` from the token after position `after` on; also returns the job as it is now.
    ///
    /// # Errors
    /// 404 when there is no such job of this tenant; 410 when its payload's time is over; 503 when the store cannot be read.
    pub async fn start(state: &AppState, tenant: &TenantId, job: JobId, after: u32) -> Result<(Self, Job), ApiError> {
        // Subscribe before the query, or what happens in between is lost.
        let waiter = state.waiters.wait_for(job);
        let bus = state.deps.bus.events(&job, after).await.ok();
        let now = results::kept(results::job(state, tenant, &job).await?)?;
        let mut follow = Self {
            state: state.clone(),
            tenant: tenant.clone(),
            job,
            first: after,
            ids: Vec::new(),
            attempt: 0,
            bus,
            waiter,
            pending: VecDeque::new(),
            failures: 0,
            done: false,
        };
        if now.state.is_terminal() {
            let finished = results::finished(state, now.clone()).await?;
            follow.finish(finished);
        }
        Ok((follow, now))
    }

    /// The next thing; `None` after the last. Cancel safe: what was not returned comes again.
    pub async fn next(&mut self) -> Option<Followed> {
        loop {
            if let Some(next) = self.pending.pop_front() {
                return Some(next);
            }
            if self.done {
                return None;
            }
            let event = async {
                match &mut self.bus {
                    Some(bus) => bus.next().await,
                    None => std::future::pending().await,
                }
            };
            let state = self.state.clone();
            tokio::select! {
                event = event => match event {
                    Some(Ok(event)) => self.take(event).await,
                    // Too slow, or dropped by the bus: the record has it all, once the job has ended.
                    Some(Err(Gone)) => self.bus = None,
                    None => {
                        self.bus = None;
                        self.look().await;
                    }
                },
                () = self.waiter.signalled() => self.look().await,
                () = tokio::time::sleep(state.deps.limits.poll) => {
                    self.look().await;
                    if self.bus.is_none() && !self.done {
                        self.bus = state.deps.bus.events(&self.job, self.sent()).await.ok();
                    }
                }
                () = state.closing.cancelled() => self.fail(ApiError::ShuttingDown),
            }
        }
    }

    /// Position of the last token given out.
    fn sent(&self) -> u32 {
        self.first.saturating_add(u32::try_from(self.ids.len()).unwrap_or(u32::MAX))
    }

    async fn take(&mut self, event: JobEvent) {
        match event.body {
            JobEventBody::Started if event.attempt > self.attempt => {
                self.attempt = event.attempt;
                self.pending.push_back(Followed::Started { attempt: event.attempt });
            }
            JobEventBody::Started => {}
            JobEventBody::Token(token) => self.token(token),
            JobEventBody::Ended { .. } => self.look().await,
        }
    }

    fn token(&mut self, token: TokenEvent) {
        let next = self.sent().saturating_add(1);
        if token.position == next {
            self.ids.push(token.id);
            self.pending.push_back(Followed::Token(token));
        } else if token.position < next {
            // A new attempt says again what was said. It must say the same.
            let known = token.position.checked_sub(self.first + 1).and_then(|nth| self.ids.get(nth as usize));
            if known.is_some_and(|id| *id != token.id) {
                self.fail(ApiError::Disagrees);
            }
        } else {
            // A hole in what should have none: the record will fill it.
            self.bus = None;
        }
    }

    /// Reads the store: has the job ended?
    async fn look(&mut self) {
        let seen = match results::job(&self.state, &self.tenant, &self.job).await {
            Ok(job) if job.state.is_terminal() => results::finished(&self.state, job).await.map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        match seen {
            Ok(Some(finished)) => self.finish(finished),
            Ok(None) => self.failures = 0,
            Err(error @ (ApiError::Store(_) | ApiError::Objects(_))) => {
                self.failures += 1;
                if self.failures >= PATIENCE {
                    self.fail(error);
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Gives out what is left of the record, and the end.
    fn finish(&mut self, finished: Finished) {
        let Some(record) = &finished.record else {
            self.end(finished);
            return;
        };
        let whole = record.streamed_ids();
        if self.ids.is_empty() {
            // Whoever asks to resume beyond the last token has missed nothing but the end.
            self.first = self.first.min(u32::try_from(whole.len()).unwrap_or(u32::MAX));
        }
        let (first, sent) = (self.first as usize, self.sent() as usize);
        if whole.get(first..sent) != Some(self.ids.as_slice()) {
            self.fail(ApiError::Disagrees);
            return;
        }
        if self.attempt == 0 && self.first == 0 {
            self.pending.push_back(Followed::Started { attempt: record.attempt });
        }
        match replay(record, self.sent()) {
            Ok(tokens) => {
                self.ids.extend(tokens.iter().map(|token| token.id));
                self.pending.extend(tokens.into_iter().map(Followed::Token));
                self.end(finished);
            }
            Err(error) => self.fail(ApiError::Inconsistent(error)),
        }
    }

    fn end(&mut self, finished: Finished) {
        self.done = true;
        self.bus = None;
        self.pending.push_back(Followed::Ended(Box::new(finished)));
    }

    fn fail(&mut self, error: ApiError) {
        self.done = true;
        self.bus = None;
        self.pending.push_back(Followed::Failed(error));
    }
}
