//! The byte-level alphabet of GPT-2: a printable character for each of the 256 bytes.

use std::{collections::HashMap, sync::LazyLock};

/// Byte of each character of the alphabet.
static BYTE_OF: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 0;
    (0..=u8::MAX)
        .map(|byte| {
            if printable(&byte) {
                return (char::from(byte), byte);
            }
            // The other 68 bytes take the characters from U+0100 on, in order.
            let stand_in = char::from_u32(0x100 + shifted).expect("U+0100 to U+0143 are characters");
            shifted += 1;
            (stand_in, byte)
        })
        .collect()
});

/// The bytes that a byte-level token stands for; `None` when a character is outside the alphabet.
pub(super) fn byte_level(token: &str) -> Option<Vec<u8>> {
    token.chars().map(|character| BYTE_OF.get(&character).copied()).collect()
}

/// The character that stands for each byte.
pub(super) fn alphabet() -> impl Iterator<Item = (u8, char)> {
    BYTE_OF.iter().map(|(character, byte)| (*byte, *character))
}

/// The byte of a `<0xHH>` token.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` would take a sign.
    let digits = hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{BYTE_OF, byte_level, byte_token};

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        assert_eq!(BYTE_OF.len(), 256);
        // "Ġ" is the space, "Ċ" the newline, as every byte-level vocabulary shows.
        assert_eq!(byte_level("ĠaĊ").unwrap(), b" a\n");
        assert_eq!(byte_level("ðŁĺĢ").unwrap(), "😀".as_bytes());
        assert_eq!(byte_level("▁"), None);
    }

    #[test]
    fn byte_tokens_parse_strictly() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for wrong in ["<0xA>", "<0x0AA>", "<0x+1>", "0x0A", "<0xGG>"] {
            assert_eq!(byte_token(wrong), None, "{wrong}");
        }
    }
}
