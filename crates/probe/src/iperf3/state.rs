//! The bytes by which both ends say where a test is.

/// A state, or an order to go there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Server: streams are open.
    TestStart,
    /// Server: traffic begins.
    TestRunning,
    /// Client: traffic is over.
    TestEnd,
    /// Server: it wants the parameters.
    ParamExchange,
    /// Server: it waits for the streams.
    CreateStreams,
    /// Server: it gives up.
    ServerTerminate,
    /// Client: it gives up.
    ClientTerminate,
    /// Server: it wants the client's results, and sends its own.
    ExchangeResults,
    /// Server: it has nothing more to say.
    DisplayResults,
    /// Client: goodbye.
    Done,
    /// Server: another test is running.
    AccessDenied,
    /// Server: two numbers follow that say what went wrong.
    ServerError,
}

const CODES: [(State, u8); 12] = [
    (State::TestStart, 1),
    (State::TestRunning, 2),
    (State::TestEnd, 4),
    (State::ParamExchange, 9),
    (State::CreateStreams, 10),
    (State::ServerTerminate, 11),
    (State::ClientTerminate, 12),
    (State::ExchangeResults, 13),
    (State::DisplayResults, 14),
    (State::Done, 16),
    (State::AccessDenied, 0xff),
    (State::ServerError, 0xfe),
];

impl State {
    /// Its byte.
    #[must_use]
    pub fn code(self) -> u8 {
        CODES.iter().find(|(state, _)| *state == self).map_or(0, |(_, code)| *code)
    }

    /// The state of a byte.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        CODES.iter().find(|(_, its)| *its == code).map(|(state, _)| *state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_one_byte() {
        for (state, code) in CODES {
            assert_eq!((state.code(), State::from_code(code)), (code, Some(state)));
        }
        assert_eq!((0..=255).filter_map(State::from_code).count(), CODES.len());
    }
}
