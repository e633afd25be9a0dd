//! Keeping what users write apart from what a chat template writes.
//!
//! A template joins its own text and the users' into one string, and control tokens are found in that string: without
//! care a user who writes `<|im_end|>` ends the turn. The scheme: before rendering, a *guard*, a private-use character
//! that occurs in neither the messages nor the template, is put behind the first character wherever a user's string
//! might begin a control token. Control tokens are then found in the rendered text, where no match can begin in a
//! user's text; the guards are taken out of the pieces between, which are tokenized as plain text.
//!
//! A place gets a guard when what stands there
//! - is the text of a control token, or
//! - is the beginning of one cut off by the end of the string (its spaces aside, templates trim), so that no text the
//!   template puts next can complete it, or
//! - shares its first two characters with one, so that a template which deletes parts of a message cannot join one
//!   together; except tags that the template itself names, such as `</think>`, because it means to find them.
//!
//! A token that begins in the template's text and ends in a user's (`'<|' + role + '|>'`) is the template's doing:
//! roles are checked for this reason.

use std::collections::HashSet;

use serde_json::Value;

use super::TextError;

/// Longest `<tag>` that is looked for in the template's source.
const MAX_TAG_BYTES: usize = 64;

/// Puts guards into users' strings; made once per template.
#[derive(Debug)]
pub(super) struct Guard {
    /// Control token texts, sorted, of two characters and more.
    controls: Vec<String>,
    first_chars: HashSet<char>,
    /// Tags in the template's source that begin like a control token and are none.
    tags: HashSet<String>,
    /// Private-use characters in the template's source.
    private_chars: HashSet<char>,
}

impl Guard {
    pub(super) fn new<'a>(controls: impl Iterator<Item = &'a str>, template: &str) -> Self {
        let mut controls: Vec<String> =
            controls.filter(|text| text.chars().nth(1).is_some()).map(str::to_owned).collect();
        controls.sort_unstable();
        controls.dedup();
        let first_chars: HashSet<char> = controls.iter().filter_map(|text| text.chars().next()).collect();
        let starts = template.char_indices().filter(|(_, character)| first_chars.contains(character));
        let tags = starts
            .filter_map(|(at, _)| tag(&template[at..]))
            .filter(|tag| !controls.iter().any(|control| tag.starts_with(control.as_str())))
            .map(str::to_owned)
            .collect();
        let private_chars = template.chars().filter(is_private).collect();
        Self { controls, first_chars, tags, private_chars }
    }

    /// A character that is in neither the template nor `values`.
    ///
    /// # Errors
    /// [`TextError::Messages`] when they hold every private-use character there is.
    pub(super) fn choose(&self, values: &[&Value]) -> Result<char, TextError> {
        let mut taken = self.private_chars.clone();
        for value in values {
            each_string(value, &mut |text| taken.extend(text.chars().filter(is_private)));
        }
        ('\u{e000}'..='\u{10fffd}')
            .find(|character| is_private(character) && !taken.contains(character))
            .ok_or(TextError::Messages("hold every private-use character of Unicode; leave one out"))
    }

    /// `value` with a guard in every string and key that needs one.
    pub(super) fn apply(&self, value: &Value, guard: char) -> Value {
        match value {
            Value::String(text) => Value::String(self.apply_to(text, guard)),
            Value::Array(items) => items.iter().map(|item| self.apply(item, guard)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(key, item)| (self.apply_to(key, guard), self.apply(item, guard)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn apply_to(&self, text: &str, guard: char) -> String {
        let trimmed_bytes = text.trim_end().len();
        let mut guarded = String::with_capacity(text.len() + 8);
        for (at, character) in text.char_indices() {
            guarded.push(character);
            if self.first_chars.contains(&character) && self.needs_guard(&text[at..], trimmed_bytes.saturating_sub(at))
            {
                guarded.push(guard);
            }
        }
        guarded
    }

    /// Whether the start of `rest` must be kept from being a control token; `trimmed_bytes` of it are left once the
    /// spaces at the string's end are gone.
    fn needs_guard(&self, rest: &str, trimmed_bytes: usize) -> bool {
        let shared = self.longest_shared_prefix(rest);
        if shared == 0 {
            return false;
        }
        if shared >= trimmed_bytes {
            return true;
        }
        let first_bytes = rest.chars().next().map_or(0, char::len_utf8);
        shared > first_bytes && !self.is_tag_of_template(rest)
    }

    /// Bytes that `rest` and some control token have in common at their beginning.
    fn longest_shared_prefix(&self, rest: &str) -> usize {
        let at = self.controls.partition_point(|control| control.as_str() < rest);
        // In sorted order the text with the longest common prefix is a neighbour.
        [at.checked_sub(1), Some(at)]
            .into_iter()
            .flatten()
            .filter_map(|idx| self.controls.get(idx))
            .map(|control| {
                let pairs = rest.chars().zip(control.chars());
                pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
            })
            .max()
            .unwrap_or(0)
    }

    fn is_tag_of_template(&self, rest: &str) -> bool {
        tag(rest).is_some_and(|tag| self.tags.contains(tag))
    }
}

fn is_private(character: &char) -> bool {
    matches!(character, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{ffffd}' | '\u{100000}'..='\u{10fffd}')
}

/// `<tag>` at the start of `rest`: up to its first `>`, if that is near.
fn tag(rest: &str) -> Option<&str> {
    let end = rest.bytes().take(MAX_TAG_BYTES).position(|byte| byte == b'>')?;
    Some(&rest[..=end])
}

fn each_string(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| each_string(item, visit)),
        Value::Object(fields) => {
            for (key, item) in fields {
                visit(key);
                each_string(item, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
