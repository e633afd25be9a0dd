//! From an item of a dataset to a request, or to the answer that it is none, as the options of the run have it.

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
        let custom_id = format!("line-{}", item.line);
        let mut place = Place { line: item.line, custom_id, release: self.release.clone() };
        let content = match item.content {
            Ok(content) => content,
            Err(why) => {
                let line = Line::of_unreadable(&place, &why);
                return (place, Err(line));
            }
        };
        let asked = read(content, item.line, &self.model, self.any_model, &self.defaults);
        place.custom_id = asked.custom_id;
        let body = asked.request.map_err(|refusal| Line::of_refusal(&place, &refusal));
        (place, body)
    }
}
