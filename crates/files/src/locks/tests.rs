use proptest::prelude::*;

use super::*;

const END: u64 = i64::MAX as u64;

fn owner(client: Client, number: u64) -> Owner {
    Owner { client, number }
}

fn lock(owner: Owner, kind: LockKind, start: u64, last: u64) -> Lock {
    Lock { owner, via: owner.number, pid: 0, kind, start, last }
}

fn shared(owner: Owner, start: u64, last: u64) -> Lock {
    lock(owner, LockKind::Shared, start, last)
}

fn exclusive(owner: Owner, start: u64, last: u64) -> Lock {
    lock(owner, LockKind::Exclusive, start, last)
}

#[test]
fn readers_share_and_writers_do_not() {
    let mut locks = Locks::default();
    let (one, other) = (owner(1, 1), owner(2, 1));
    assert_eq!(locks.lock('f', shared(one, 0, 99)), Ok(vec![]));
    assert_eq!(locks.lock('f', shared(other, 50, END)), Ok(vec![]));
    assert_eq!(locks.lock('f', exclusive(other, 60, 70)), Err(Refused::Held(shared(one, 0, 99))));
    assert_eq!(locks.lock('f', exclusive(other, 100, 200)), Ok(vec![]));
    assert_eq!(locks.lock('g', exclusive(other, 0, END)), Ok(vec![]), "another file");
    // Of his own, whatever he has.
    assert_eq!(locks.lock('f', exclusive(one, 0, 49)), Ok(vec![]));
    assert_eq!(locks.unlock('f', one, 0, END), Ok(vec![]));
    assert!(!locks.has_any('f', one) && locks.has_any('f', other));
    assert_eq!(locks.count(1), 0);
}

#[test]
fn a_range_is_cut_out_and_neighbours_are_one() {
    let mut locks = Locks::default();
    let one = owner(1, 1);
    locks.lock('f', shared(one, 0, END)).unwrap();
    locks.lock('f', exclusive(one, 10, 19)).unwrap();
    assert_eq!(locks.count(1), 3);
    let other = owner(2, 2);
    assert_eq!(locks.conflict('f', &shared(other, 0, END)), Some(exclusive(one, 10, 19)));
    locks.lock('f', shared(one, 10, 19)).unwrap();
    assert_eq!(locks.count(1), 1, "all of one kind again");
    locks.unlock('f', one, 5, 5).unwrap();
    assert_eq!(locks.lock('f', exclusive(other, 5, 5)), Ok(vec![]));
    assert_eq!(locks.count(1), 2);
}

#[test]
fn who_waits_is_served_in_order() {
    let mut locks = Locks::default();
    let owners: Vec<_> = (1..=4).map(|client| owner(client, 1)).collect();
    locks.lock('f', exclusive(owners[0], 0, END)).unwrap();
    assert_eq!(locks.lock_or_wait('f', shared(owners[1], 0, 9), 7), Ok(None));
    assert_eq!(locks.lock_or_wait('f', exclusive(owners[2], 0, 9), 7), Ok(None));
    assert_eq!(locks.lock_or_wait('f', shared(owners[3], 0, 9), 7), Ok(None));
    assert_eq!(locks.lock_or_wait('f', shared(owners[3], 0, 9), 7), Err(Refused::TooMany), "the same number");
    assert_eq!(locks.waited_for(), BTreeSet::from([1]));
    // To be read is enough for the readers.
    assert_eq!(locks.lock('f', shared(owners[0], 0, END)), Ok(vec![(2, 7), (4, 7)]));
    assert_eq!(locks.unlock('f', owners[0], 0, END), Ok(vec![]));
    assert_eq!(locks.unlock('f', owners[1], 0, END), Ok(vec![]));
    assert_eq!(locks.closed('f', 4, 1), [(3, 7)]);
    assert!(!locks.stop_waiting((3, 7)), "he has it");
    assert_eq!((1..=4).map(|client| locks.count(client)).collect::<Vec<_>>(), [0, 0, 1, 0]);
}

#[test]
fn a_client_that_is_gone_has_nothing_and_waits_for_nothing() {
    let mut locks = Locks::default();
    let (one, other) = (owner(1, 1), owner(2, 1));
    locks.lock('f', exclusive(one, 0, 9)).unwrap();
    locks.lock('g', exclusive(other, 0, 9)).unwrap();
    assert_eq!(locks.lock_or_wait('f', exclusive(other, 0, 0), 1), Ok(None));
    assert_eq!(locks.lock_or_wait('g', exclusive(owner(1, 2), 0, 0), 1), Ok(None));
    assert_eq!(locks.gone(1), [(2, 1)]);
    assert_eq!(locks.unlock('g', other, 0, 9), Ok(vec![]), "he has gone");
    assert_eq!((locks.count(1), locks.count(2)), (0, 1));
}

#[test]
fn nobody_waits_for_himself() {
    let mut locks = Locks::default();
    let [a, b, c] = [owner(1, 1), owner(2, 1), owner(2, 2)];
    locks.lock('f', exclusive(a, 0, 0)).unwrap();
    locks.lock('f', exclusive(b, 1, 1)).unwrap();
    locks.lock('g', exclusive(c, 0, 0)).unwrap();
    assert_eq!(locks.lock_or_wait('f', exclusive(b, 0, 0), 1), Ok(None));
    assert_eq!(locks.lock_or_wait('f', exclusive(c, 1, 1), 2), Ok(None));
    assert_eq!(locks.lock_or_wait('g', exclusive(a, 0, 0), 1), Err(Refused::Deadlock));
    assert!(locks.stop_waiting((2, 1)));
    assert_eq!(locks.lock_or_wait('g', exclusive(a, 0, 0), 1), Ok(None));
}

#[test]
fn locks_of_a_client_are_bounded() {
    let mut locks = Locks::default();
    for byte in 0..LOCKS_MAX as u64 {
        locks.lock(byte, shared(owner(1, 1), 0, 0)).unwrap();
    }
    assert_eq!(locks.lock(u64::MAX, shared(owner(1, 1), 0, 0)), Err(Refused::TooMany));
    assert_eq!(locks.lock(u64::MAX, shared(owner(2, 1), 0, 0)), Ok(vec![]));
    locks.unlock(0, owner(1, 1), 0, END).unwrap();
    assert_eq!(locks.lock(u64::MAX, shared(owner(1, 1), 0, 9)), Ok(vec![]));
    assert_eq!(locks.unlock(u64::MAX, owner(1, 1), 4, 5), Err(Refused::TooMany), "it would be two");
    assert_eq!(locks.unlock(u64::MAX, owner(1, 1), 5, 9), Ok(vec![]));
}

#[test]
fn who_closes_a_file_waits_for_nothing_there() {
    let mut locks = Locks::default();
    let (one, other) = (owner(1, 1), owner(2, 1));
    locks.lock('f', exclusive(one, 0, 9)).unwrap();
    assert_eq!(locks.lock_or_wait('f', exclusive(other, 0, 0), 1), Ok(None));
    assert_eq!(locks.closed('f', 2, other.number), []);
    assert_eq!(locks.unlock('f', one, 0, 9), Ok(vec![]));
    assert_eq!(locks.count(2), 0);
}

const BYTES: u64 = 8;

/// What is done at random.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Lock(u64, LockKind, u64, u64, bool),
    Unlock(u64, u64, u64),
    StopWaiting(u64),
    Gone(u64),
}

fn deeds() -> impl Strategy<Value = Deed> {
    let who = 0..4u64;
    let range = (0..BYTES, 0..BYTES).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let kind = prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)];
    prop_oneof![
        6 => (who.clone(), kind, range.clone(), any::<bool>())
            .prop_map(|(who, kind, (start, last), waits)| Deed::Lock(who, kind, start, last, waits)),
        4 => (who.clone(), range).prop_map(|(who, (start, last))| Deed::Unlock(who, start, last)),
        1 => who.clone().prop_map(Deed::StopWaiting),
        1 => who.prop_map(Deed::Gone),
    ]
}

proptest! {
    /// Beside a model that knows each byte by itself.
    #[test]
    fn each_byte_is_as_its_owners_were_told(deeds in proptest::collection::vec(deeds(), 1..80)) {
        let mut locks = Locks::default();
        let mut model = vec![HashMap::<u64, LockKind>::new(); BYTES as usize];
        let mut waits = HashMap::<u64, Lock>::new();
        for deed in deeds {
            let of = |who| owner(who, 1);
            let mut set = |lock: &Lock| {
                for byte in lock.start..=lock.last {
                    model[byte as usize].insert(lock.owner.client, lock.kind);
                }
            };
            let woken = match deed {
                // One who waits does nothing else.
                Deed::Lock(who, ..) | Deed::Unlock(who, ..) if waits.contains_key(&who) => continue,
                Deed::Lock(who, kind, start, last, true) => {
                    let wish = lock(of(who), kind, start, last);
                    match locks.lock_or_wait((), wish, 0) {
                        Ok(Some(woken)) => {
                            set(&wish);
                            woken
                        }
                        Ok(None) => {
                            waits.insert(who, wish);
                            continue;
                        }
                        Err(Refused::Deadlock) => continue,
                        Err(other) => panic!("{other:?}"),
                    }
                }
                Deed::Lock(who, kind, start, last, false) => {
                    let wish = lock(of(who), kind, start, last);
                    match locks.lock((), wish) {
                        Ok(woken) => {
                            set(&wish);
                            woken
                        }
                        Err(_) => continue,
                    }
                }
                Deed::Unlock(who, start, last) => {
                    for byte in start..=last {
                        model[byte as usize].remove(&who);
                    }
                    locks.unlock((), of(who), start, last).unwrap()
                }
                Deed::StopWaiting(who) => {
                    prop_assert_eq!(locks.stop_waiting((who, 0)), waits.remove(&who).is_some());
                    continue;
                }
                Deed::Gone(who) => {
                    for byte in &mut model {
                        byte.remove(&who);
                    }
                    waits.remove(&who);
                    locks.gone(who)
                }
            };
            for (who, _) in woken {
                let lock = waits.remove(&who).expect("whoever is woken has waited");
                for byte in lock.start..=lock.last {
                    model[byte as usize].insert(who, lock.kind);
                }
            }
            for (byte, holders) in model.iter().enumerate() {
                let exclusive = holders.values().filter(|kind| **kind == LockKind::Exclusive).count();
                prop_assert!(exclusive == 0 || holders.len() == 1, "byte {} has {:?}", byte, holders);
                for who in 0..4 {
                    let at = byte as u64;
                    let others = holders.iter().filter(|(holder, _)| **holder != who);
                    let may_share = others.clone().all(|(_, kind)| *kind == LockKind::Shared);
                    prop_assert_eq!(locks.conflict((), &shared(of(who), at, at)).is_none(), may_share);
                    prop_assert_eq!(
                        locks.conflict((), &exclusive_of(who, at)).is_none(),
                        others.count() == 0
                    );
                }
            }
            // Nobody waits without a reason.
            for lock in waits.values() {
                prop_assert!(locks.conflict((), lock).is_some());
            }
        }
    }
}

fn exclusive_of(who: u64, byte: u64) -> Lock {
    exclusive(owner(who, 1), byte, byte)
}
