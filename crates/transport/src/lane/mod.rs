//! Data lanes.
pub(crate) mod buffer;
pub(crate) mod connection;
pub(crate) mod frame;
pub(crate) mod mover;
pub(crate) mod record;
