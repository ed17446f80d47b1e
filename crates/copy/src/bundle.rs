//! Small files travel together: one frame holds many. Pure.
//!
//! ```text
//! | file id (8) | length (4) | state (4) | bytes, `length` of them |   and so on, up to one frame
//! ```
//!
//! Little-endian. Lengths are fixed when the bundle is planned; a file that cannot be read as it was planned is said
//! to be so, and its place filled with zeros.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Before each file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireHead {
    file: U64,
    length: U32,
    state: U32,
}

/// Bytes before each file's own.
pub(crate) const HEAD_BYTES: usize = size_of::<WireHead>();

const WHOLE: u32 = 0;
const WITHDRAWN: u32 = 1;

/// One file of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bundled<'a> {
    /// Which file.
    pub(crate) file: u64,
    /// Its bytes; `None`: the sender could not read it.
    pub(crate) bytes: Option<&'a [u8]>,
}

/// Appends a file: `read` fills its bytes, or says that it cannot.
pub(crate) fn append(bundle: &mut Vec<u8>, file: u64, length: u32, read: impl FnOnce(&mut [u8]) -> bool) {
    let head_at = bundle.len();
    bundle.resize(head_at + HEAD_BYTES + length as usize, 0);
    let (head, bytes) = bundle[head_at..].split_at_mut(HEAD_BYTES);
    let whole = read(bytes);
    if !whole {
        bytes.fill(0);
    }
    let state = if whole { WHOLE } else { WITHDRAWN };
    head.copy_from_slice(
        WireHead { file: file.into(), length: length.into(), state: state.into() }.as_bytes(),
    );
}

/// The files of a bundle, up to the first that cannot be understood, which is an error.
pub(crate) fn files(mut bundle: &[u8]) -> impl Iterator<Item = Result<Bundled<'_>, BadBundle>> {
    std::iter::from_fn(move || {
        if bundle.is_empty() {
            return None;
        }
        let parsed = WireHead::read_from_prefix(bundle).ok().and_then(|(head, rest)| {
            let (bytes, rest) = rest.split_at_checked(head.length.get() as usize)?;
            let bytes = (head.state.get() == WHOLE).then_some(bytes);
            Some((Bundled { file: head.file.get(), bytes }, rest))
        });
        bundle = parsed.map_or(&[], |(_, rest)| rest);
        Some(parsed.map(|(file, _)| file).ok_or(BadBundle))
    })
}

/// A bundle that ends within a file, or is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a bundle of small files cannot be understood")]
pub(crate) struct BadBundle;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bundles_round_trip(contents in prop::collection::vec((any::<u64>(), prop::option::of(prop::collection::vec(any::<u8>(), 0..50))), 0..20)) {
            let mut bundle = Vec::new();
            for (id, bytes) in &contents {
                let length = bytes.as_ref().map_or(7, Vec::len) as u32;
                append(&mut bundle, *id, length, |place| match bytes {
                    Some(bytes) => { place.copy_from_slice(bytes); true }
                    None => { place.fill(9); false }
                });
            }
            let back: Vec<_> = files(&bundle).map(|f| f.unwrap()).map(|f| (f.file, f.bytes.map(<[u8]>::to_vec))).collect();
            prop_assert_eq!(back, contents);
            if bundle.len() > 1 {
                prop_assert!(files(&bundle[..bundle.len() - 1]).any(|f| f == Err(BadBundle)) || bundle.is_empty());
            }
        }

        #[test]
        fn any_bytes_are_files_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(files(&bytes).count() <= bytes.len());
        }
    }
}
