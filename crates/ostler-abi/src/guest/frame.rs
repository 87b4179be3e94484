//! The frames messages travel in, and a codec for them that does no IO.
//!
//! ```text
//! offset  size  field          (integers are little-endian)
//!      0     4  magic          "OSTL"
//!      4     2  version        of the payload's protocol
//!      6     2  kind           1 request, 2 reply
//!      8     4  request id     chosen by the host, repeated in the reply
//!     12     4  payload bytes  at most 65536
//!     16        payload        one protobuf message
//! ```
//!
//! The header's layout is frozen over all versions, so that a side can always answer a version it doesn't speak, by
//! the request's id, with those it does.
//!
//! A stream is only readable from its start: once a header is wrong nothing after it means anything. So a decoder that has
//! failed stays failed, and its connection is to be closed.

use prost::Message;
use thiserror::Error;

use super::wire;

/// The version this build speaks.
pub const VERSION: u16 = 1;

/// All versions this build speaks.
pub const VERSIONS: &[u16] = &[VERSION];

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 16;

/// The largest payload.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1024;

const MAGIC: [u8; 4] = *b"OSTL";

/// Which half of an exchange a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the host.
    Request,
    /// From the guest.
    Reply,
}

impl Kind {
    fn to_code(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
        }
    }
}

/// One whole frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Which half of an exchange it is.
    pub kind: Kind,
    /// The exchange it belongs to.
    pub request_id: u32,
    /// An encoded [`wire::Request`] or [`wire::Reply`].
    pub payload: Vec<u8>,
}

/// Why a stream can't be read on, or a message can't be sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The bytes aren't ours.
    #[error(
        "the stream doesn't start a frame where one is due; something else speaks on this port"
    )]
    Magic,
    /// A version this build doesn't speak.
    #[error(
        "frame of protocol version {version}; this build speaks {VERSIONS:?}: update the older side"
    )]
    Version {
        /// The version met.
        version: u16,
        /// The exchange it belongs to, so that it can be answered.
        request_id: u32,
    },
    /// Neither request nor reply.
    #[error("frame of unknown kind {kind}")]
    Kind {
        /// The code met.
        kind: u16,
    },
    /// Too long.
    #[error(
        "a payload of {bytes} bytes was announced or offered; the limit is {PAYLOAD_BYTES_MAX}"
    )]
    Oversize {
        /// The size met.
        bytes: usize,
    },
    /// The payload isn't the message it should be.
    #[error("the payload isn't a valid message: {text}")]
    Payload {
        /// What the protobuf decoder said.
        text: String,
    },
}

/// Puts frames together from pieces of a stream.
///
/// It holds at most one frame, and grows only as bytes arrive.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    held: Vec<u8>,
    failed: Option<FrameError>,
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes from the front of `input` up to the end of the current frame, and returns the frame if that completed it.
    /// Call it until `input` is empty; what it leaves belongs to the next frame.
    pub fn push(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.advance(input).inspect_err(|error| {
            self.failed = Some(error.clone());
            self.held = Vec::new();
        })
    }

    /// How many bytes of an unfinished frame are held.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        self.take(input, HEADER_BYTES);
        // A wrong first byte is refused at once: waiting for a header would let whoever speaks something else hold the line.
        let magic_bytes = self.held.len().min(MAGIC.len());
        if self.held[..magic_bytes] != MAGIC[..magic_bytes] {
            return Err(FrameError::Magic);
        }
        let Some(header) = self.held.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (kind, request_id, payload_bytes) = read_header(header)?;
        self.take(input, HEADER_BYTES + payload_bytes);
        if self.held.len() < HEADER_BYTES + payload_bytes {
            return Ok(None);
        }
        let payload = self.held.split_off(HEADER_BYTES);
        self.held.clear();
        Ok(Some(Frame {
            kind,
            request_id,
            payload,
        }))
    }

    /// Moves bytes from `input` until `want` are held.
    fn take(&mut self, input: &mut &[u8], want: usize) {
        let count = want.saturating_sub(self.held.len()).min(input.len());
        let (taken, rest) = input.split_at(count);
        self.held.extend_from_slice(taken);
        *input = rest;
    }
}

fn read_header(header: &[u8; HEADER_BYTES]) -> Result<(Kind, u32, usize), FrameError> {
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let long = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (version, kind, request_id) = (short(4), short(6), long(8));
    if !VERSIONS.contains(&version) {
        return Err(FrameError::Version {
            version,
            request_id,
        });
    }
    let kind = match kind {
        1 => Kind::Request,
        2 => Kind::Reply,
        _ => return Err(FrameError::Kind { kind }),
    };
    let bytes = usize::try_from(long(12)).unwrap_or(usize::MAX);
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(FrameError::Oversize { bytes });
    }
    Ok((kind, request_id, bytes))
}

/// The bytes of a frame that carries `request`.
pub fn encode_request(request_id: u32, request: &wire::Request) -> Result<Vec<u8>, FrameError> {
    encode(Kind::Request, request_id, request)
}

/// The bytes of a frame that carries `reply`.
pub fn encode_reply(request_id: u32, reply: &wire::Reply) -> Result<Vec<u8>, FrameError> {
    encode(Kind::Reply, request_id, reply)
}

fn encode(kind: Kind, request_id: u32, message: &impl Message) -> Result<Vec<u8>, FrameError> {
    let bytes = message.encoded_len();
    let length = u32::try_from(bytes)
        .ok()
        .filter(|_| bytes <= PAYLOAD_BYTES_MAX)
        .ok_or(FrameError::Oversize { bytes })?;
    let mut out = Vec::with_capacity(HEADER_BYTES + bytes);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&kind.to_code().to_le_bytes());
    out.extend_from_slice(&request_id.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    message
        .encode(&mut out)
        .expect("a Vec grows to whatever encoded_len promised");
    Ok(out)
}

/// Reads a payload as `M`.
pub fn decode_payload<M: Message + Default>(payload: &[u8]) -> Result<M, FrameError> {
    M::decode(payload).map_err(|error| FrameError::Payload {
        text: super::bounded_text(&error.to_string()),
    })
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
