//! One streamed request to an OpenAI-compatible server, and what its client sees when.

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::Value;

/// Why a request gave no whole answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// No connection came about.
    Connect,
    /// Nothing came for too long.
    Timeout,
    /// An error status, with the code of its envelope where it has one.
    Status(u16, String),
    /// The stream broke off or told of an error.
    Broken,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Connect => f.write_str("connect"),
            Failure::Timeout => f.write_str("timeout"),
            Failure::Status(status, code) if code.is_empty() => write!(f, "{status}"),
            Failure::Status(status, code) => write!(f, "{status} {code}"),
            Failure::Broken => f.write_str("broken stream"),
        }
    }
}

/// A whole answer.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Sent to the first text.
    pub first: Option<Duration>,
    /// Gaps between texts after the first.
    pub gaps: Vec<Duration>,
    /// Sent to the end.
    pub total: Duration,
    /// Output tokens: as the server counted them, else pieces of text.
    pub tokens: u64,
}

/// Sends `body`, which asks for a stream, and reads the answer to its end.
///
/// # Errors
/// [`Failure`].
pub async fn send(http: &reqwest::Client, url: &str, key: Option<&str>, body: &Value) -> Result<Answer, Failure> {
    let begin = Instant::now();
    let mut request = http.post(url).json(body);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.map_err(|error| of_error(&error))?;
    let status = response.status().as_u16();
    if status != 200 {
        let envelope: Value = response.json().await.unwrap_or_default();
        let code = envelope["error"]["code"].as_str().unwrap_or_default();
        return Err(Failure::Status(status, code.chars().take(40).collect()));
    }
    let mut reading = Reading { begin, last: begin, answer: Answer::default(), counted: None, ended: false };
    let mut bytes = response.bytes_stream();
    let mut buffer: Vec<u8> = Vec::new();
    while let Some(chunk) = bytes.next().await {
        buffer.extend_from_slice(&chunk.map_err(|error| of_error(&error))?);
        let now = Instant::now();
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            reading.line(&buffer[..end], now)?;
            buffer.drain(..=end);
        }
    }
    reading.finish()
}

fn of_error(error: &reqwest::Error) -> Failure {
    match error {
        error if error.is_timeout() => Failure::Timeout,
        error if error.is_connect() => Failure::Connect,
        _ => Failure::Broken,
    }
}

struct Reading {
    begin: Instant,
    last: Instant,
    answer: Answer,
    counted: Option<u64>,
    ended: bool,
}

impl Reading {
    /// Takes one line of the stream, which came at `now`.
    fn line(&mut self, line: &[u8], now: Instant) -> Result<(), Failure> {
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.ended = true;
            return Ok(());
        }
        let chunk: Value = serde_json::from_slice(data).map_err(|_| Failure::Broken)?;
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Failure::Broken);
        }
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            self.counted = Some(tokens);
        }
        let choice = &chunk["choices"][0];
        let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()).unwrap_or_default();
        // A chunk without text is a role, an end, or a character that is not complete.
        if !text.is_empty() {
            match self.answer.first {
                None => self.answer.first = Some(now - self.begin),
                Some(_) => self.answer.gaps.push(now - self.last),
            }
            self.last = now;
            self.answer.tokens += 1;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Answer, Failure> {
        if !self.ended {
            return Err(Failure::Broken);
        }
        self.answer.total = self.begin.elapsed();
        self.answer.tokens = self.counted.unwrap_or(self.answer.tokens);
        Ok(self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Result<Answer, Failure> {
        let begin = Instant::now();
        let mut reading = Reading { begin, last: begin, answer: Answer::default(), counted: None, ended: false };
        for (nth, line) in lines.iter().enumerate() {
            reading.line(line.as_bytes(), begin + Duration::from_millis(10 * (nth as u64 + 1)))?;
        }
        reading.finish()
    }

    #[test]
    fn texts_are_timed_and_counted() {
        let answer = read(&[
            r#"data: {"choices":[{"delta":{"role":"assistant"}}]}"#,
            r#"data: {"choices":[{"delta":{"content":"a"}}],"usage":null}"#,
            "",
            ": a comment",
            r#"data: {"choices":[{"delta":{"content":"b"}}]}"#,
            r#"data: {"choices":[],"usage":{"completion_tokens":5}}"#,
            "data: [DONE]",
        ])
        .unwrap();
        assert_eq!(answer.first, Some(Duration::from_millis(20)));
        assert_eq!((answer.gaps, answer.tokens), (vec![Duration::from_millis(30)], 5));
    }

    #[test]
    fn what_breaks_off_is_a_failure() {
        assert_eq!(read(&[r#"data: {"choices":[{"text":"a"}]}"#]).unwrap_err(), Failure::Broken);
        assert_eq!(read(&[r#"data: {"error":{"message":"x"}}"#]).unwrap_err(), Failure::Broken);
        assert_eq!(read(&["data: {nonsense"]).unwrap_err(), Failure::Broken);
    }
}
