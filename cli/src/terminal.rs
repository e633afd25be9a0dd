//! What people and scripts see: data on stdout, everything else on stderr.

use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::Context;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Writes data to stdout. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// When stdout cannot be written for another reason, such as a full disk.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("could not write to the standard output"),
    }
}

/// An error with its causes, less those that the text before says already: some libraries put a cause into both.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

/// Writes one indented JSON document to stdout.
///
/// # Errors
/// As [`print()`].
pub fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// A plain table: columns two spaces apart, no rules, as wide as its contents, so that `awk` and `grep` can read it.
pub fn table<R: IntoIterator<Item = String>>(header: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Says something to the person who watches.
pub fn say(line: &str) {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether a person watches stderr, so that a moving progress display makes sense.
pub fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// Bytes as people read them: `491.4 MB`.
pub fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_says_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("the store cannot be opened: no route")]
        struct Whole(#[source] std::io::Error);
        let error = anyhow::Error::new(Whole(std::io::Error::other("no route"))).context("the api could not start");
        assert_eq!(chain(error.as_ref()), "the api could not start: the store cannot be opened: no route");
        let error = anyhow::anyhow!("no route").context("the queue is away");
        assert_eq!(chain(error.as_ref()), "the queue is away: no route");
    }

    #[test]
    fn tables_are_plain_columns() {
        let rows = [["a".to_owned(), "bb".to_owned()], ["cccc".to_owned(), String::new()]];
        assert_eq!(table(&["X", "Y"], rows), "X     Y\na     bb\ncccc\n");
    }

    #[test]
    fn bytes_have_a_fitting_unit() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500), "1.5 kB");
        assert_eq!(bytes(491_400_064), "491.4 MB");
        assert_eq!(bytes(2_000_000_000), "2.00 GB");
    }
}
