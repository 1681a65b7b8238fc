//! Property tests.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;

/// Configuration of a property test whose failing cases are kept beside its source, in `NAME.regressions`.
pub fn config(cases: u32) -> ProptestConfig {
    let failure_persistence = Some(Box::new(FileFailurePersistence::WithSource("regressions")) as _);
    ProptestConfig { cases, failure_persistence, ..ProptestConfig::default() }
}
