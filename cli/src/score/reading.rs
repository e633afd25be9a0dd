//! From an item of a dataset to a request, or to the answer that it is none, as the options of the run have it.

use contract::openai::Parsed;
use serde_json::Value;

use super::choices::{AskedChoices, Choices, Question};
use super::lines::Item;
use super::output::{Line, Place};
use super::request::{Body, Defaults, read};

/// What a run knows of the requests it reads.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The name of the model that answers.
    pub model: String,
    /// Its release's fingerprint.
    pub release: String,
    /// Answer lines that ask for another model.
    pub any_model: bool,
    /// For fields that lines leave out.
    pub defaults: Defaults,
}

impl Reading {
    /// Reads an item: where its answer belongs, and its request or the answer that it is none.
    pub fn read(&self, item: Item) -> (Place, Result<Body, Line>) {
        let (mut place, content) = self.content(item);
        let content = match content {
            Ok(content) => content,
            Err(line) => return (place, Err(line)),
        };
        let asked = read(content, place.line, &self.model, self.any_model, &self.defaults);
        place.custom_id = asked.custom_id;
        let body = asked.request.map_err(|refusal| Line::of_refusal(&place, &refusal));
        (place, body)
    }

    /// Reads an item of which choices are scored.
    pub fn read_choices(&self, item: Item, choices: &Choices) -> (Place, Result<(Question, Vec<Parsed>), Line>) {
        let (mut place, content) = self.content(item);
        let content = match content {
            Ok(content) => content,
            Err(line) => return (place, Err(line)),
        };
        let AskedChoices { custom_id, asked } = choices.read(content, place.line, &self.model, self.any_model);
        place.custom_id = custom_id;
        let asked = asked.map_err(|refusal| Line::of_refusal(&place, &refusal));
        (place, asked)
    }

    /// Where an item's answer belongs, and what it says, or the answer that it cannot be read.
    fn content(&self, item: Item) -> (Place, Result<Value, Line>) {
        let custom_id = format!("line-{}", item.line);
        let place = Place { line: item.line, custom_id, release: self.release.clone() };
        let content = item.content.map_err(|why| Line::of_unreadable(&place, &why));
        (place, content)
    }
}
