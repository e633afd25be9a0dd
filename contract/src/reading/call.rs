//! Calls in an answer's message.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;
use serde_json::value::RawValue;

use super::scan::{Scan, Scanner};
use super::{CallSyntax, FoundCall, Piece};
use crate::openai::json;

/// What ends a call in Hermes' way.
const HERMES_END: &str = "</tool_call>";

#[derive(Debug, Clone)]
enum State {
    /// In text, where a call may begin. `held` has the beginning of the mark.
    Text,
    /// In what may be a call. `held` has all of it, its mark included.
    Call { scanner: Scanner, scan: Scan },
    /// No call can follow.
    Plain,
}

/// Tells calls from the rest of a message. White space next to calls belongs to them.
#[derive(Debug, Clone)]
pub(super) struct CallReader {
    syntax: CallSyntax,
    names: Vec<String>,
    state: State,
    /// White space that is dropped if a call follows.
    gap: String,
    held: String,
    /// Characters to read before any others: what turned out to be no call is read again behind its mark.
    again: VecDeque<char>,
    has_called: bool,
    /// Nothing but white space came since a call.
    is_behind_call: bool,
    /// A semicolon came behind a call, in Llama's way.
    separated: bool,
}

impl CallReader {
    pub(super) fn new(syntax: CallSyntax, names: Vec<String>) -> Self {
        Self {
            syntax,
            names,
            state: State::Text,
            gap: String::new(),
            held: String::new(),
            again: VecDeque::new(),
            has_called: false,
            is_behind_call: false,
            separated: false,
        }
    }

    pub(super) fn push(&mut self, text: &str, piece: &mut Piece) {
        for c in text.chars() {
            self.again.push_back(c);
            self.read(piece);
        }
    }

    pub(super) fn finish(mut self, piece: &mut Piece) {
        while let State::Call { scan, .. } = self.state {
            // The end of the text closes a call whose JSON is whole.
            let taken = if scan == Scan::Complete { self.calls() } else { None };
            match taken {
                Some(calls) => self.take_calls(calls, piece),
                None => {
                    self.give_up(piece);
                    self.read(piece);
                }
            }
        }
        if !self.is_behind_call || self.separated || !self.held.is_empty() {
            piece.content.push_str(&self.gap);
        }
        piece.content.push_str(&self.held);
    }

    fn read(&mut self, piece: &mut Piece) {
        while let Some(c) = self.again.pop_front() {
            match &mut self.state {
                State::Plain => piece.content.push(c),
                State::Text => self.in_text(c, piece),
                State::Call { .. } => self.in_call(c, piece),
            }
        }
    }

    fn in_text(&mut self, c: char, piece: &mut Piece) {
        let marker = self.syntax.marker();
        if self.held.is_empty() && c.is_whitespace() {
            self.gap.push(c);
            return;
        }
        if self.syntax == CallSyntax::Llama && self.held.is_empty() {
            if c == ';' && self.has_called && !self.separated {
                self.separated = true;
                self.gap.push(c);
                return;
            }
            if c == '{' && (!self.has_called || self.separated) {
                return self.open(c);
            }
        }
        self.held.push(c);
        if self.held == marker {
            let mark = std::mem::take(&mut self.held);
            return self.open_with(mark);
        }
        if marker.starts_with(&self.held) && self.may_begin() {
            return;
        }
        // Only its first character can begin the mark anew.
        self.held.pop();
        self.flush(piece);
        if self.syntax == CallSyntax::Llama {
            // Text came first.
            self.state = State::Plain;
            piece.content.push(c);
        } else if c.is_whitespace() {
            self.gap.push(c);
        } else if marker.starts_with(c) {
            self.held.push(c);
        } else {
            piece.content.push(c);
        }
    }

    /// Whether a call may begin here: in Llama's way only where the answer begins.
    fn may_begin(&self) -> bool {
        self.syntax != CallSyntax::Llama || !self.has_called
    }

    fn open(&mut self, first: char) {
        self.open_with(String::new());
        self.again.push_front(first);
    }

    fn open_with(&mut self, mark: String) {
        self.held = mark;
        self.state = State::Call { scanner: Scanner::new(), scan: Scan::More };
    }

    fn in_call(&mut self, c: char, piece: &mut Piece) {
        let State::Call { scanner, scan } = &mut self.state else { return };
        self.held.push(c);
        if *scan == Scan::Complete {
            // Only Hermes' way has something behind the JSON.
            let seen = match self.held.rfind(['}', ']']) {
                Some(at) => self.held[at + 1..].trim_start(),
                None => "",
            };
            if seen == HERMES_END {
                return self.close(piece);
            }
            if !HERMES_END.starts_with(seen) {
                self.give_up(piece);
            }
            return;
        }
        *scan = scanner.push(c);
        match (*scan, self.syntax) {
            (Scan::More, _) | (Scan::Complete, CallSyntax::Hermes) => {}
            (Scan::Complete, CallSyntax::Llama | CallSyntax::Mistral) => self.close(piece),
            (Scan::Dead, _) => self.give_up(piece),
        }
    }

    fn close(&mut self, piece: &mut Piece) {
        match self.calls() {
            Some(calls) => self.take_calls(calls, piece),
            None => self.give_up(piece),
        }
    }

    fn take_calls(&mut self, calls: Vec<FoundCall>, piece: &mut Piece) {
        piece.calls.extend(calls);
        self.gap.clear();
        self.held.clear();
        (self.has_called, self.is_behind_call) = (true, true);
        self.separated = false;
        self.state = State::Text;
    }

    /// What was held is no call: its mark is content, and what came behind it is read again.
    fn give_up(&mut self, piece: &mut Piece) {
        let held = std::mem::take(&mut self.held);
        let (mark, rest) = match held.strip_prefix(self.syntax.marker()) {
            Some(rest) => (self.syntax.marker(), rest),
            None => ("", held.as_str()),
        };
        self.flush(piece);
        piece.content.push_str(mark);
        for c in rest.chars().rev() {
            self.again.push_front(c);
        }
        self.state = if self.syntax == CallSyntax::Llama { State::Plain } else { State::Text };
    }

    /// Gives out what was held back.
    fn flush(&mut self, piece: &mut Piece) {
        piece.content.push_str(&std::mem::take(&mut self.gap));
        piece.content.push_str(&std::mem::take(&mut self.held));
        (self.is_behind_call, self.separated) = (false, false);
    }

    /// The calls in what is held, if it is nothing else.
    fn calls(&self) -> Option<Vec<FoundCall>> {
        let text = self.held.strip_prefix(self.syntax.marker()).unwrap_or(&self.held);
        match self.syntax {
            CallSyntax::Hermes => {
                let end = text.rfind('}')?;
                Some(vec![self.call(&text[..=end])?])
            }
            CallSyntax::Llama => Some(vec![self.call(text)?]),
            CallSyntax::Mistral => {
                let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                let calls: Option<Vec<FoundCall>> = items.iter().map(|item| self.call(item.get())).collect();
                calls.filter(|calls| !calls.is_empty())
            }
        }
    }

    /// A call written as a JSON object.
    fn call(&self, text: &str) -> Option<FoundCall> {
        // Strict, as what comes back with the next request is: no key twice, no number out of range.
        let value = json::parse(text.as_bytes()).ok()?;
        let fields = value.as_object()?;
        let is_known = |(key, value): (&String, &Value)| match key.as_str() {
            "name" | "arguments" | "parameters" => true,
            "type" => value == "function",
            "id" => value.is_string(),
            _ => false,
        };
        let name = fields.get("name")?.as_str()?;
        if !self.names.iter().any(|known| known == name) || !fields.iter().all(is_known) {
            return None;
        }
        let key = match (fields.get("arguments"), fields.get("parameters")) {
            (Some(_), Some(_)) => return None,
            (Some(_), None) => "arguments",
            (None, Some(_)) => "parameters",
            (None, None) => return Some(FoundCall { name: name.to_owned(), arguments: "{}".to_owned() }),
        };
        let arguments = match &fields[key] {
            Value::Object(_) => {
                let raw: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
                raw.get(key)?.get().to_owned()
            }
            // Some models write the object as a text.
            Value::String(inner) => {
                json::parse(inner.as_bytes()).ok().filter(Value::is_object)?;
                inner.clone()
            }
            _ => return None,
        };
        Some(FoundCall { name: name.to_owned(), arguments })
    }
}
