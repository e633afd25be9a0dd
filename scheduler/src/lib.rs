//! Placeholder line, replaced by the room's own text.
