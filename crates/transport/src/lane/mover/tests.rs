//! Movers with a peer that does as it likes, or nothing.

use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::lane::buffer::checksum;
use crate::lane::frame::{FrameHeader, FrameKind, PieceFrame};
use crate::lane::record::{HEADER_BYTES, PLAINTEXT_MAX, TRAILER_BYTES};
use crate::limits::ACKS_WAITING_MAX;

/// Takes everything, and sends whatever is in its way.
pub(crate) struct Everything;

impl Pieces for Everything {
    fn fill(&self, _object: u64, _offset: u64, _into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        Ok(())
    }

    fn store(&self, _object: u64, _offset: u64, _data: &[u8], _checksum: u64) -> Stored {
        Stored::Kept
    }
}

/// A piece of one byte.
fn shortest_piece(number: u64) -> Vec<u8> {
    let piece = PieceFrame { piece: number, object: 0, offset: 0, checksum: checksum(&[7]), last: true };
    let header = FrameHeader { epoch: 0, kind: FrameKind::Piece(piece), length: 1 };
    [&header.encode()[..], &[7]].concat()
}

#[tokio::test]
async fn a_peer_that_does_not_read_answers_loses_its_lane() {
    let (near, far) = crate::secure::tests::pair().await;
    let (lanes, mut news) = Lanes::start(1, 1 << 20, Arc::new(Everything)).unwrap();
    // What the sockets hold comes on top of what the lane does.
    rustix::net::sockopt::set_socket_send_buffer_size(&far.tcp, 4096).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&near.tcp, 4096).unwrap();
    let (tcp, inbox) = (far.tcp.into_std().unwrap(), Inbox::new(&far.received));
    lanes.add(tcp, far.keys, inbox, Opening::Server { lane: 3 }).unwrap();
    let (mut peer, mut keys) = (near.tcp.into_std().unwrap(), near.keys);
    peer.set_nonblocking(false).unwrap();
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let mut number = 0;
        // Far more than may wait; it breaks off earlier.
        while number < 8 * ACKS_WAITING_MAX as u64 {
            let mut content = Vec::new();
            while content.len() < PLAINTEXT_MAX - 100 {
                content.extend(shortest_piece(number));
                number += 1;
            }
            let mut record = vec![0; HEADER_BYTES + content.len() + TRAILER_BYTES];
            record[HEADER_BYTES..][..content.len()].copy_from_slice(&content);
            keys.seal(&mut record);
            if peer.write_all(&record).is_err() {
                break;
            }
        }
        done.send(number).unwrap();
    });
    let lost = tokio::time::timeout(Duration::from_secs(60), news.recv()).await.expect("it is cut off");
    assert!(matches!(lost, Some(LaneNews::Lost(3, LaneEnd::Unread))), "{lost:?}");
    assert!(is_done.recv().unwrap() < 8 * ACKS_WAITING_MAX as u64);
    lanes.stop();
}

#[tokio::test]
async fn lanes_share_what_little_waits() {
    const LANES: u64 = 3;
    let (lanes, _news) = Lanes::start(1, 1 << 20, Arc::new(Everything)).unwrap();
    let mut peers = Vec::new();
    for lane in 0..LANES {
        let (near, far) = crate::secure::tests::pair().await;
        // One of them could take it all.
        rustix::net::sockopt::set_socket_send_buffer_size(&far.tcp, 1 << 20).unwrap();
        let (tcp, inbox) = (far.tcp.into_std().unwrap(), Inbox::new(&far.received));
        lanes.add(tcp, far.keys, inbox, Opening::Server { lane }).unwrap();
        peers.push(near);
    }
    let taken = async {
        for peer in &peers {
            peer.tcp.readable().await.unwrap(); // it has been welcomed
        }
        // One may have its turn twice before the others wake.
        let length = 2 * LANES * u64::from(crate::limits::PIECE_BYTES_MIN);
        lanes.push(Extent { object: 7, offset: 0, length, whole: false }).await;
        while lanes.scheduler().waiting_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), taken).await.expect("they take it");
    let idle: Vec<u64> = (0..LANES).filter(|lane| lanes.scheduler().lane_is_idle(*lane)).collect();
    assert_eq!(idle, [], "each carries some");
    lanes.stop();
}
