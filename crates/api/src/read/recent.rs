//! Cache of documents that are expensive to read, shared by the requests of a short time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::http::problem::ApiError;

/// Maximum size of all cached documents of one kind, in bytes.
const MAX_SIZE: usize = 16 << 20;

/// Cached documents of one kind, by key.
pub struct Recent<T> {
    lifetime: Duration,
    /// Size of a document in bytes.
    size: fn(&T) -> usize,
    documents: Mutex<Documents<T>>,
}

struct Documents<T> {
    by_key: FxHashMap<String, Arc<CachedDocument<T>>>,
    size: usize,
}

/// Document and the time at which it was read; empty while it is read.
type CachedDocument<T> = OnceCell<(Instant, Arc<T>)>;

impl<T> Recent<T> {
    pub fn new(lifetime: Duration, size: fn(&T) -> usize) -> Self {
        Self { lifetime, size, documents: Mutex::new(Documents { by_key: FxHashMap::default(), size: 0 }) }
    }

    /// Returns the document of this key if it was read within the lifetime, otherwise that of `read`, which concurrent
    /// requests share. Without a key it is always read.
    pub async fn get(
        &self,
        key: Option<String>,
        read: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<Arc<T>, ApiError> {
        let Some(key) = key else { return read.await.map(Arc::new) };
        let entry = self.entry(&key);
        // If the request that reads is dropped or fails, another one that waits reads instead.
        let read = || async {
            let document = Arc::new(read.await?);
            self.count(&key, &entry, (self.size)(&document));
            Ok((Instant::now(), document))
        };
        entry.get_or_try_init(read).await.map(|(_, document)| document.clone())
    }

    /// Returns the last document of this key, also after its lifetime.
    pub fn last(&self, key: &str) -> Option<Arc<T>> {
        self.documents.lock().by_key.get(key)?.get().map(|(_, document)| document.clone())
    }

    /// Entry of a document that is recent or being read, or a new one.
    fn entry(&self, key: &str) -> Arc<CachedDocument<T>> {
        let mut documents = self.documents.lock();
        let mut replaced = 0;
        match documents.by_key.get(key).map(|entry| (entry, entry.get())) {
            Some((entry, None)) => return entry.clone(),
            Some((entry, Some((read_at, _)))) if read_at.elapsed() < self.lifetime => return entry.clone(),
            Some((_, Some((_, document)))) => replaced = key.len() + (self.size)(document),
            None => {}
        }
        documents.size -= replaced;
        documents.make_room(key.len());
        documents.size += key.len();
        let entry = Arc::new(CachedDocument::new());
        documents.by_key.insert(key.to_owned(), entry.clone());
        entry
    }

    /// Counts a document that has been read. One that does not fit is not kept.
    fn count(&self, key: &str, entry: &Arc<CachedDocument<T>>, size: usize) {
        let mut documents = self.documents.lock();
        if documents.make_room(size) {
            documents.by_key.insert(key.to_owned(), entry.clone());
            documents.size = key.len();
        }
        if !documents.by_key.get(key).is_some_and(|kept| Arc::ptr_eq(kept, entry)) {
            return;
        }
        if size > MAX_SIZE {
            documents.by_key.remove(key);
            documents.size -= key.len();
        } else {
            documents.size += size;
        }
    }
}

impl<T> Documents<T> {
    /// Drops all documents if there is no room for another one. Returns whether they were dropped.
    fn make_room(&mut self, size: usize) -> bool {
        let is_full = self.size + size > MAX_SIZE;
        if is_full {
            self.by_key.clear();
            self.size = 0;
        }
        is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::Code;

    async fn read(recent: &Recent<String>, key: &str, text: &str) -> usize {
        recent.get(Some(key.into()), async { Ok(text.to_owned()) }).await.unwrap().len()
    }

    fn state(recent: &Recent<String>) -> (usize, usize) {
        let documents = recent.documents.lock();
        (documents.by_key.len(), documents.size)
    }

    #[tokio::test(start_paused = true)]
    async fn document_is_read_again_after_its_lifetime() {
        let recent = Recent::new(Duration::from_secs(1), String::len);
        assert_eq!(read(&recent, "a", "1").await, 1);
        assert_eq!(read(&recent, "a", "22").await, 1);
        assert_eq!(read(&recent, "b", "22").await, 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(recent.last("a").unwrap().as_str(), "1");
        assert_eq!(read(&recent, "a", "333").await, 3);
        assert_eq!(state(&recent), (2, "a333b22".len()));
    }

    #[tokio::test]
    async fn documents_are_dropped_when_they_are_too_large() {
        let recent = Recent::new(Duration::from_secs(60), |_: &String| MAX_SIZE / 2);
        assert_eq!(read(&recent, "a", "1").await, 1);
        assert_eq!(read(&recent, "b", "22").await, 2);
        assert_eq!(state(&recent), (1, MAX_SIZE / 2 + 1));
        assert_eq!(read(&recent, "a", "333").await, 3);
        let too_large = Recent::new(Duration::from_secs(60), |_: &String| MAX_SIZE + 1);
        assert_eq!(read(&too_large, "a", "1").await, 1);
        assert_eq!(state(&too_large), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_share_a_read_and_a_failed_one_is_repeated() {
        let recent = Recent::new(Duration::from_secs(60), String::len);
        let slow = |text: &'static str| {
            recent.get(Some("a".into()), async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if text == "fails" { Err(ApiError::new(Code::Internal, "no")) } else { Ok(text.to_owned()) }
            })
        };
        let (first, second, third) = tokio::join!(slow("fails"), slow("2"), slow("3"));
        assert!(first.is_err());
        assert_eq!((second.unwrap().as_str(), third.unwrap().as_str()), ("2", "2"));
    }
}
