//! Reservations of ids, and leases.

use super::*;

fn publishing(owner: &str) -> Reservation {
    Reservation { hash: "hash".into(), stage: Stage::Publishing { owner: owner.into() } }
}

fn published(offset: i64) -> Reservation {
    Reservation { hash: "hash".into(), stage: Stage::Published(Position { partition: 3, offset }) }
}

pub async fn id_is_reserved_once(fixture: &Fixture) {
    let store = &fixture.store;
    let (one, two) = (publishing("one"), publishing("two"));
    assert_eq!(store.reserve(0, &id("a"), 1, &one).await.unwrap(), None);
    assert_eq!(store.reserve(0, &id("a"), 1, &two).await.unwrap(), Some(one.clone()));
    assert_eq!(store.reserve(0, &id("b"), 1, &two).await.unwrap(), None, "another id");
    assert_eq!(store.reserve(0, &id("a"), 2, &two).await.unwrap(), None, "another run");
    let racers =
        (0..20).map(|n| async move { store.reserve(0, &id("raced"), 1, &publishing(&n.to_string())).await.unwrap() });
    let winners = futures::future::join_all(racers).await.into_iter().filter(Option::is_none).count();
    assert_eq!(winners, 1);
}

pub async fn reservation_is_replaced_only_by_its_holder(fixture: &Fixture) {
    let store = &fixture.store;
    let (one, two, done) = (publishing("one"), publishing("two"), published(42));
    store.reserve(0, &id("a"), 1, &one).await.unwrap();
    assert!(!store.replace_reservation(0, &id("a"), 1, &two, Some(&published(7))).await.unwrap(), "not the holder");
    assert!(!store.replace_reservation(0, &id("a"), 1, &two, None).await.unwrap(), "not the holder");
    assert!(store.replace_reservation(0, &id("a"), 1, &one, Some(&done)).await.unwrap());
    assert!(
        store.replace_reservation(0, &id("a"), 1, &one, Some(&done)).await.unwrap(),
        "repeated after a lost response"
    );
    assert_eq!(store.reserve(0, &id("a"), 1, &one).await.unwrap(), Some(done.clone()));
    assert!(store.replace_reservation(0, &id("a"), 1, &done, None).await.unwrap());
    assert!(store.replace_reservation(0, &id("a"), 1, &done, None).await.unwrap(), "repeated after a lost response");
    assert!(
        !store.replace_reservation(0, &id("a"), 1, &one, Some(&one)).await.unwrap(),
        "a released id is not renewed"
    );
    assert_eq!(store.reserve(0, &id("a"), 1, &one).await.unwrap(), None);
    let in_doubt = Reservation { hash: "hash".into(), stage: Stage::InDoubt };
    store.reserve(0, &id("raced"), 1, &in_doubt).await.unwrap();
    let racers = (0..20).map(|n| {
        let (mine, in_doubt) = (publishing(&n.to_string()), in_doubt.clone());
        async move { store.replace_reservation(0, &id("raced"), 1, &in_doubt, Some(&mine)).await.unwrap() }
    });
    let winners = futures::future::join_all(racers).await.into_iter().filter(|won| *won).count();
    assert_eq!(winners, 1, "one of many takes over");
}

pub async fn reservation_expires(fixture: &Fixture) {
    let (short, long) = (Duration::from_millis(1_500), Duration::from_secs(600));
    let two = publishing("two");
    let is_free = async |store: &dyn Store, name: &str| store.reserve(0, &id(name), 1, &two).await.unwrap().is_none();
    let store = fixture.with_reservation_ttl(short, long);
    assert_eq!(store.reserve(0, &id("long"), 1, &publishing("one")).await.unwrap(), None);
    assert_eq!(store.reserve(0, &id("short"), 1, &published(1)).await.unwrap(), None);
    eventually("the reservation of a published task ends", || is_free(&*store, "short")).await;
    assert!(!is_free(&*store, "long").await, "a lease has its own lifetime");
    assert!(store.replace_reservation(0, &id("long"), 1, &publishing("one"), Some(&published(1))).await.unwrap());
    eventually("the replaced reservation ends", || is_free(&*store, "long")).await;
    let store = fixture.with_reservation_ttl(long, short);
    assert_eq!(store.reserve(0, &id("lease"), 1, &publishing("one")).await.unwrap(), None);
    assert_eq!(store.reserve(0, &id("done"), 1, &published(1)).await.unwrap(), None);
    eventually("the lease ends", || is_free(&*store, "lease")).await;
    assert!(!is_free(&*store, "done").await, "a published task keeps its id for longer");
}

/// A lease renewed for three lifetimes still exists, unless the machine stalled for one of them.
pub async fn renewed_lease_does_not_expire(fixture: &Fixture) {
    let ttl = Duration::from_secs(4);
    let store = fixture.with_reservation_ttl(Duration::from_secs(600), ttl);
    let (one, two) = (publishing("one"), publishing("two"));
    for round in 0.. {
        let name = id(&format!("renewed-{round}"));
        let (begun, mut renewed, mut stood_still) = (Instant::now(), Instant::now(), false);
        store.reserve(0, &name, 1, &one).await.unwrap();
        let mut is_held = true;
        while begun.elapsed() < ttl * 3 {
            // Renewals at regular times, well within the lifetime.
            tokio::time::sleep(ttl / 20).await;
            is_held &= store.replace_reservation(0, &name, 1, &one, Some(&one)).await.unwrap();
            stood_still |= renewed.elapsed() >= ttl;
            renewed = Instant::now();
        }
        is_held &= store.reserve(0, &name, 1, &two).await.unwrap() == Some(one.clone());
        assert!(is_held || stood_still || renewed.elapsed() >= ttl, "the lease expired although it was renewed");
        if is_held {
            return;
        }
        assert!(round < 10, "the machine stalls repeatedly");
    }
}
