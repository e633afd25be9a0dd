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
