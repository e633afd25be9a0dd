//! Which crate may know which, where `unsafe` may stand, and what no source may name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::repository;

/// Who may depend on whom: a room, the rooms it is built on, and those that only its tests use. A new edge is decided
/// here first.
const EDGES: &[(&str, &[&str], &[&str])] = &[
    ("contract", &[], &[]),
    ("kernels", &[], &[]),
    ("backends", &["contract"], &[]),
    ("api", &["contract"], &["backends"]),
    ("scheduler", &["contract"], &["backends"]),
    ("gpu-worker", &["contract", "kernels"], &["backends"]),
    ("cli", &["api", "backends", "contract", "gpu-worker", "kernels", "scheduler"], &[]),
    // The whole system is tested as a process: no room's types can stand in for its behaviour.
    ("tests", &[], &[]),
];

/// Crates with a home: nothing else is built on them.
const HOMES: &[(&str, &[&str])] = &[
    // In cli for the receiver that tries webhooks out.
    ("axum", &["api", "cli"]),
    ("hyper", &["api"]),
    // Tests look into the database past the product.
    ("sqlx", &["backends", "tests"]),
    ("lapin", &["backends"]),
    ("redis", &["backends"]),
    ("candle-core", &["gpu-worker", "kernels"]),
    ("tokenizers", &["gpu-worker"]),
    ("minijinja", &["gpu-worker"]),
    ("llguidance", &["gpu-worker"]),
    ("clap", &["cli"]),
    ("anyhow", &["cli"]),
    ("figment", &["cli"]),
    // In backends for its features alone: object_store's client takes the TLS of the rest.
    ("reqwest", &["backends", "cli", "scheduler", "tests"]),
];

/// Kernels compute on tensors and know nothing else.
const KERNELS_KNOW: &[&str] = &["candle-core", "half", "thiserror"];

/// No I/O and no runtime in the contract.
const CONTRACT_AVOIDS: &[&str] = &["tokio", "tokio-util", "object_store", "tracing", "rustls"];

/// One line of a `[dependencies]` or `[dev-dependencies]` table.
struct Dependency {
    of: String,
    on: String,
    for_tests: bool,
}

fn dependencies() -> Vec<Dependency> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline", "--locked"])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    let text = |value: &Value| value.as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let lines = packages.iter().flat_map(|package| {
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        dependencies.iter().map(|dependency| Dependency {
            of: text(&package["name"]),
            on: text(&dependency["name"]),
            for_tests: dependency["kind"] == "dev",
        })
    });
    lines.collect()
}

#[test]
fn rooms_know_only_the_rooms_they_may() {
    let rooms: BTreeSet<&str> = EDGES.iter().map(|(room, ..)| *room).collect();
    let mut wrong = Vec::new();
    for Dependency { of, on, for_tests } in dependencies() {
        let (_, built_on, tested_with) =
            EDGES.iter().find(|(room, ..)| *room == of).unwrap_or_else(|| panic!("{of} is not in the table of edges"));
        let allowed = built_on.contains(&on.as_str()) || (for_tests && tested_with.contains(&on.as_str()));
        if rooms.contains(on.as_str()) && !allowed {
            wrong.push(format!("{of} -> {on}{}", if for_tests { " (tests)" } else { "" }));
        }
    }
    assert!(wrong.is_empty(), "edges that are not allowed: {wrong:?}");
}

#[test]
fn crates_from_outside_stay_in_their_rooms() {
    let mut wrong = Vec::new();
    for Dependency { of, on, .. } in dependencies().into_iter().filter(|dependency| !dependency.for_tests) {
        let away = HOMES.iter().any(|(name, homes)| *name == on && !homes.contains(&of.as_str()));
        let unknown_to_kernels = of == "kernels" && !KERNELS_KNOW.contains(&on.as_str());
        let not_for_contract = of == "contract" && CONTRACT_AVOIDS.contains(&on.as_str());
        if away || unknown_to_kernels || not_for_contract {
            wrong.push(format!("{of} -> {on}"));
        }
    }
    assert!(wrong.is_empty(), "edges that are not allowed: {wrong:?}");
}

#[test]
fn only_kernels_hold_unsafe_code() {
    let mut wrong = Vec::new();
    for path in sources(|name| name.ends_with(".rs")) {
        if path.starts_with("kernels/src") {
            continue;
        }
        let code = code_of(&read(&path));
        let lines = code.lines().enumerate().filter(|(_, line)| words(line).any(|word| word == "unsafe"));
        wrong.extend(lines.map(|(nth, _)| format!("{}:{}", path.display(), nth + 1)));
    }
    assert!(wrong.is_empty(), "unsafe outside kernels/src: {wrong:?}");
}

/// A clone stands alone: nothing in it leads to a folder beside it, or to one machine's own.
#[test]
fn no_source_names_a_folder_outside_the_repository() {
    let foreign = [["shared", "/"].concat(), ["/work", "/"].concat(), ["/root", "/"].concat(), ["/home", "/"].concat()];
    let mut wrong = Vec::new();
    for path in sources(|_| true) {
        let Ok(text) = std::fs::read_to_string(repository().join(&path)) else { continue };
        for (nth, line) in text.lines().enumerate() {
            let named = |folder: &String| {
                let before = line.split(folder.as_str()).next().and_then(|before| before.chars().next_back());
                line.contains(folder.as_str()) && !before.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c))
            };
            if foreign.iter().any(named) {
                wrong.push(format!("{}:{}", path.display(), nth + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "folders outside the repository: {wrong:?}");
}

#[test]
fn comments_and_strings_are_not_code() {
    let source = r###"
        // unsafe
        /* unsafe /* unsafe */ unsafe */ let a = "unsafe \" unsafe"; let b = r#"unsafe " unsafe"#;
        let c = b"unsafe"; let d = '"'; let e: &'static str = "unsafe"; let f = '\''; unsafe {}
    "###;
    let code = code_of(source);
    assert_eq!(code.matches("unsafe").count(), 1, "{code}");
    assert!(code.contains("'static str") && code.ends_with("unsafe {}\n    "), "{code}");
    assert_eq!(code.lines().count(), source.lines().count());
}

/// Every file of the repository whose name `wanted` holds for, by its path from the root, sorted.
fn sources(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let root = repository();
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository can be read") {
            let entry = entry.expect("a folder of the repository can be read");
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().expect("a file has a type");
            let made = ["target", ".git", "__pycache__", ".venv"].contains(&name.as_str());
            if kind.is_dir() && !made {
                folders.push(path);
            } else if kind.is_file() && wanted(&name) {
                found.push(path.strip_prefix(&root).expect("it lies below the root").to_owned());
            }
        }
    }
    found.sort();
    assert!(found.len() > 50, "the repository's sources are found");
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

/// Rust source without its comments and the content of its literals; line breaks stay.
fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment_bytes(rest)
        } else if first == '"' {
            string_bytes(rest)
        } else if first == '\'' {
            character_bytes(rest)
        } else if first == 'r' && !code.ends_with(|c: char| c.is_alphanumeric() && c != 'b' || c == '_') {
            raw_string_bytes(rest)
        } else {
            0
        };
        let taken = if skipped == 0 { first.len_utf8() } else { skipped };
        if skipped == 0 {
            code.push(first);
        } else {
            code.push(' ');
            code.extend(rest[..taken].chars().filter(|c| *c == '\n'));
        }
        rest = &rest[taken..];
    }
    code
}

/// Length of a comment that may hold others.
fn block_comment_bytes(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Length of a string with escapes, quotes included.
fn string_bytes(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a character literal, 0 for a lifetime.
fn character_bytes(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        // The character after the backslash may itself be a quote.
        Some((_, '\\')) => text[3..].find('\'').map_or(text.len(), |at| 3 + at + 1),
        _ => chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
    }
}

/// Length of a raw string, 0 for anything else that begins with `r`.
fn raw_string_bytes(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    if text.as_bytes().get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let start = 2 + hashes;
    text[start..].find(&end).map_or(text.len(), |at| start + at + end.len())
}
