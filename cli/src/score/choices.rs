//! `score --choices`: which of given answers the model finds likeliest behind each line's prompt, and how often that is the
//! right one.
//!
//! Each choice is a job that reads prompt and choice together and generates nothing; its score is the sum of the
//! log-probabilities of the choice's tokens. A token that begins in the prompt and ends in the choice counts as the
//! choice's.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use contract::Record;
use contract::openai::Parsed;
use serde_json::{Map, Value, json};

use super::lines::Dataset;
use super::request::{self, Defaults, Refusal};

/// Most choices of a line: the numbers of its jobs are this far from those of the next one's.
pub const MOST: u32 = 32;
/// The field that has a line's right answer where --label names none.
const LABEL: &str = "label";

/// Options of `score --choices`.
#[derive(Debug, Clone, clap::Args)]
pub struct ChoiceArgs {
    /// Say which of these answers is the likeliest, in place of writing one; without texts, of each line's own `choices`
    #[arg(long, value_name = "TEXT", num_args = 0..)]
    #[arg(conflicts_with_all = ["server", "follow", "chat", "max_tokens", "temperature", "seed"])]
    choices: Option<Vec<String>>,
    /// Field or CSV column with the right answer: a choice's text, or its place counted from 0 [default: label]
    #[arg(long, value_name = "FIELD", requires = "choices")]
    label: Option<String>,
    /// Tell the accuracy by the values of this field or CSV column, too; may be repeated
    #[arg(long, value_name = "FIELD", requires = "choices")]
    slice: Vec<String>,
}

impl ChoiceArgs {
    /// How choices are scored, if they are to be.
    ///
    /// # Errors
    /// The choices of the command line are too few, too many, empty or equal.
    pub fn choices(&self) -> anyhow::Result<Option<Choices>> {
        let Some(texts) = self.choices.clone() else { return Ok(None) };
        if !texts.is_empty() {
            check(&texts).map_err(|what| anyhow::anyhow!("--choices {what}"))?;
        }
        Ok(Some(Choices { texts, label: self.label.clone(), slices: self.slice.clone() }))
    }
}

/// Whether texts can be chosen among.
fn check(texts: &[String]) -> Result<(), String> {
    if !(2..=MOST as usize).contains(&texts.len()) {
        return Err(format!("must be 2 to {MOST} texts, not {}", texts.len()));
    }
    if texts.iter().any(String::is_empty) {
        return Err("has an empty text, which has no probability".to_owned());
    }
    match (1..texts.len()).find(|nth| texts[..*nth].contains(&texts[*nth])) {
        Some(nth) => Err(format!("has the text {:?} twice", texts[nth])),
        None => Ok(()),
    }
}

/// How the choices of a run are scored; part of what decides its lines.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Choices {
    /// For lines without their own.
    texts: Vec<String>,
    /// The field of the right answer, if the command names one.
    label: Option<String>,
    /// Fields by whose values the accuracy is told.
    slices: Vec<String>,
}

/// What a line asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    prompt_chars: usize,
    choices: Vec<String>,
    /// The right one, if the line says it.
    label: Option<usize>,
    /// Values of the slices' fields.
    slices: BTreeMap<String, String>,
}

/// A line's name, and its question with a request for each choice, or why it is refused.
pub struct AskedChoices {
    /// The line's own name, or `line-N`.
    pub custom_id: String,
    /// What it asks.
    pub asked: Result<(Question, Vec<Parsed>), Refusal>,
}

fn refusal(param: &str, message: impl Into<String>) -> Refusal {
    Refusal { param: Some(param.to_owned()), code: "invalid_value".to_owned(), message: message.into() }
}

impl Choices {
    /// Has a CSV file keep the columns that label and slices are in.
    ///
    /// # Errors
    /// A column that is named is not there.
    pub fn keep_columns(&self, dataset: &mut Dataset) -> anyhow::Result<()> {
        for name in self.label.iter().chain(&self.slices) {
            dataset.keep(name, true)?;
        }
        if self.label.is_none() {
            dataset.keep(LABEL, false)?;
        }
        Ok(())
    }

    /// Reads one item; see [`request::read`].
    pub fn read(&self, content: Value, line: u64, model: &str, any_model: bool) -> AskedChoices {
        let plain = format!("line-{line}");
        let Value::Object(mut object) = content else {
            let refusal = Refusal { param: None, ..refusal("", "the line must be a JSON object") };
            return AskedChoices { custom_id: plain, asked: Err(refusal) };
        };
        // The name is read beside the request, so that a refused line keeps it.
        let custom_id = object.get("custom_id").and_then(Value::as_str).map_or(plain, str::to_owned);
        let asked = self.question(&mut object).and_then(|(question, prompt)| {
            let requests = question.choices.iter().map(|choice| {
                let mut body = object.clone();
                let text = format!("{prompt}{choice}");
                let whole = json!({"prompt": text, "echo": true, "logprobs": 0, "max_tokens": 0});
                body.extend(whole.as_object().cloned().unwrap_or_default());
                let asked = request::read(Value::Object(body), line, model, any_model, &Defaults::default());
                asked.request.map(|body| body.parsed)
            });
            let requests = requests.collect::<Result<_, _>>()?;
            Ok((question, requests))
        });
        AskedChoices { custom_id, asked }
    }

    /// Takes what only this command knows out of a line.
    fn question(&self, object: &mut Map<String, Value>) -> Result<(Question, String), Refusal> {
        for field in ["messages", "input", "body", "url", "echo", "logprobs", "max_tokens", "stream"] {
            if object.contains_key(field) {
                let what = format!(
                    "`{field}` does not go with --choices: a line has `prompt`, a text, and its choices follow it"
                );
                return Err(refusal(field, what));
            }
        }
        let prompt = match object.remove("prompt") {
            Some(Value::String(prompt)) if !prompt.is_empty() => prompt,
            _ => return Err(refusal("prompt", "with --choices `prompt` must be a text that is not empty")),
        };
        let choices = match object.remove("choices") {
            None | Some(Value::Null) => self.texts.clone(),
            Some(Value::Array(texts)) => {
                let text = |text: &Value| text.as_str().map(str::to_owned);
                let texts: Option<Vec<String>> = texts.iter().map(text).collect();
                texts.ok_or_else(|| refusal("choices", "`choices` must be an array of texts"))?
            }
            Some(_) => return Err(refusal("choices", "`choices` must be an array of texts")),
        };
        check(&choices).map_err(|what| refusal("choices", format!("`choices` {what}")))?;
        let field = self.label.as_deref().unwrap_or(LABEL);
        let given = |field: &str| object.get(field).filter(|value| !value.is_null()).cloned();
        let slices = self.slices.iter().filter_map(|field| {
            let value = given(field)?;
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            Some((field.clone(), text))
        });
        let slices = slices.collect();
        let label = given(field).map(|value| {
            let known = place_of(&value, &choices);
            known.ok_or_else(|| refusal(field, format!("`{field}` is {value}, which is none of the choices")))
        });
        let label = label.transpose()?;
        for field in self.slices.iter().map(String::as_str).chain([field]) {
            object.remove(field);
        }
        Ok((Question { prompt_chars: prompt.chars().count(), choices, label, slices }, prompt))
    }
}

/// The choice that a label means: its text, spaces around it aside, or its place.
fn place_of(label: &Value, choices: &[String]) -> Option<usize> {
    let by_text = |text: &str| choices.iter().position(|choice| choice.trim() == text.trim());
    let by_place = |place: u64| usize::try_from(place).ok().filter(|place| *place < choices.len());
    match label {
        Value::String(text) => by_text(text).or_else(|| by_place(text.trim().parse().ok()?)),
        Value::Number(number) => by_text(&number.to_string()).or_else(|| by_place(number.as_u64()?)),
        Value::Bool(truth) => by_text(&truth.to_string()),
        _ => None,
    }
}

/// The sum of the log-probabilities of what follows the first `prompt_chars` characters, and of how many tokens it is.
/// `None` where the record has none: it was not made by a request of this command.
fn score(record: &Record, prompt_chars: usize) -> Option<(f64, usize)> {
    let tokens = record.prompt_tokens.as_ref()?;
    let all = record.prompt_text.chars().count();
    let ends = tokens.iter().skip(1).map(|token| token.offset as usize).chain([all]);
    let is_choice = |offset: usize, end: usize| offset >= prompt_chars || end > prompt_chars;
    let of_choice = tokens.iter().zip(ends).filter(|(token, end)| is_choice(token.offset as usize, *end));
    let logprobs: Option<Vec<f64>> =
        of_choice.map(|(token, _)| token.score.as_ref().map(|score| f64::from(score.logprob))).collect();
    let logprobs = logprobs.filter(|logprobs| !logprobs.is_empty())?;
    Some((logprobs.iter().sum(), logprobs.len()))
}

impl Question {
    /// The body of the line's answer, from the records of its choices in order; `None` where one of them has no score.
    pub fn answer(&self, records: &[Record]) -> Option<Value> {
        let scores: Option<Vec<(f64, usize)>> = records.iter().map(|record| score(record, self.prompt_chars)).collect();
        let scores = scores.filter(|scores| scores.len() == self.choices.len())?;
        let chosen = (0..scores.len()).rev().max_by(|a, b| scores[*a].0.total_cmp(&scores[*b].0))?;
        let choices = self.choices.iter().zip(&scores).enumerate().map(|(index, (text, (logprob, n_tokens)))| {
            json!({"index": index, "text": text, "logprob": logprob, "n_tokens": n_tokens})
        });
        let n_tokens: u32 = records.iter().map(|record| record.usage.prompt_tokens).sum();
        Some(json!({
            "object": "choice_scores",
            "model": records.first()?.request.model,
            "choices": choices.collect::<Vec<_>>(),
            "chosen": chosen,
            "label": self.label,
            "correct": self.label.map(|label| label == chosen),
            "slices": self.slices,
            "usage": {"prompt_tokens": n_tokens, "completion_tokens": 0, "total_tokens": n_tokens},
        }))
    }
}

/// How many were right, of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    right: u64,
    all: u64,
}

impl Tally {
    fn count(&mut self, is_right: bool) {
        self.right += u64::from(is_right);
        self.all += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4} ({} of {})", self.right as f64 / self.all.max(1) as f64, self.right, self.all)
    }
}

/// How often the likeliest choice was the right one, by all lines that say which one is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    all: Tally,
    by_label: BTreeMap<String, Tally>,
    by_slice: BTreeMap<(String, String), Tally>,
}

impl Accuracy {
    /// Of the lines of an output, those of earlier runs included.
    ///
    /// # Errors
    /// The output cannot be read.
    pub fn of(output: &Path) -> anyhow::Result<Self> {
        let context = || format!("{} cannot be read", output.display());
        let mut accuracy = Self::default();
        for line in BufReader::new(File::open(output).with_context(context)?).lines() {
            let line: Value = serde_json::from_str(&line.with_context(context)?).with_context(context)?;
            accuracy.count(&line["response"]["body"]);
        }
        Ok(accuracy)
    }

    fn count(&mut self, body: &Value) {
        let (Some(is_right), Some(label)) = (body["correct"].as_bool(), body["label"].as_u64()) else { return };
        self.all.count(is_right);
        let label = body["choices"][label as usize]["text"].as_str().unwrap_or_default();
        self.by_label.entry(label.trim().to_owned()).or_default().count(is_right);
        for (field, value) in body["slices"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            self.by_slice.entry((field.clone(), value)).or_default().count(is_right);
        }
    }
}

impl fmt::Display for Accuracy {
    /// A line each; none where no line says what is right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all.all == 0 {
            return write!(f, "no line says which choice is right, so there is no accuracy");
        }
        write!(f, "accuracy {}", self.all)?;
        for (label, tally) in &self.by_label {
            write!(f, "\n  right answer {label}: {tally}")?;
        }
        for ((field, value), tally) in &self.by_slice {
            write!(f, "\n  {field} {value}: {tally}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(texts: &[&str]) -> Choices {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        Choices { texts, label: None, slices: vec!["lang".to_owned()] }
    }

    fn ask(line: Value) -> AskedChoices {
        choices(&[" good", " bad"]).read(line, 7, "m", false)
    }

    #[test]
    fn a_line_becomes_a_request_for_each_choice() {
        let asked = ask(json!({"custom_id": "a", "prompt": "Är it?", "label": "bad", "lang": "en"}));
        assert_eq!(asked.custom_id, "a");
        let (question, requests) = asked.asked.unwrap();
        assert_eq!((question.label, question.prompt_chars), (Some(1), 6));
        assert_eq!(question.slices, BTreeMap::from([("lang".to_owned(), "en".to_owned())]));
        let texts: Vec<_> = requests
            .iter()
            .map(|parsed| {
                let request = &parsed.request;
                assert_eq!((request.echo, request.max_tokens, request.prompt_top()), (true, Some(0), Some(0)));
                let contract::Input::Completion(contract::Prompt::Text(text)) = &request.input else { panic!() };
                text.as_str()
            })
            .collect();
        assert_eq!(texts, ["Är it? good", "Är it? bad"]);
        // A line's own choices come before those of the command.
        let (question, _) = ask(json!({"prompt": "x", "choices": ["1", "0", "2"], "label": 0})).asked.unwrap();
        assert_eq!((question.choices.len(), question.label), (3, Some(1)), "the text 0 before the place 0");
        for (label, expected) in [(json!(1), Some(1)), (json!("0"), Some(0)), (json!(null), None)] {
            assert_eq!(ask(json!({"prompt": "x", "label": label})).asked.unwrap().0.label, expected);
        }
    }

    #[test]
    fn what_is_wrong_with_a_line_is_named() {
        for (line, param) in [
            (json!([]), None),
            (json!({"label": 0}), Some("prompt")),
            (json!({"prompt": ""}), Some("prompt")),
            (json!({"prompt": [1, 2]}), Some("prompt")),
            (json!({"prompt": "x", "messages": []}), Some("messages")),
            (json!({"prompt": "x", "max_tokens": 3}), Some("max_tokens")),
            (json!({"prompt": "x", "label": "ugly"}), Some("label")),
            (json!({"prompt": "x", "label": 2}), Some("label")),
            (json!({"prompt": "x", "choices": "good"}), Some("choices")),
            (json!({"prompt": "x", "choices": ["a"]}), Some("choices")),
            (json!({"prompt": "x", "choices": ["a", ""]}), Some("choices")),
            (json!({"prompt": "x", "choices": ["a", "b", "a"]}), Some("choices")),
            (json!({"prompt": "x", "choices": vec!["a"; 33]}), Some("choices")),
            (json!({"prompt": "x", "model": "other"}), Some("model")),
            (json!({"prompt": "x", "colour": "red"}), Some("colour")),
        ] {
            let refusal = ask(line.clone()).asked.map(|_| ()).unwrap_err();
            assert_eq!(refusal.param.as_deref(), param, "{line}: {refusal:?}");
        }
    }

    /// A record of these tokens: text, and log-probability where there is one.
    fn record(tokens: &[(&str, Option<f32>)]) -> Record {
        let (mut text, mut scored) = (String::new(), Vec::new());
        for (token, logprob) in tokens {
            scored.push(json!({"token": token, "offset": text.chars().count(),
                "score": logprob.map(|logprob| json!({"logprob": logprob, "rank": 1}))}));
            text.push_str(token);
        }
        let request =
            choices(&["a", "b"]).read(json!({"prompt": "x"}), 1, "m", true).asked.unwrap().1.remove(0).request;
        serde_json::from_value(json!({
            "v": 1, "job": contract::JobId::new(), "attempt": 1, "release": "ab", "kind": "completion", "request": request,
            "seed": 1, "prompt_text": text, "prompt_ids": [1], "prompt_tokens": scored, "choices": [],
            "usage": {"prompt_tokens": tokens.len(), "cached_tokens": 0, "output_tokens": 0},
            "timings": {"prepared_ms": 0, "first_token_ms": 0, "finished_ms": 0},
        }))
        .unwrap()
    }

    #[test]
    fn the_tokens_of_a_choice_are_those_behind_the_prompt_and_the_one_across() {
        let tokens = [("The", None), (" é", Some(-1.0)), (" go", Some(-2.0)), ("od", Some(-0.5))];
        assert_eq!(score(&record(&tokens), 5), Some((-2.5, 2)));
        assert_eq!(score(&record(&tokens), 6), Some((-2.5, 2)), "a token begins in the prompt and ends in the choice");
        assert_eq!(score(&record(&tokens), 8), Some((-0.5, 1)));
        assert_eq!(score(&record(&tokens), 0), None, "nothing comes before the first token");
        // Two tokens of one character: the first shows nothing yet, and is the choice's all the same.
        let mut split = record(&[("a", None), ("", Some(-1.0)), ("é", Some(-0.25))]);
        assert_eq!(score(&split, 1), Some((-1.25, 2)));
        split.prompt_tokens = None;
        assert_eq!(score(&split, 1), None);
    }

    #[test]
    fn the_likeliest_choice_is_chosen_and_held_against_the_label() {
        let (question, _) = ask(json!({"prompt": "It", "label": "good", "lang": "en"})).asked.unwrap();
        let good = record(&[("It", None), (" good", Some(-1.5))]);
        let bad = record(&[("It", None), (" b", Some(-0.5)), ("ad", Some(-0.75))]);
        let body = question.answer(&[good.clone(), bad.clone()]).unwrap();
        assert_eq!(
            body["choices"],
            json!([{"index": 0, "text": " good", "logprob": -1.5, "n_tokens": 1},
                {"index": 1, "text": " bad", "logprob": -1.25, "n_tokens": 2}])
        );
        assert_eq!((&body["chosen"], &body["label"], &body["correct"]), (&json!(1), &json!(0), &json!(false)));
        assert_eq!((&body["slices"], &body["usage"]["total_tokens"]), (&json!({"lang": "en"}), &json!(5)));
        assert_eq!(question.answer(&[good.clone(), good.clone()]).unwrap()["chosen"], 0, "the first of equals");
        assert_eq!(question.answer(&[good]), None);
    }

    #[test]
    fn accuracy_is_told_by_label_and_slice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let line = |label: Option<usize>, chosen: usize, lang: &str| {
            let body = json!({"choices": [{"text": " good"}, {"text": " bad"}], "chosen": chosen, "label": label,
                "correct": label.map(|label| label == chosen), "slices": {"lang": lang}});
            format!("{}\n", json!({"response": {"status_code": 200, "body": body}}))
        };
        let refused = "{\"response\":{\"status_code\":400,\"body\":{\"error\":{}}}}\n".to_owned();
        let lines =
            [line(Some(0), 0, "en"), line(Some(0), 1, "de"), line(Some(1), 1, "en"), line(None, 1, "en"), refused];
        std::fs::write(&path, lines.concat()).unwrap();
        assert_eq!(
            Accuracy::of(&path).unwrap().to_string(),
            "accuracy 0.6667 (2 of 3)\n  right answer bad: 1.0000 (1 of 1)\n  right answer good: 0.5000 (1 of 2)\n  \
             lang de: 0.0000 (0 of 1)\n  lang en: 1.0000 (2 of 2)"
        );
        std::fs::write(&path, line(None, 1, "en")).unwrap();
        assert!(Accuracy::of(&path).unwrap().to_string().starts_with("no line says"));
    }
}
