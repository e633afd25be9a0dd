//! Bodies of the schedule routes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::batches::{OutputExpiresAfter, ParsedBatch, endpoint, parse_batch};
use super::fields::{Fields, error, wrong_type, wrong_value};
use super::webhooks::HookRequest;
use super::{MAX_STRING_BYTES, ParseCode, ParseError};
use crate::schedule::{BatchTemplate, CatchUp, Cron, Overlap, Schedule, ScheduleChange, Zone};
use crate::time::Timestamp;

/// Most characters of a schedule's name.
const MAX_NAME_CHARS: usize = 200;

/// What `POST /v1/schedules` takes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRequest {
    /// What people call it, up to 200 characters.
    #[schema(min_length = 1, max_length = 200)]
    pub name: String,
    /// Its times: minute, hour, day of month, month, day of week. Or @hourly, @daily, @weekly, @monthly, @yearly.
    #[schema(example = "0 3 * * *")]
    pub cron: String,
    /// Where the clock hangs that these are read from: a time zone of the IANA's database. Default: `UTC`.
    #[schema(example = "Europe/Berlin")]
    pub timezone: Option<String>,
    /// What its batches are made from.
    pub batch: ScheduleBatch,
    /// Whether it runs at its times. Default: true.
    pub enabled: Option<bool>,
    /// What happens at a time at which an earlier run has not ended. Default: `skip`.
    pub overlap: Option<Overlap>,
    /// What happens when times were missed, since no scheduler was there. Default: `one`.
    pub catch_up: Option<CatchUp>,
}

/// What `POST /v1/schedules/{id}` changes. What is left out stays.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ScheduleChangeRequest {
    /// What people call it.
    #[schema(min_length = 1, max_length = 200)]
    pub name: Option<String>,
    /// Its times.
    pub cron: Option<String>,
    /// Where the clock hangs that these are read from.
    pub timezone: Option<String>,
    /// What its batches are made from, as a whole.
    pub batch: Option<ScheduleBatch>,
    /// Whether it runs at its times. Times that pass while it does not are not made up for.
    pub enabled: Option<bool>,
    /// What happens at a time at which an earlier run has not ended.
    pub overlap: Option<Overlap>,
    /// What happens when times were missed.
    pub catch_up: Option<CatchUp>,
}

/// What the batches of a schedule are made from: the body of `POST /v1/batches` without `run_after`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleBatch {
    /// An uploaded file of purpose `batch`. It stays while an enabled schedule uses it, also past its own end.
    pub input_file_id: String,
    /// `/v1/chat/completions` or `/v1/completions`; all lines name the same.
    pub endpoint: String,
    /// The time that each batch has.
    #[schema(example = "24h")]
    pub completion_window: String,
    /// The client's own pairs, of each batch.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Life of the output files. Default: 30 days.
    pub output_expires_after: Option<OutputExpiresAfter>,
    /// How long the payload of a line is kept after its end, but never shorter than until its batch has ended. Default: the
    /// server's policy.
    #[schema(minimum = 60, maximum = 315_360_000)]
    pub keep_seconds: Option<u64>,
    /// Where each batch is told of, beside the webhooks of its tenant.
    pub webhook: Option<HookRequest>,
}

/// A schedule that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedSchedule {
    /// What people call it.
    pub name: String,
    /// Its times.
    pub cron: Cron,
    /// Where the clock hangs that they are read from.
    pub zone: Zone,
    /// What happens at a time at which an earlier run has not ended.
    pub overlap: Overlap,
    /// What happens when times were missed.
    pub catch_up: CatchUp,
    /// Whether it runs at its times.
    pub enabled: bool,
    /// What its batches are made from.
    pub batch: BatchTemplate,
}

/// Reads the body of `POST /v1/schedules`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_schedule(body: &Value) -> Result<ParsedSchedule, ParseError> {
    let fields = Fields::of(body, "")?;
    let change = changes(fields)?;
    let missing = |name: &str| error(name, ParseCode::MissingRequiredParameter, "is required");
    Ok(ParsedSchedule {
        name: change.name.ok_or_else(|| missing("name"))?,
        cron: change.cron.ok_or_else(|| missing("cron"))?,
        zone: change.zone.unwrap_or_default(),
        batch: change.batch.ok_or_else(|| missing("batch"))?,
        overlap: change.overlap.unwrap_or_default(),
        catch_up: change.catch_up.unwrap_or_default(),
        enabled: change.enabled.unwrap_or(true),
    })
}

/// Reads the body of `POST /v1/schedules/{id}`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_schedule_change(body: &Value) -> Result<ScheduleChange, ParseError> {
    changes(Fields::of(body, "")?)
}

fn changes(mut fields: Fields<'_>) -> Result<ScheduleChange, ParseError> {
    let name = fields.string("name", MAX_STRING_BYTES)?;
    if name.is_some_and(|name| !(1..=MAX_NAME_CHARS).contains(&name.chars().count())) {
        return Err(wrong_value("name", format_args!("must have 1 to {MAX_NAME_CHARS} characters")));
    }
    let change = ScheduleChange {
        name: name.map(str::to_owned),
        cron: parsed(&mut fields, "cron", |problem| wrong_value("cron", problem))?,
        zone: parsed(&mut fields, "timezone", |problem| wrong_value("timezone", problem))?,
        batch: fields.take("batch").map(batch).transpose()?,
        overlap: parsed(&mut fields, "overlap", |problem| wrong_value("overlap", format_args!("is wrong: {problem}")))?,
        catch_up: parsed(&mut fields, "catch_up", |problem| {
            wrong_value("catch_up", format_args!("is wrong: {problem}"))
        })?,
        enabled: fields.boolean("enabled")?,
    };
    fields.finish()?;
    Ok(change)
}

/// A string that is read further.
fn parsed<T: std::str::FromStr>(
    fields: &mut Fields<'_>,
    name: &'static str,
    wrong: impl Fn(T::Err) -> ParseError,
) -> Result<Option<T>, ParseError> {
    fields.string(name, MAX_STRING_BYTES)?.map(|text| text.parse().map_err(wrong)).transpose()
}

/// Reads `batch`; what is wrong in it is named as a part of it.
fn batch(value: &Value) -> Result<BatchTemplate, ParseError> {
    if !value.is_object() {
        return Err(wrong_type("batch", "an object", value));
    }
    let ParsedBatch { input, endpoint, window, window_text, metadata, output_life, run_after, webhook, keep } =
        parse_batch(value).map_err(within_batch)?;
    if run_after.is_some() {
        let what = "cannot be given here, where the schedule says when: leave it out";
        return Err(wrong_value("batch.run_after", what));
    }
    Ok(BatchTemplate { input, endpoint, window, window_text, metadata, output_life, keep, webhook })
}

fn within_batch(error: ParseError) -> ParseError {
    let Some(param) = error.param else { return error };
    let message = match error.message.strip_prefix(&format!("`{param}`")) {
        Some(rest) => format!("`batch.{param}`{rest}"),
        None => error.message,
    };
    ParseError { param: Some(format!("batch.{param}")), message, code: error.code }
}

/// A schedule as it is shown. Times are RFC 3339, by the store's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleObject {
    /// Its id.
    #[schema(example = "schedule_0193f0c0d0e070008000000000000001")]
    pub id: String,
    /// Always `schedule`.
    pub object: String,
    /// What people call it.
    pub name: String,
    /// Its times.
    pub cron: String,
    /// Where the clock hangs that these are read from.
    pub timezone: String,
    /// What its batches are made from.
    pub batch: ScheduleBatch,
    /// Whether it runs at its times.
    pub enabled: bool,
    /// What happens at a time at which an earlier run has not ended.
    pub overlap: Overlap,
    /// What happens when times were missed.
    pub catch_up: CatchUp,
    /// When it was made.
    pub created_at: String,
    /// When it runs next; null while it is disabled.
    #[schema(required)]
    pub next_at: Option<String>,
    /// When it ran last, at its time or on demand.
    #[schema(required)]
    pub last_at: Option<String>,
    /// The batch of that run.
    #[schema(required)]
    pub last_batch_id: Option<String>,
    /// Why its last time brought no run: its file is gone. Null once it has run again.
    #[schema(required)]
    pub last_error: Option<String>,
    /// Batches made so far.
    pub runs: u64,
    /// Times that were passed over so far: an earlier run had not ended, or they were missed and are not made up for.
    pub skipped: u64,
}

impl ScheduleObject {
    /// What is shown of a schedule.
    pub fn of(schedule: &Schedule) -> Self {
        let at = |at: Option<Timestamp>| at.map(Timestamp::rfc3339);
        Self {
            id: schedule.id.to_string(),
            object: "schedule".to_owned(),
            name: schedule.name.clone(),
            cron: schedule.cron.as_str().to_owned(),
            timezone: schedule.zone.as_str().to_owned(),
            batch: ScheduleBatch::of(&schedule.batch),
            enabled: schedule.is_enabled(),
            overlap: schedule.overlap,
            catch_up: schedule.catch_up,
            created_at: schedule.created_at.rfc3339(),
            next_at: at(schedule.next_at),
            last_at: at(schedule.last_at),
            last_batch_id: schedule.last_batch.map(|id| id.to_string()),
            last_error: schedule.last_error.clone(),
            runs: schedule.runs,
            skipped: schedule.skipped,
        }
    }
}

impl ScheduleBatch {
    fn of(batch: &BatchTemplate) -> Self {
        Self {
            input_file_id: batch.input.to_string(),
            endpoint: endpoint(batch.endpoint).to_owned(),
            completion_window: batch.window_text.clone(),
            metadata: (!batch.metadata.is_empty()).then(|| batch.metadata.clone()),
            output_expires_after: batch
                .output_life
                .map(|life| OutputExpiresAfter { anchor: "created_at".to_owned(), seconds: life.as_secs() }),
            keep_seconds: batch.keep.map(|keep| keep.as_secs()),
            webhook: batch
                .webhook
                .as_ref()
                .map(|hook| HookRequest { url: hook.url.clone(), events: Some(hook.events.clone()) }),
        }
    }
}

/// A page of schedules, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    /// Always `list`.
    pub object: String,
    /// The schedules.
    pub data: Vec<ScheduleObject>,
    /// Id of the first of them.
    #[schema(required)]
    pub first_id: Option<String>,
    /// Id of the last of them: `after` of the next page.
    #[schema(required)]
    pub last_id: Option<String>,
    /// Whether older ones follow.
    pub has_more: bool,
}

impl ScheduleList {
    /// A page.
    pub fn new(schedules: &[Schedule], has_more: bool) -> Self {
        let id = |schedule: Option<&Schedule>| schedule.map(|schedule| schedule.id.to_string());
        Self {
            object: "list".to_owned(),
            data: schedules.iter().map(ScheduleObject::of).collect(),
            first_id: id(schedules.first()),
            last_id: id(schedules.last()),
            has_more,
        }
    }
}

/// The answer to a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleDeleted {
    /// The schedule's id.
    pub id: String,
    /// Always `schedule`.
    pub object: String,
    /// Always true.
    pub deleted: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        let file = format!("file-{}", "0".repeat(32));
        json!({"name": "n", "cron": "0 3 * * *", "batch": {"input_file_id": file, "endpoint": "/v1/completions",
            "completion_window": "24h"}})
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        let cases = [
            ("/name", json!(""), "name"),
            ("/name", json!("x".repeat(201)), "name"),
            ("/name", Value::Null, "name"),
            ("/cron", Value::Null, "cron"),
            ("/cron", json!("0 0 3 * * *"), "cron"),
            ("/cron", json!(5), "cron"),
            ("/timezone", json!("Berlin"), "timezone"),
            ("/overlap", json!("queue"), "overlap"),
            ("/catch_up", json!("all"), "catch_up"),
            ("/enabled", json!("yes"), "enabled"),
            ("/batch", Value::Null, "batch"),
            ("/batch", json!("x"), "batch"),
            ("/batch/endpoint", json!("/v1/images/generations"), "batch.endpoint"),
            ("/batch/completion_window", Value::Null, "batch.completion_window"),
            ("/batch/run_after", json!(1), "batch.run_after"),
            ("/batch/webhook", json!({}), "batch.webhook.url"),
            ("/batch/colour", json!(1), "batch.colour"),
            ("/colour", json!(1), "colour"),
        ];
        for (pointer, value, param) in cases {
            let mut body = good();
            let (at, name) = pointer.rsplit_once('/').unwrap();
            body.pointer_mut(at).unwrap()[name] = value.clone();
            let error = parse_schedule(&body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{pointer} {value}: {error}");
            assert!(error.message.starts_with(&format!("`{param}` ")), "{error}");
        }
        assert_eq!(parse_schedule(&json!([])).unwrap_err().param, None);
    }

    #[test]
    fn what_is_left_out_has_a_default_and_stays_in_a_change() {
        let parsed = parse_schedule(&good()).unwrap();
        assert_eq!((parsed.overlap, parsed.catch_up, parsed.enabled), (Overlap::Skip, CatchUp::One, true));
        assert_eq!(parsed.zone.as_str(), "UTC");
        assert_eq!(parse_schedule_change(&json!({})).unwrap(), ScheduleChange::default());
        let change = parse_schedule_change(&json!({"enabled": false, "catch_up": "none", "cron": "@daily"})).unwrap();
        assert_eq!((change.enabled, change.catch_up), (Some(false), Some(CatchUp::None)));
        assert_eq!((change.cron.unwrap().as_str(), change.batch), ("@daily", None));
    }
}
