//! Who waits for which confirm: plain data, so that the rule about returned messages can be read and tested alone.

use std::collections::HashMap;

use contract::{Published, Wake};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A slice to publish.
pub(super) struct Request {
    /// Queue names and wake-ups.
    pub(super) wakes: Vec<(String, Wake)>,
    /// When it is answered at the latest.
    pub(super) deadline: Instant,
    /// Where the answers go, one per wake-up. Closed when nobody waits any more.
    pub(super) reply: oneshot::Sender<Vec<Published>>,
}

impl Request {
    /// Nobody knows about any of it.
    pub(super) fn refuse(self) {
        let n_wakes = self.wakes.len();
        answer(self.reply, vec![Published::Unknown; n_wakes]);
    }
}

/// One wake-up of one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    slice: u64,
    idx: usize,
}

struct Slice {
    wakes: Vec<(String, Wake)>,
    answers: Vec<Option<Published>>,
    n_open: usize,
    deadline: Instant,
    reply: oneshot::Sender<Vec<Published>>,
}

/// The slices that wait.
#[derive(Default)]
pub(super) struct Book {
    slices: HashMap<u64, Slice>,
    next: u64,
}

impl Book {
    /// Enters a slice; answers its places with what goes there.
    pub(super) fn enter(&mut self, request: Request) -> Vec<(Place, String, Wake)> {
        let slice = self.next;
        self.next += 1;
        let place = |(idx, (queue, wake)): (usize, &(String, Wake))| (Place { slice, idx }, queue.clone(), *wake);
        let places = request.wakes.iter().enumerate().map(place).collect();
        let n_open = request.wakes.len();
        let Request { wakes, deadline, reply } = request;
        self.slices.insert(slice, Slice { wakes, answers: vec![None; n_open], n_open, deadline, reply });
        places
    }

    /// An answer. The first one stays.
    pub(super) fn settle(&mut self, place: Place, published: Published) {
        let Some(slice) = self.slices.get_mut(&place.slice) else { return };
        if let Some(answer @ None) = slice.answers.get_mut(place.idx) {
            *answer = Some(published);
            slice.n_open -= 1;
        }
    }

    /// A message came back, so no queue has it, whatever its confirm said: every unanswered publish of this wake-up is
    /// unknown, also one whose confirm was seen already.
    pub(super) fn returned(&mut self, wake: Wake) {
        for slice in self.slices.values_mut() {
            for ((_, own), answer) in slice.wakes.iter().zip(&mut slice.answers) {
                if *own == wake {
                    slice.n_open -= usize::from(answer.is_none());
                    *answer = Some(Published::Unknown);
                }
            }
        }
    }

    /// Answers the slices that are complete.
    pub(super) fn answer_complete(&mut self) {
        self.answer_those(|slice| slice.n_open == 0);
    }

    /// Answers the slices whose time is up, with what is known; returns the queues whose confirms are missing.
    pub(super) fn answer_late(&mut self, now: Instant) -> Vec<String> {
        let late = |slice: &Slice| slice.deadline <= now;
        let missing = |slice: &Slice| {
            let open = slice.wakes.iter().zip(&slice.answers).filter(|(_, answer)| answer.is_none());
            open.map(|((queue, _), _)| queue.clone()).collect::<Vec<_>>()
        };
        let mut queues: Vec<String> = self.slices.values().filter(|slice| late(slice)).flat_map(missing).collect();
        queues.sort_unstable();
        queues.dedup();
        self.answer_those(late);
        queues
    }

    /// Answers all: what has no confirm yet is unknown.
    pub(super) fn answer_all(&mut self) {
        self.answer_those(|_| true);
    }

    /// When the next slice is late.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.slices.values().map(|slice| slice.deadline).min()
    }

    fn answer_those(&mut self, which: impl Fn(&Slice) -> bool) {
        for (_, slice) in self.slices.extract_if(|_, slice| which(slice)) {
            let answers = slice.answers.into_iter().map(|answer| answer.unwrap_or(Published::Unknown)).collect();
            answer(slice.reply, answers);
        }
    }
}

fn answer(reply: oneshot::Sender<Vec<Published>>, answers: Vec<Published>) {
    // A caller that went away needs no answer: its rows become due again by themselves.
    let _nobody_waits = reply.send(answers);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract::JobId;

    use super::*;

    type Answers = oneshot::Receiver<Vec<Published>>;

    fn wake() -> Wake {
        Wake { job: JobId::new(), attempt: 0 }
    }

    fn enter(book: &mut Book, wakes: &[Wake], deadline: Instant) -> (Vec<Place>, Answers) {
        let (reply, answers) = oneshot::channel();
        let wakes = wakes.iter().map(|wake| ("q".to_owned(), *wake)).collect();
        let places = book.enter(Request { wakes, deadline, reply });
        (places.into_iter().map(|(place, ..)| place).collect(), answers)
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn answers_stand_at_their_places_whatever_order_they_come_in() {
        let mut book = Book::default();
        let (places, mut answers) = enter(&mut book, &[wake(), wake(), wake()], far());
        book.settle(places[2], Published::Full);
        book.settle(places[0], Published::Confirmed);
        book.answer_complete();
        assert!(answers.try_recv().is_err());
        book.settle(places[1], Published::Unknown);
        book.answer_complete();
        assert_eq!(answers.try_recv().unwrap(), [Published::Confirmed, Published::Unknown, Published::Full]);
        assert_eq!(book.next_deadline(), None);
    }

    #[test]
    fn a_returned_message_is_unknown_although_its_confirm_said_otherwise() {
        let mut book = Book::default();
        let lost = wake();
        let (places, mut answers) = enter(&mut book, &[wake(), lost], far());
        let (others, mut other_answers) = enter(&mut book, &[wake()], far());
        book.settle(places[1], Published::Confirmed);
        book.settle(places[0], Published::Confirmed);
        // Another slice's confirm carried it.
        book.returned(lost);
        book.settle(others[0], Published::Confirmed);
        book.answer_complete();
        assert_eq!(answers.try_recv().unwrap(), [Published::Confirmed, Published::Unknown]);
        assert_eq!(other_answers.try_recv().unwrap(), [Published::Confirmed]);
    }

    #[test]
    fn a_return_before_the_confirm_counts_once() {
        let mut book = Book::default();
        let lost = wake();
        let (places, mut answers) = enter(&mut book, &[lost, wake()], far());
        book.returned(lost);
        book.settle(places[0], Published::Confirmed);
        book.answer_complete();
        assert!(answers.try_recv().is_err());
        book.settle(places[1], Published::Confirmed);
        book.answer_complete();
        assert_eq!(answers.try_recv().unwrap(), [Published::Unknown, Published::Confirmed]);
    }

    #[test]
    fn late_slices_get_what_is_known() {
        let mut book = Book::default();
        let now = Instant::now();
        let (places, mut late) = enter(&mut book, &[wake(), wake()], now);
        let (_, mut in_time) = enter(&mut book, &[wake()], now + Duration::from_millis(1));
        book.settle(places[0], Published::Confirmed);
        assert_eq!(book.next_deadline(), Some(now));
        assert_eq!(book.answer_late(now), ["q"]);
        assert_eq!(late.try_recv().unwrap(), [Published::Confirmed, Published::Unknown]);
        assert!(in_time.try_recv().is_err());
        // A confirm that comes after all changes nothing.
        book.settle(places[1], Published::Confirmed);
        book.answer_all();
        assert_eq!(in_time.try_recv().unwrap(), [Published::Unknown]);
    }
}
