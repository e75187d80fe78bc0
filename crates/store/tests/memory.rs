//! What only the memory engine promises: everything happens on the tasks that ask for it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use usher_store::{Expect, Op, Options, Store};

/// With paused time, tokio advances the clock as soon as every task waits for something it cannot see, such as a thread.
#[tokio::test(start_paused = true)]
async fn paused_time_stands_still_while_writing_and_watching() {
    let store = Store::open_memory(Options::default());
    tokio::spawn(tokio::time::sleep(Duration::from_secs(3600)));
    let start = Instant::now();
    let mut watch = store.watch("things", "", 1).unwrap();
    let reader = tokio::spawn(async move {
        let mut seen = 0;
        while seen < 100 {
            seen += watch.next().await.unwrap().events.len();
        }
    });
    for n in 0..100 {
        let written = store.write("things", "key", Op::Put(Bytes::from(n.to_string())), Expect::Any).await.unwrap();
        store.wait_for(written.revision).await.unwrap();
        store.compact(written.revision - 1);
        tokio::task::yield_now().await;
    }
    reader.await.unwrap();
    store.close().await;
    assert_eq!(Instant::now(), start);
}
