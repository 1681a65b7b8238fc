//! Documents read from Kafka, kept so that refreshes of a page do not read them again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::api::http::problem::ApiError;

/// Maximum size of all documents of a kind.
const MAX_SIZE: usize = 16 << 20;

/// Documents of a kind by key.
pub(super) struct Recent<T> {
    lifetime: Duration,
    /// Size of a document in bytes.
    size: fn(&T) -> usize,
    documents: Mutex<Documents<T>>,
}

struct Documents<T> {
    by_key: FxHashMap<String, (Instant, Arc<T>)>,
    size: usize,
}

impl<T> Recent<T> {
    pub(super) fn new(lifetime: Duration, size: fn(&T) -> usize) -> Self {
        Self { lifetime, size, documents: Mutex::new(Documents { by_key: FxHashMap::default(), size: 0 }) }
    }

    /// Returns the document of this key if it was read within the lifetime, otherwise that of `read`. Without a key it
    /// is always read.
    pub(super) async fn get(
        &self,
        key: Option<String>,
        read: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<Arc<T>, ApiError> {
        let Some(key) = key else { return read.await.map(Arc::new) };
        if let Some(document) = self.find(&key) {
            return Ok(document);
        }
        let document = Arc::new(read.await?);
        self.keep(key, document.clone());
        Ok(document)
    }

    fn find(&self, key: &str) -> Option<Arc<T>> {
        let documents = self.documents.lock();
        let (read_at, document) = documents.by_key.get(key)?;
        (read_at.elapsed() < self.lifetime).then(|| document.clone())
    }

    fn keep(&self, key: String, document: Arc<T>) {
        let size_of = |key: &str, document: &T| key.len() + (self.size)(document);
        let size = size_of(&key, &document);
        let mut documents = self.documents.lock();
        if documents.size + size > MAX_SIZE {
            documents.by_key.clear();
            documents.size = 0;
        }
        if size <= MAX_SIZE {
            documents.size += size;
            if let Some((_, old)) = documents.by_key.insert(key.clone(), (Instant::now(), document)) {
                documents.size -= size_of(&key, &old);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(recent: &Recent<String>, key: &str, text: &str) -> usize {
        recent.get(Some(key.into()), async { Ok(text.to_owned()) }).await.unwrap().len()
    }

    #[tokio::test(start_paused = true)]
    async fn document_is_read_again_after_its_lifetime() {
        let recent = Recent::new(Duration::from_secs(1), String::len);
        assert_eq!(read(&recent, "a", "1").await, 1);
        assert_eq!(read(&recent, "a", "22").await, 1);
        assert_eq!(read(&recent, "b", "22").await, 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(read(&recent, "a", "333").await, 3);
        assert_eq!(recent.documents.lock().size, "a333b22".len());
    }

    #[tokio::test]
    async fn documents_are_dropped_when_they_are_too_large() {
        let recent = Recent::new(Duration::from_secs(60), |_: &String| MAX_SIZE / 2);
        assert_eq!(read(&recent, "a", "1").await, 1);
        assert_eq!(read(&recent, "b", "22").await, 2);
        assert_eq!(recent.documents.lock().by_key.len(), 1);
        assert_eq!(read(&recent, "a", "333").await, 3);
    }
}
