/** Lists of tasks that are sent together. */

/** Number of tasks that are created together. */
const BATCH_ITEMS = 1000;

/** Splits items into lists that one message carries. One that is too large for a list is alone in it. */
export function* batches<T>(items: Iterable<T>, size: (item: T) => number, maxSize: number): Generator<T[]> {
  let batch: T[] = [];
  let total = 0;
  for (const item of items) {
    if (batch.length === BATCH_ITEMS || (batch.length && total + size(item) > maxSize)) {
      yield batch;
      [batch, total] = [[], 0];
    }
    batch.push(item);
    total += size(item);
  }
  if (batch.length) yield batch;
}
