//! `sqlx::migrate!` embeds the migrations; cargo has to look at their folder to notice a new one.

fn main() {
    println!("cargo:rerun-if-changed=../migrations/sqlite");
}
