//! Trace contexts of tasks: ids, the sampling decision, and the trace that a task belongs to. All of it follows from the
//! task's id, its run and a given W3C context, so that every process decides the same without asking another.
//!
//! A task's run has one *send* span: that of its publication, or the worker's first wait if the record comes from a
//! producer that writes none. Its id is a hash of task id and run, so that followers can name it as their parent.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::task::id::TaskId;

/// Number of children of an attempt that belong to its trace. Further ones have traces of their own, with a link: views
/// of traces with many thousand spans are of no use.
pub const MAX_CHILDREN_IN_TRACE: u32 = 99;

/// Number of random bits of a trace id that decide about sampling: its last 7 bytes.
const RANDOM_BITS: u32 = 56;

/// Id of a trace, not zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TraceId([u8; 16]);

/// Id of a span, not zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Trace of a tree in a run: XXH3-128 of the id, with the run as the seed. `id`: the root's, or that of a task with a
    /// trace of its own.
    pub fn of(id: &str, run: u32) -> Self {
        Self(xxh3_128_with_seed(id.as_bytes(), u64::from(run)).max(1).to_be_bytes())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the part that decides about sampling.
    fn random_part(self) -> u64 {
        self.0[9..].iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
    }
}

impl SpanId {
    /// Id of the send span of a task's run: XXH3-64 of the task's id, with the run as the seed.
    pub fn of_send(id: &TaskId, run: u32) -> Self {
        Self(xxh3_64_with_seed(id.as_str().as_bytes(), u64::from(run)).max(1).to_be_bytes())
    }

    /// Id from a random number.
    pub fn from_random(number: u64) -> Self {
        Self(number.max(1).to_be_bytes())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    f.write_str(&data_encoding::HEXLOWER.encode(bytes))
}

/// W3C trace context: a span in its trace, and whether the trace is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub sampled: bool,
}

impl SpanContext {
    /// Parses a `traceparent`; `None` if it is not valid. Later versions may have more fields, which are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let version = hex::<1>(bytes.get(..2)?)?[0];
        let is_complete = match version {
            0 => bytes.len() == 55,
            255 => false,
            _ => bytes.len() == 55 || bytes.get(55) == Some(&b'-'),
        };
        if !is_complete || [2, 35, 52].iter().any(|at| bytes[*at] != b'-') {
            return None;
        }
        let (trace_id, span_id) = (hex(&bytes[3..35])?, hex(&bytes[36..52])?);
        let flags = hex::<1>(&bytes[53..55])?[0];
        let is_valid = trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id: TraceId(trace_id), span_id: SpanId(span_id), sampled: flags & 1 == 1 })
    }
}

/// Decodes lower-case hex digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let length = data_encoding::HEXLOWER.decode_len(text.len()).ok().filter(|length| *length == N)?;
    data_encoding::HEXLOWER.decode_mut(text, &mut bytes[..length]).ok()?;
    Some(bytes)
}

/// The `traceparent` of the context.
impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// Text in events, compact in task records.
impl Serialize for SpanContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_str(self);
        }
        (self.trace_id, self.span_id, self.sampled).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SpanContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
            return Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a W3C traceparent"));
        }
        let (trace_id, span_id, sampled) = Deserialize::deserialize(deserializer)?;
        Ok(Self { trace_id, span_id, sampled })
    }
}

impl schemars::JsonSchema for SpanContext {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SpanContext".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "description": "W3C `traceparent`." })
    }
}

/// Origin of a task that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No span is known.
    Unknown,
    /// The task belongs to the trace of this span, its parent.
    Parent(SpanContext),
    /// The task has a trace of its own, with a link to the span that created it.
    Linked(SpanContext),
    /// The task starts again in a new run, with a link to the span of the run before.
    Retry(SpanContext),
}

/// Send span of a task that is published, and the task's trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSpan {
    pub context: SpanContext,
    pub parent: Option<SpanId>,
    pub link: Option<SpanContext>,
}

/// Sampled trace of a task record that a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTrace {
    /// Context of the send span.
    pub send: SpanContext,
    /// A publisher has written the send span. Otherwise the worker's first wait takes its place.
    pub has_send: bool,
    /// Parent of the span that takes its place.
    pub parent: Option<SpanId>,
}

/// Decides which traces are sampled: those whose trace id, as a number, is at least a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Up to 2^56, which samples nothing.
    threshold: u64,
}

impl Sampler {
    /// Samples only what a given context marks as sampled.
    pub const NEVER: Self = Self { threshold: 1 << RANDOM_BITS };

    /// Samples a share of the traces, from 0 to 1.
    pub fn new(share: f64) -> Self {
        let all = (1_u64 << RANDOM_BITS) as f64;
        Self { threshold: ((1.0 - share.clamp(0.0, 1.0)) * all).round() as u64 }
    }

    /// Returns whether a trace without a given context is sampled.
    pub fn samples(self, trace_id: TraceId) -> bool {
        trace_id.random_part() >= self.threshold
    }

    /// Decides about the trace of a tree without a given context.
    fn of_tree(self, id: &TaskId, run: u32) -> Option<TraceId> {
        if self == Self::NEVER {
            return None;
        }
        let trace_id = TraceId::of(id.root(), run);
        self.samples(trace_id).then_some(trace_id)
    }

    /// Send span of a task to be published; `None`: its trace is not sampled.
    pub fn sent(self, id: &TaskId, run: u32, origin: Origin) -> Option<SendSpan> {
        let (trace_id, parent, link) = match origin {
            Origin::Unknown => (self.of_tree(id, run)?, None, None),
            Origin::Parent(given) | Origin::Linked(given) | Origin::Retry(given) if !given.sampled => return None,
            Origin::Parent(given) => (given.trace_id, Some(given.span_id), None),
            Origin::Linked(given) => (TraceId::of(id.as_str(), run), None, Some(given)),
            Origin::Retry(given) => (TraceId::of(id.root(), run), None, Some(given)),
        };
        let context = SpanContext { trace_id, span_id: SpanId::of_send(id, run), sampled: true };
        Some(SendSpan { context, parent, link })
    }

    /// Trace of a record with this context; `None`: it is not sampled.
    pub fn received(self, id: &TaskId, run: u32, given: Option<SpanContext>) -> Option<RecordTrace> {
        let trace_id = match given {
            Some(given) => given.sampled.then_some(given.trace_id)?,
            None => self.of_tree(id, run)?,
        };
        let span_id = SpanId::of_send(id, run);
        let has_send = given.is_some_and(|given| given.span_id == span_id);
        let parent = given.map(|given| given.span_id).filter(|_| !has_send);
        Some(RecordTrace { send: SpanContext { trace_id, span_id, sampled: true }, has_send, parent })
    }

    /// Trace of a task's run, if it is sampled. `recorded`: as in [`Self::followed`].
    pub fn trace_of(self, id: &TaskId, run: u32, recorded: Option<SpanContext>) -> Option<TraceId> {
        let context = self.followed(id, run, recorded);
        context.sampled.then_some(context.trace_id)
    }

    /// Context of the send span of a task's run, for tasks that follow it. `recorded`: the context in the task's record, which
    /// may be that of an earlier run.
    pub fn followed(self, id: &TaskId, run: u32, recorded: Option<SpanContext>) -> SpanContext {
        let span_id = SpanId::of_send(id, run);
        let (trace_id, sampled) = match recorded {
            Some(recorded) if run == 1 || recorded.span_id == span_id || !recorded.sampled => {
                (recorded.trace_id, recorded.sampled)
            }
            Some(_) => (TraceId::of(id.root(), run), true),
            None => {
                let trace_id = TraceId::of(id.root(), run);
                (trace_id, self.samples(trace_id))
            }
        };
        SpanContext { trace_id, span_id, sampled }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn id(text: &str) -> TaskId {
        TaskId::parse(text).unwrap()
    }

    fn context(text: &str) -> SpanContext {
        SpanContext::parse(text).unwrap()
    }

    #[test]
    fn traceparent_is_read_as_the_standard_says() {
        assert_eq!(context(GIVEN).to_string(), GIVEN);
        assert!(!context(&GIVEN.replace("-01", "-00")).sampled);
        // Other flags and fields of later versions are ignored.
        assert!(context(&GIVEN.replace("-01", "-03")).sampled);
        assert_eq!(context(&format!("cc{}-what", &GIVEN[2..])).to_string(), GIVEN);
        let zero_trace = format!("00-{}{}", "0".repeat(32), &GIVEN[35..]);
        let zero_span = format!("{}{}-01", &GIVEN[..36], "0".repeat(16));
        let (longer, other, upper) = (format!("{GIVEN}-x"), format!("ff{}", &GIVEN[2..]), GIVEN.to_uppercase());
        for bad in ["", "00", "00-1-2-01", &GIVEN[..54], &longer, &other, &upper, &zero_trace, &zero_span] {
            assert_eq!(SpanContext::parse(bad), None, "{bad}");
        }
        assert_eq!(SpanContext::parse(&GIVEN.replace('-', "é")), None);
    }

    #[test]
    fn ids_never_change_between_builds() {
        assert_eq!(TraceId::of("order-42", 1).to_string(), "d07cfff3d0913463863f859737187e30");
        assert_eq!(SpanId::of_send(&id("order-42:a"), 2).to_string(), "10b2ed40b334690b");
    }

    #[test]
    fn context_is_text_in_json_and_compact_in_records() {
        let json = serde_json::to_string(&context(GIVEN)).unwrap();
        assert_eq!(json, format!("\"{GIVEN}\""));
        assert_eq!(serde_json::from_str::<SpanContext>(&json).unwrap(), context(GIVEN));
        let bytes = postcard::to_allocvec(&context(GIVEN)).unwrap();
        assert_eq!((bytes.len(), postcard::from_bytes(&bytes)), (25, Ok(context(GIVEN))));
    }

    #[test]
    fn sampling_follows_the_flag_then_the_trace_id() {
        let (all, none) = (Sampler::new(1.0), Sampler::new(0.0));
        let task = id("order-42:a");
        let unsampled = context(&GIVEN.replace("-01", "-00"));
        let given = |sampler: Sampler, given| sampler.received(&task, 1, given).map(|found| found.send.trace_id);
        assert_eq!(given(all, Some(unsampled)), None);
        assert_eq!(given(none, Some(context(GIVEN))), Some(context(GIVEN).trace_id));
        assert_eq!(given(none, None), None);
        assert_eq!(given(all, None), Some(TraceId::of("order-42", 1)));
        assert_eq!((none, Sampler::new(-1.0), Sampler::new(9.0)), (Sampler::NEVER, Sampler::NEVER, all));
    }

    #[test]
    fn record_without_a_send_span_hangs_from_its_producer() {
        let sampler = Sampler::new(1.0);
        let task = id("a");
        let sent = sampler.sent(&task, 1, Origin::Parent(context(GIVEN))).unwrap();
        let ours = sampler.received(&task, 1, Some(sent.context)).unwrap();
        assert_eq!((ours.has_send, ours.parent, ours.send), (true, None, sent.context));
        let foreign = sampler.received(&task, 1, Some(context(GIVEN))).unwrap();
        assert_eq!((foreign.has_send, foreign.parent), (false, Some(context(GIVEN).span_id)));
        assert_eq!(foreign.send, sent.context, "followers find the same span");
        let bare = sampler.received(&task, 1, None).unwrap();
        assert_eq!((bare.has_send, bare.parent), (false, None));
    }

    #[test]
    fn retry_by_hand_and_late_children_have_traces_of_their_own() {
        let sampler = Sampler::NEVER;
        let first = context(GIVEN);
        let task = id("a:b");
        let retried = sampler.sent(&task, 2, Origin::Retry(first)).unwrap();
        assert_eq!((retried.context.trace_id, retried.link), (TraceId::of("a", 2), Some(first)));
        assert_eq!(sampler.followed(&task, 2, Some(first)), retried.context, "followers of the retry");
        let child = sampler.sent(&task, 1, Origin::Linked(first)).unwrap();
        assert_eq!((child.context.trace_id, child.parent), (TraceId::of("a:b", 1), None));
        let unsampled = SpanContext { sampled: false, ..first };
        for origin in [Origin::Retry(unsampled), Origin::Linked(unsampled), Origin::Parent(unsampled), Origin::Unknown]
        {
            assert_eq!(sampler.sent(&task, 2, origin), None, "{origin:?}");
        }
        assert!(!sampler.followed(&task, 2, Some(unsampled)).sampled);
    }

    #[test]
    fn share_of_ids_is_sampled() {
        let share = |share: f64| {
            let sampler = Sampler::new(share);
            let sampled = |n: &u32| sampler.received(&id(&format!("order-{n}")), 1, None).is_some();
            (0..100_000).filter(sampled).count()
        };
        assert!((850..=1_150).contains(&share(0.01)), "{}", share(0.01));
        assert!((49_000..=51_000).contains(&share(0.5)), "{}", share(0.5));
    }

    proptest! {
        /// Every process decides the same about every task of a tree.
        #[test]
        fn tree_is_sampled_as_a_whole(
            root in "[a-z0-9]{1,20}", path in prop::collection::vec("[a-z0-9]{1,9}", 0..4), run in 1u32..5, share in 0.0..1.0f64,
            flag in prop::option::of(any::<bool>()),
        ) {
            let sampler = Sampler::new(share);
            let given = flag.map(|sampled| SpanContext { sampled, ..context(GIVEN) });
            let expected = flag.unwrap_or_else(|| sampler.samples(TraceId::of(&root, run)));
            let top = id(&root);
            let origin = given.map_or(Origin::Unknown, Origin::Parent);
            let mut at = sampler.sent(&top, run, origin).map(|sent| sent.context).or(given);
            let mut task = top;
            for segment in path {
                let received = sampler.received(&task, run, at);
                prop_assert_eq!(received.is_some(), expected);
                // A tracker that knows the record, and one that does not know its context.
                prop_assert_eq!(sampler.followed(&task, run, at).sampled, expected);
                let attempt = received.map(|found| SpanContext { span_id: SpanId::from_random(7), ..found.send });
                task = task.child(&segment).unwrap();
                let origin = attempt.or(at).map_or(Origin::Unknown, Origin::Parent);
                let child = sampler.sent(&task, run, origin);
                prop_assert_eq!(child.is_some(), expected);
                if let (Some(child), Some(parent)) = (child, received) {
                    prop_assert_eq!(child.context.trace_id, parent.send.trace_id);
                }
                at = child.map(|child| child.context).or(at);
            }
        }
    }
}
