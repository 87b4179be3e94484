use proptest::prelude::*;

use super::*;

fn any_request() -> impl Strategy<Value = wire::Request> {
    use wire::request::Body;
    let bytes = || prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        (prop::collection::vec(any::<u32>(), 0..8), ".{0,40}").prop_map(|(versions, build)| {
            Body::Hello(wire::Hello {
                versions,
                build,
                capabilities: vec![wire::Capability::Vcpus.into()],
            })
        }),
        Just(Body::GetState(wire::GetState {})),
        bytes().prop_map(|vcpus| Body::SetVcpus(wire::SetVcpus { vcpus })),
        (bytes(), any::<u32>())
            .prop_map(|(mac, count)| Body::SetQueues(wire::SetQueues { mac, count })),
        Just(Body::Restore(wire::Restore {})),
    ]
    .prop_map(|body| wire::Request { body: Some(body) })
}

/// Feeds `stream` in pieces whose sizes cycle through `pieces`.
fn decode_all(stream: &[u8], pieces: &[usize]) -> (Vec<Frame>, Option<FrameError>, usize) {
    let mut decoder = FrameDecoder::new();
    let (mut frames, mut held_max) = (Vec::new(), 0);
    let mut rest = stream;
    for &piece in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (mut input, tail) = rest.split_at(piece.clamp(1, rest.len()));
        rest = tail;
        while !input.is_empty() {
            match decoder.push(&mut input) {
                Ok(frame) => frames.extend(frame),
                Err(error) => return (frames, Some(error), held_max),
            }
            held_max = held_max.max(decoder.held.capacity());
        }
    }
    (frames, None, held_max)
}

proptest! {
    #[test]
    fn frames_round_trip_however_the_stream_is_split(
        requests in prop::collection::vec((any::<u32>(), any_request()), 1..6),
        pieces in prop::collection::vec(1_usize..64, 1..8),
    ) {
        let stream: Vec<u8> = requests
            .iter()
            .flat_map(|(id, request)| encode_request(*id, request).unwrap())
            .collect();
        let (frames, error, _) = decode_all(&stream, &pieces);
        prop_assert_eq!(error, None);
        prop_assert_eq!(frames.len(), requests.len());
        for (frame, (id, request)) in frames.iter().zip(&requests) {
            prop_assert_eq!(frame.kind, Kind::Request);
            prop_assert_eq!(frame.request_id, *id);
            prop_assert_eq!(&decode_payload::<wire::Request>(&frame.payload).unwrap(), request);
        }
    }

    #[test]
    fn a_corrupted_stream_never_panics_nor_holds_more_than_a_frame(
        requests in prop::collection::vec(any_request(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        pieces in prop::collection::vec(1_usize..64, 1..4),
    ) {
        let mut stream: Vec<u8> = requests
            .iter()
            .flat_map(|request| encode_request(1, request).unwrap())
            .collect();
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let (frames, _, held_max) = decode_all(&stream, &pieces);
        for frame in frames {
            let _ = decode_payload::<wire::Request>(&frame.payload);
            let _ = decode_payload::<wire::Reply>(&frame.payload);
        }
        prop_assert!(held_max <= 2 * (HEADER_BYTES + PAYLOAD_BYTES_MAX));
    }

    #[test]
    fn garbage_is_refused_at_its_first_wrong_byte(garbage in prop::collection::vec(any::<u8>(), 1..100)) {
        prop_assume!(garbage[0] != MAGIC[0]);
        let mut decoder = FrameDecoder::new();
        prop_assert_eq!(decoder.push(&mut &garbage[..1]), Err(FrameError::Magic));
        let good = encode_request(1, &wire::Request::default()).unwrap();
        prop_assert_eq!(decoder.push(&mut good.as_slice()), Err(FrameError::Magic), "failed stays failed");
    }

    #[test]
    fn memory_follows_what_arrived_not_what_was_announced(announced in 0_u32..=65536, arrived in 0_usize..64) {
        prop_assume!(arrived < announced as usize);
        let mut stream = header(VERSION, 2, announced);
        stream.extend(std::iter::repeat_n(0, arrived));
        let mut decoder = FrameDecoder::new();
        prop_assert_eq!(decoder.push(&mut stream.as_slice()), Ok(None));
        prop_assert!(decoder.held.capacity() <= 256);
    }

    #[test]
    fn other_versions_are_answerable(version in any::<u16>()) {
        prop_assume!(!VERSIONS.contains(&version));
        let outcome = FrameDecoder::new().push(&mut header(version, 77, u32::MAX).as_slice());
        prop_assert_eq!(outcome, Err(FrameError::Version { version, request_id: 7 }));
    }

    #[test]
    fn oversize_is_refused_by_its_header(bytes in 65537_u32..) {
        let outcome = FrameDecoder::new().push(&mut header(VERSION, 1, bytes).as_slice());
        prop_assert_eq!(outcome, Err(FrameError::Oversize { bytes: bytes as usize }));
    }
}

#[test]
fn an_oversize_message_is_not_sent() {
    let request = wire::Request {
        body: Some(wire::request::Body::SetVcpus(wire::SetVcpus {
            vcpus: vec![1; PAYLOAD_BYTES_MAX],
        })),
    };
    assert!(matches!(
        encode_request(1, &request),
        Err(FrameError::Oversize { .. })
    ));
}

#[test]
fn the_header_is_what_the_table_says() {
    let bytes = encode_reply(0x0403_0201, &wire::Reply::default()).unwrap();
    assert_eq!(
        bytes,
        b"OSTL\x01\x00\x02\x00\x01\x02\x03\x04\x00\x00\x00\x00"
    );
}

fn header(version: u16, kind: u16, payload_bytes: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(7_u32.to_le_bytes());
    bytes.extend(payload_bytes.to_le_bytes());
    bytes
}
