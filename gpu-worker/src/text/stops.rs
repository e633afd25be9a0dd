//! Finding stop strings in text that arrives in pieces.

/// A stop string that ended a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopHit {
    /// Place of the stop string in the request's list.
    pub which: usize,
}

/// Looks for several strings at once, a byte at a time: what is found does not depend on how the text was cut.
/// Knuth, Morris and Pratt's automaton for each string, so a byte costs a few steps however the text repeats.
#[derive(Debug)]
pub(super) struct StopMatcher {
    stops: Vec<Stop>,
}

#[derive(Debug)]
struct Stop {
    which: usize,
    bytes: Vec<u8>,
    /// For each length, the longest proper border of the prefix of that length.
    borders: Vec<usize>,
    /// How many bytes of the string the text ends with.
    matched: usize,
}

impl StopMatcher {
    /// Empty strings match nothing.
    pub(super) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        Self { stops: stops.map(|(which, stop)| Stop::new(which, stop.as_bytes())).collect() }
    }

    /// Takes one byte. On a match, the stop string and its length in bytes; of several that end here, the one that
    /// began first.
    pub(super) fn push(&mut self, byte: u8) -> Option<(StopHit, usize)> {
        let mut hit: Option<(StopHit, usize)> = None;
        for stop in &mut self.stops {
            stop.push(byte);
            if stop.matched == stop.bytes.len() && hit.is_none_or(|(_, length)| stop.matched > length) {
                hit = Some((StopHit { which: stop.which }, stop.matched));
            }
        }
        hit
    }

    /// Length in bytes of the longest end of the text that may yet become a stop string.
    pub(super) fn held_bytes(&self) -> usize {
        self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0)
    }

    /// Forgets the text so far.
    pub(super) fn reset(&mut self) {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
    }
}

impl Stop {
    fn new(which: usize, bytes: &[u8]) -> Self {
        let mut borders = vec![0; bytes.len() + 1];
        let mut border = 0;
        for length in 2..=bytes.len() {
            while border > 0 && bytes[border] != bytes[length - 1] {
                border = borders[border];
            }
            border += usize::from(bytes[border] == bytes[length - 1]);
            borders[length] = border;
        }
        Self { which, bytes: bytes.to_vec(), borders, matched: 0 }
    }

    fn push(&mut self, byte: u8) {
        if self.matched == self.bytes.len() {
            self.matched = self.borders[self.matched];
        }
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
    }
}
