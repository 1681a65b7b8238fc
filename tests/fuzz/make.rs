//! Mutation of fuzz inputs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

/// Duration per kind of input, unless set by `KAFLEET_FUZZ`.
const BUDGET: Duration = Duration::from_millis(1_500);
const LONGEST: usize = 4_096;
/// Fragments that are often mishandled.
const TOKENS: [&str; 26] = [
    "0",
    "-1",
    "1e999",
    "9223372036854775807",
    "18446744073709551616",
    "-9223372036854775808",
    "null",
    "true",
    "\"\"",
    "{}",
    "[]",
    "[[[[[[[[",
    "{\"a\":",
    "\\u0000",
    "\\ud800",
    "\u{0}",
    "\u{feff}",
    "é",
    ":",
    "/",
    "\n",
    "\r\n",
    "..",
    "%2f",
    "2026-02-30T25:61:61Z",
    "1h1ms",
];

/// Passes mutated inputs to `take`, which panics on a defect.
pub fn fuzz(kind: &str, take: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(kind);
    let mut known: Vec<Vec<u8>> = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let input = std::fs::read(&path).unwrap();
        attempt(kind, &input, &take);
        known.push(input);
    }
    assert!(!known.is_empty(), "{} is empty", folder.display());
    let budget = std::env::var("KAFLEET_FUZZ").map_or(BUDGET, |text| Duration::from_secs(text.parse().unwrap()));
    let mut rng = Rng::with_seed(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    let begun = Instant::now();
    let mut tried = 0;
    while begun.elapsed() < budget {
        let mut input = known[rng.usize(..known.len())].clone();
        for _ in 0..rng.usize(1..6) {
            change(&mut input, &known, &mut rng);
        }
        input.truncate(LONGEST);
        attempt(kind, &input, &take);
        tried += 1;
    }
    println!("{tried} {kind}");
}

fn attempt(kind: &str, input: &[u8], take: &impl Fn(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| take(input))) {
        eprintln!("to be kept in tests/fuzz/corpus/{kind}:\n\"{}\"", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

fn change(input: &mut Vec<u8>, known: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    let end = (at + rng.usize(..24)).min(input.len());
    match rng.u8(..7) {
        0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
        1 => drop(input.drain(at..end)),
        2 => input.insert(at, rng.u8(..)),
        3 => {
            let again = input[at..end].repeat(rng.usize(1..9));
            input.splice(at..at, again);
        }
        4 => {
            let other = &known[rng.usize(..known.len())];
            let from = rng.usize(..=other.len());
            input.splice(at..end, other[from..].iter().copied());
        }
        5 if at < input.len() => input[at] = b"0123456789-:,.\"[]{}"[rng.usize(..19)],
        _ => drop(input.splice(at..end, TOKENS[rng.usize(..TOKENS.len())].bytes())),
    }
}
