//! The memory in which the kernel delivers a request and takes its answer.
//!
//! ```text
//!   0        128         256                    288   ...     4096
//!   │ header │ arguments │ ring: number, bytes │     message │ payload ...
//! ```
//!
//! The first three parts are the kernel's `struct fuse_uring_req_header`, which an answer reuses;
//! the payload has what does not fit there: names and data. A request is contiguous when its header
//! and arguments are copied to just before the payload.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a request's header.
const REQUEST_HEADER: usize = 40;
/// Where a request's header has the thread that made it.
const PROGRAM: usize = 32;
/// Bytes of an answer's header.
const ANSWER_HEADER: usize = 16;
/// Room for a header, and for arguments.
const PART: usize = 128;
/// Where the arguments of a request are.
const ARGUMENTS: usize = PART;
/// Where the ring's part begins.
const RING: usize = 2 * PART;
/// Within it: the number of the request.
const COMMIT_ID: usize = RING + 8;
/// Within it: bytes of the payload.
const PAYLOAD_LEN: usize = RING + 16;
/// Bytes of the three parts together.
const HEADERS: usize = RING + 32;
/// Where the payload begins: at a page.
const PAYLOAD: usize = 4096;

/// Zeroed pages of this process.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: whoever has it only reads the address.
#[expect(unsafe_code, reason = "a pointer is not sent by itself")]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer is not shared by itself")]
unsafe impl Sync for Mapping {}

impl Mapping {
    #[expect(unsafe_code, reason = "pages are mapped")]
    fn new(len: usize) -> std::io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses unused addresses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }?;
        // SAFETY: the pages that were just mapped. With huge ones, a request would take 2 MiB.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        let start = NonNull::new(start.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    #[expect(unsafe_code, reason = "pages are unmapped")]
    fn drop(&mut self) {
        // SAFETY: nothing refers to the pages any more: the parts of all slots hold the mapping,
        // and the ring holds a slot while the kernel has it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The pages of one slot: a part of a mapping that no other slot has.
#[derive(Debug)]
struct Pages {
    mapping: Arc<Mapping>,
    at: usize,
    len: usize,
}

#[expect(unsafe_code, reason = "pages are used through their address")]
impl Pages {
    fn start(&self) -> *mut u8 {
        // SAFETY: the part lies within the mapping.
        unsafe { self.mapping.start.as_ptr().add(self.at) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are mapped and initialized as long as the value lives, and nobody
        // writes to them meanwhile: the kernel only does so while the ring has the slot, which then
        // lends no reference.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the value is borrowed exclusively, and no other has these pages.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    /// Gives the memory back to the system; the pages are zero then.
    fn discard(&mut self) {
        let start = self.start().cast();
        // SAFETY: private pages, which no reference borrows: the value is borrowed exclusively. The
        // caller makes sure that the kernel has nothing in them.
        let _ = unsafe { madvise(start, self.len, Advice::LinuxDontNeed) };
    }
}

/// Room for one request of a connection, and for its answer.
#[derive(Debug)]
pub struct Slot {
    pages: Pages,
    /// Two pairs of address and length: of the headers, and of the payload. The kernel reads them
    /// when it gets the slot; boxed so that they do not move.
    places: Box<[usize; 4]>,
    channel: Arc<OwnedFd>,
    queue: u16,
    used: usize,
}

/// The lengths of a request.
struct Lengths {
    arguments: usize,
    payload: usize,
}

impl Slot {
    /// Returns slots of a connection, one for each entry of `queues`: the kernel has a queue for
    /// each processor. `payload` is the length of the longest request or answer, in whole pages of
    /// 4 KiB. The memory is only reserved until it is used.
    ///
    /// # Errors
    /// The system's error, if there are no addresses.
    pub fn for_queues(
        channel: &Arc<OwnedFd>,
        queues: &[u16],
        payload: usize,
    ) -> std::io::Result<Vec<Self>> {
        let len = PAYLOAD + payload;
        let mapping = Arc::new(Mapping::new(len * queues.len())?);
        let slot = |(number, queue): (usize, &u16)| {
            let pages = Pages { mapping: Arc::clone(&mapping), at: number * len, len };
            let start = pages.start() as usize;
            let places = Box::new([start, HEADERS, start + PAYLOAD, payload]);
            Self { pages, places, channel: Arc::clone(channel), queue: *queue, used: 0 }
        };
        Ok(queues.iter().enumerate().map(slot).collect())
    }

    /// Returns how many bytes of memory the slot takes at most.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Notes that the payload was used up to its present length.
    pub(crate) fn note_used(&mut self) {
        self.used = self.used.max((PAYLOAD + self.payload_len()).min(self.pages.len));
    }

    /// Gives the memory back to the system, with the request that it has.
    pub(crate) fn discard(&mut self) {
        self.pages.discard();
        self.used = 0;
    }

    /// Returns the connection's descriptor.
    #[must_use]
    pub fn channel(&self) -> &Arc<OwnedFd> {
        &self.channel
    }

    pub(crate) fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the address of the two pairs of address and length.
    pub(crate) fn places(&self) -> u64 {
        self.places.as_ptr() as u64
    }

    /// Returns the number by which the kernel knows the request.
    pub(crate) fn commit_id(&self) -> u64 {
        self.u64(COMMIT_ID)
    }

    /// Returns the number of the thread that made the request; 0 if this process cannot see it.
    #[must_use]
    pub fn program(&self) -> u32 {
        self.u32(PROGRAM)
    }

    /// Returns how many bytes of the request are in the payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.u32(PAYLOAD_LEN) as usize
    }

    fn u32(&self, at: usize) -> u32 {
        let bytes = self.pages.bytes().get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        let bytes = self.pages.bytes().get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }

    /// Returns the lengths of the request's parts; `None` if they contradict each other.
    fn lengths(&self) -> Option<Lengths> {
        let payload = self.payload_len();
        let arguments = (self.u32(0) as usize).checked_sub(REQUEST_HEADER)?.checked_sub(payload)?;
        (arguments <= PART && payload <= self.pages.len - PAYLOAD)
            .then_some(Lengths { arguments, payload })
    }

    /// Copies the request. Returns `None` if its lengths contradict each other.
    pub fn copy_request(&self, into: &mut Vec<u8>) -> Option<()> {
        let Lengths { arguments, payload } = self.lengths()?;
        let bytes = self.pages.bytes();
        into.extend_from_slice(bytes.get(..REQUEST_HEADER)?);
        into.extend_from_slice(bytes.get(ARGUMENTS..ARGUMENTS + arguments)?);
        into.extend_from_slice(bytes.get(PAYLOAD..PAYLOAD + payload)?);
        Some(())
    }

    /// Returns the request without copying its payload; `None` if its lengths contradict each
    /// other.
    pub fn request(&mut self) -> Option<&[u8]> {
        let Lengths { arguments, payload } = self.lengths()?;
        let start = PAYLOAD - REQUEST_HEADER - arguments;
        let bytes = self.pages.bytes_mut();
        bytes.copy_within(..REQUEST_HEADER, start);
        bytes.copy_within(ARGUMENTS..ARGUMENTS + arguments, start + REQUEST_HEADER);
        bytes.get(start..PAYLOAD + payload)
    }

    /// Replaces the request with its answer: 0 or a negative error number, and the parts of a body.
    /// Returns `None`, and answers with `EIO` instead, if the body is too long.
    pub fn answer(&mut self, error: i32, body: &[&[u8]]) -> Option<()> {
        const EIO: i32 = 5;
        let len = body.iter().map(|part| part.len()).sum::<usize>();
        let fits = len <= self.pages.len - PAYLOAD;
        let (error, body) = if fits { (error, body) } else { (-EIO, &[][..]) };
        let len = if fits { len } else { 0 };
        let bytes = self.pages.bytes_mut();
        let mut room = bytes.get_mut(PAYLOAD..)?;
        for part in body {
            let (target, rest) = room.split_at_mut_checked(part.len())?;
            target.copy_from_slice(part);
            room = rest;
        }
        // The number of the request follows, as in the request.
        let total = ((ANSWER_HEADER + len) as u32).to_ne_bytes();
        bytes.get_mut(..4)?.copy_from_slice(&total);
        bytes.get_mut(4..8)?.copy_from_slice(&error.to_ne_bytes());
        bytes.get_mut(PAYLOAD_LEN..PAYLOAD_LEN + 4)?.copy_from_slice(&(len as u32).to_ne_bytes());
        fits.then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 8192;

    fn slot() -> Slot {
        let file = std::fs::File::open("/dev/null").expect("opened");
        let slots = Slot::for_queues(&Arc::new(file.into()), &[2, 3], ROOM).expect("memory");
        slots.into_iter().next_back().expect("two slots")
    }

    /// Writes a request as the kernel does.
    fn deliver(slot: &mut Slot, len: u32, arguments: &[u8], payload: &[u8], payload_len: u32) {
        let bytes = slot.pages.bytes_mut();
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        bytes[39] = 9;
        bytes[ARGUMENTS..ARGUMENTS + arguments.len()].copy_from_slice(arguments);
        bytes[COMMIT_ID..COMMIT_ID + 8].copy_from_slice(&77_u64.to_ne_bytes());
        bytes[PAYLOAD_LEN..PAYLOAD_LEN + 4].copy_from_slice(&payload_len.to_ne_bytes());
        bytes[PAYLOAD..PAYLOAD + payload.len()].copy_from_slice(payload);
    }

    #[test]
    fn a_request_is_contiguous() {
        for (arguments, payload) in [(0, 0), (0, 5), (16, 0), (128, 1), (40, ROOM)] {
            let mut slot = slot();
            let (arguments, payload) = (vec![1; arguments], vec![2; payload]);
            let len = REQUEST_HEADER + arguments.len() + payload.len();
            deliver(&mut slot, len as u32, &arguments, &payload, payload.len() as u32);
            let mut copied = Vec::new();
            slot.copy_request(&mut copied).expect("lengths that agree");
            assert_eq!((copied.len(), copied[39]), (len, 9));
            assert_eq!(copied[REQUEST_HEADER..REQUEST_HEADER + arguments.len()], arguments);
            assert_eq!(copied[REQUEST_HEADER + arguments.len()..], payload);
            assert_eq!(slot.request(), Some(&copied[..]));
            assert_eq!((slot.commit_id(), slot.queue()), (77, 3));
        }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let lengths = [
            (39, 0),
            (40, 1),
            (40 + 129, 0),
            (40 + ROOM as u32 + 1, ROOM as u32 + 1),
            (u32::MAX, 0),
            (u32::MAX, u32::MAX),
        ];
        for (len, payload) in lengths {
            let mut slot = slot();
            deliver(&mut slot, len, &[], &[], payload);
            assert_eq!(slot.request(), None, "{len} {payload}");
            assert_eq!(slot.copy_request(&mut Vec::new()), None, "{len} {payload}");
        }
    }

    #[test]
    fn slots_have_their_own_memory() {
        let file = std::fs::File::open("/dev/null").expect("opened");
        let queues: Vec<u16> = (0..9).collect();
        let mut slots = Slot::for_queues(&Arc::new(file.into()), &queues, ROOM).expect("memory");
        for (number, slot) in slots.iter_mut().enumerate() {
            assert!(slot.pages.bytes().iter().all(|byte| *byte == 0));
            slot.pages.bytes_mut().fill(number as u8 + 1);
        }
        slots[4].discard();
        for (number, slot) in slots.iter().enumerate() {
            let wanted = if number == 4 { 0 } else { number as u8 + 1 };
            assert!(slot.pages.bytes().iter().all(|byte| *byte == wanted));
        }
        let last = slots.pop().expect("nine");
        drop(slots);
        assert_eq!(last.pages.bytes()[ROOM], 9, "one keeps the mapping");
    }

    #[test]
    fn used_memory_is_counted() {
        let mut slot = slot();
        assert_eq!(slot.used(), 0);
        assert_eq!(*slot.places, [slot.places[0], HEADERS, slot.places[0] + PAYLOAD, ROOM]);
        deliver(&mut slot, 40 + 5000, &[], &[1; 5000], 5000);
        slot.note_used();
        assert_eq!(slot.answer(0, &[b"a"]), Some(()));
        slot.note_used();
        assert_eq!(slot.used(), PAYLOAD + 5000);
        // What a kernel says is not trusted.
        deliver(&mut slot, 40, &[], &[], u32::MAX);
        slot.note_used();
        assert_eq!(slot.used(), PAYLOAD + ROOM);
        slot.discard();
        assert_eq!(slot.used(), 0);
    }

    #[test]
    fn answers_replace_requests() {
        let mut slot = slot();
        deliver(&mut slot, 40, &[], &[], 0);
        assert_eq!(slot.answer(0, &[b"ab", b"", b"cde"]), Some(()));
        let bytes = slot.pages.bytes();
        assert_eq!(bytes[PAYLOAD..PAYLOAD + 5], *b"abcde");
        assert_eq!((slot.u32(0), slot.u32(4), slot.u64(8)), (21, 0, 77));
        assert_eq!((slot.payload_len(), slot.commit_id()), (5, 77));
        assert_eq!(slot.answer(0, &[&[0; ROOM], b"x"]), None);
        assert_eq!((slot.u32(0), slot.u32(4).cast_signed(), slot.payload_len()), (16, -5, 0));
        assert_eq!(slot.answer(-2, &[]), Some(()));
        assert_eq!((slot.u32(4).cast_signed(), slot.payload_len()), (-2, 0));
    }
}
