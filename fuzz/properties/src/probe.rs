//! What the ends of a measurement tell each other, and the packets of its streams.

use longhaul_probe::fuzzing;

use crate::assert_stable;
use crate::script::Script;

/// Parameters and results as iperf3 sends them: what is understood means the same when it is written again, and results are of
/// as many streams as the test had.
pub fn iperf3_messages(data: &[u8]) {
    assert_stable(data, fuzzing::parameters);
    for streams in 0..3 {
        assert_stable(data, |bytes| fuzzing::results(bytes, streams));
    }
}

/// Packets of a UDP stream: no more are lost than were sent, and no more bytes come out than went in.
pub fn udp_packets(data: &[u8]) {
    let mut script = Script::new(data);
    let wide = script.u8() % 2 == 1;
    let length = usize::from(script.u8()).max(1);
    let packets = script.rest();
    let (sent, lost, bytes) = fuzzing::packets(packets.chunks(length), wide);
    assert!(u64::try_from(lost).is_ok_and(|lost| lost <= sent), "{lost} of {sent} are lost");
    assert!(bytes <= packets.len() as u64);
}

/// What is said about tests of a path, and how flows prove themselves: what is understood means the same when it is written again,
/// and of an answer no more is taken than the test has flows, or a host settings. What a server says of its disk is a figure, or short;
/// of its host it has so many findings at the most, each of them short.
pub fn path_messages(data: &[u8]) {
    assert_stable(data, fuzzing::path_request);
    assert_stable(data, fuzzing::knock);
    for flows in 0..3 {
        assert_stable(data, |bytes| fuzzing::path_answer(bytes, flows).map(|(again, _)| again));
        let taken = fuzzing::path_answer(data, flows).map_or(0, |(_, taken)| taken);
        assert!(taken <= longhaul_probe::limits::PATH_SETTINGS_MAX.max(flows));
    }
    match fuzzing::disk_answer(data) {
        Some(Ok(rates)) => assert!(rates.into_iter().all(|rate| rate.is_finite() && rate > 0.0), "{rates:?}"),
        Some(Err(letters)) => assert!(letters <= longhaul_probe::limits::WORDS_BYTES_MAX),
        None => {}
    }
    if let Some((findings, letters)) = fuzzing::findings_answer(data) {
        assert!(findings <= longhaul_probe::limits::FINDINGS_MAX);
        assert!(letters <= longhaul_probe::limits::FINDING_LETTERS_MAX);
    }
}
