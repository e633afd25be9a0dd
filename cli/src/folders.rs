//! The user's folders, by the XDG base directory rules: a variable counts only when it holds an absolute path.

use std::path::PathBuf;

/// Where downloaded models are kept: `$PENSTOCK_CACHE`, else `$XDG_CACHE_HOME/penstock`, else `~/.cache/penstock`.
pub fn cache() -> PathBuf {
    // Ours may be relative: whoever sets it means this process.
    match std::env::var_os("PENSTOCK_CACHE").filter(|value| !value.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => under("XDG_CACHE_HOME", ".cache"),
    }
}

/// Where a server keeps its jobs unless told otherwise: `$XDG_DATA_HOME/penstock`, else `~/.local/share/penstock`.
pub fn data() -> PathBuf {
    under("XDG_DATA_HOME", ".local/share")
}

/// Where the user's settings file lies: `$XDG_CONFIG_HOME/penstock`, else `~/.config/penstock`.
pub fn config() -> PathBuf {
    under("XDG_CONFIG_HOME", ".config")
}

fn under(variable: &str, below_home: &str) -> PathBuf {
    let base = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    // An account without a home folder (some containers) keeps things where it was started.
    let home = || std::env::home_dir().unwrap_or_else(|| PathBuf::from(".")).join(below_home);
    base.unwrap_or_else(home).join("penstock")
}
