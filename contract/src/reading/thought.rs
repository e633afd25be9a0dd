//! Thoughts at the beginning of an answer.

use super::ThoughtSyntax;

const BEGIN: &str = "<think>";
const END: &str = "</think>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before everything: white space, or the beginning of [`BEGIN`].
    Before,
    /// Behind [`BEGIN`], where line breaks are not shown.
    Opened,
    Thinking,
    /// Behind [`END`], where line breaks are not shown.
    Closed,
    Message,
}

/// Tells an answer's thoughts from its message. The line breaks next to the marks belong to the marks.
#[derive(Debug, Clone)]
pub(super) struct ThoughtReader {
    state: State,
    /// Of what is not decided yet: line breaks and the beginning of a mark.
    held: String,
}

impl ThoughtReader {
    pub(super) fn new(syntax: ThoughtSyntax) -> Self {
        let state = match syntax {
            ThoughtSyntax::Tagged => State::Before,
            ThoughtSyntax::Open => State::Opened,
        };
        Self { state, held: String::new() }
    }

    pub(super) fn push(&mut self, text: &str, thoughts: &mut String, message: &mut String) {
        for c in text.chars() {
            self.step(c, thoughts, message);
        }
    }

    pub(super) fn finish(self, thoughts: &mut String, message: &mut String) {
        match self.state {
            State::Opened | State::Thinking => thoughts.push_str(&self.held),
            State::Before | State::Closed | State::Message => message.push_str(&self.held),
        }
    }

    fn step(&mut self, c: char, thoughts: &mut String, message: &mut String) {
        match self.state {
            State::Before => {
                self.held.push(c);
                let seen = self.held.trim_start();
                if seen == BEGIN {
                    self.held.clear();
                    self.state = State::Opened;
                } else if !BEGIN.starts_with(seen) {
                    self.state = State::Message;
                    message.push_str(&std::mem::take(&mut self.held));
                }
            }
            State::Opened if c == '\n' => {}
            State::Opened | State::Thinking => {
                self.state = State::Thinking;
                self.think(c, thoughts);
            }
            State::Closed if c == '\n' => {}
            State::Closed | State::Message => {
                self.state = State::Message;
                message.push(c);
            }
        }
    }

    fn think(&mut self, c: char, thoughts: &mut String) {
        self.held.push(c);
        let seen = self.held.trim_start_matches('\n');
        if seen == END {
            self.held.clear();
            self.state = State::Closed;
        } else if !END.starts_with(seen) {
            // Only the first character of the mark can begin it anew, or a line break before it.
            self.held.pop();
            thoughts.push_str(&std::mem::take(&mut self.held));
            match c {
                '\n' | '<' => self.held.push(c),
                _ => thoughts.push(c),
            }
        }
    }
}
