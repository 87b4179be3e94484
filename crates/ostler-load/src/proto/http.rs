//! HTTP/1.1 gets over persistent connections.
//!
//! Of RFC 9112 it reads what a server may answer to a GET: interim (1xx) replies, bodies by `Content-Length` and by chunks, none for 204
//! and 304, `Connection: close`. A body that ends with the connection has no length to check, so such a reply is held to be broken.

use rand::Rng;

use super::{Line, Protocol, Reply, decimal};
use crate::error::LoadError;
use crate::ledger::Outcome;
use crate::schedule::unit;

/// More different paths than this would only cost memory.
const PATHS_MAX: usize = 100_000;
/// Longer header lines are cut; only short ones matter to us.
const LINE_BYTES_MAX: usize = 256;
/// A reply with more header lines than this is held to be broken.
const HEADER_LINES_MAX: u32 = 256;

/// Gets of one or several paths.
#[derive(Debug, Clone)]
pub struct Http {
    requests: std::sync::Arc<Vec<Vec<u8>>>,
    body_bytes: Option<u64>,
}

impl Http {
    /// Gets of `template`, in which `{}` stands for a number below `paths`; a reply whose body is not `body_bytes` long is an error.
    pub fn new(
        host: &str,
        template: &str,
        paths: usize,
        body_bytes: Option<u64>,
    ) -> Result<Self, LoadError> {
        if !(1..=PATHS_MAX).contains(&paths) {
            return Err(LoadError::Setting {
                name: "paths",
                value: paths.to_string(),
                why: "must be 1 to 100000",
            });
        }
        let bad = |c: char| c.is_whitespace() || c.is_control();
        if !template.starts_with('/') || template.contains(bad) {
            return Err(LoadError::Setting {
                name: "path",
                value: template.to_owned(),
                why: "must start with / and hold no white space",
            });
        }
        if paths > 1 && !template.contains("{}") {
            return Err(LoadError::Setting {
                name: "path",
                value: template.to_owned(),
                why: "must hold {} for the number when there is more than one path",
            });
        }
        let request = |number: usize| {
            let path = template.replace("{}", &number.to_string());
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: ostler-load\r\nAccept: */*\r\n\r\n").into_bytes()
        };
        Ok(Self {
            requests: std::sync::Arc::new((0..paths).map(request).collect()),
            body_bytes,
        })
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Status,
    Headers,
    Body {
        left: u64,
    },
    ChunkSize,
    ChunkData {
        /// Its line end included.
        left: u64,
    },
    Trailers,
}

/// How far a reply has been read.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    line: Line<LINE_BYTES_MAX>,
    lines: u32,
    status: u16,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    body_bytes: u64,
}

impl Protocol for Http {
    type Request = u32;
    type Parser = Parser;

    fn draw(&self, rng: &mut impl Rng) -> u32 {
        let paths = self.requests.len();
        // `unit` is above 0 and at most 1, so this is a number below `paths`.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let number = ((1.0 - unit(rng)) * paths as f64) as u32;
        number
    }

    fn encode(&self, request: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.requests[request as usize]);
    }

    fn parse(&self, parser: &mut Parser, _: u32, bytes: &[u8]) -> (usize, Reply) {
        let mut used = 0;
        while used < bytes.len() {
            if let State::Body { left } | State::ChunkData { left } = &mut parser.state {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len() - used);
                used += taken;
                *left -= taken as u64;
                if *left > 0 {
                    continue;
                }
                if matches!(parser.state, State::Body { .. }) {
                    return (used, self.complete(parser));
                }
                parser.state = State::ChunkSize;
                continue;
            }
            let (taken, whole) = parser.line.gather(&bytes[used..]);
            used += taken;
            if !whole {
                continue;
            }
            parser.lines += 1;
            let verdict = self.line_read(parser);
            parser.line.clear();
            match verdict {
                Ok(false) if parser.lines > HEADER_LINES_MAX && !parser.chunked => {
                    return (used, Reply::Broken);
                }
                Ok(false) => {}
                Ok(true) => return (used, self.complete(parser)),
                Err(()) => return (used, Reply::Broken),
            }
        }
        (used, Reply::Incomplete)
    }
}

impl Http {
    fn complete(&self, parser: &mut Parser) -> Reply {
        let good = (200..300).contains(&parser.status)
            && self.body_bytes.is_none_or(|n| n == parser.body_bytes);
        let close = parser.close;
        *parser = Parser::default();
        let outcome = if good { Outcome::Done } else { Outcome::Error };
        if close {
            Reply::Last(outcome)
        } else {
            Reply::Complete(outcome)
        }
    }

    /// Takes in a whole line: `true` ends the reply, an error makes it unreadable.
    #[allow(clippy::unused_self)]
    fn line_read(&self, parser: &mut Parser) -> Result<bool, ()> {
        match parser.state {
            State::Status => {
                let line = parser.line.text().unwrap_or(&parser.line.bytes);
                let rest = line.strip_prefix(b"HTTP/1.").ok_or(())?;
                let digits = rest.get(2..5).ok_or(())?;
                // HTTP/1.0 closes unless told otherwise, and nobody told it.
                parser.close = rest[0] == b'0';
                parser.status = decimal(digits).ok_or(())?;
                parser.state = State::Headers;
                Ok(false)
            }
            State::Headers => {
                // A line too long to keep is none of those that matter.
                let Some(line) = parser.line.text() else {
                    return Ok(false);
                };
                if line.is_empty() {
                    return end_of_headers(parser);
                }
                let colon = line.iter().position(|&b| b == b':').ok_or(())?;
                let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
                if name.eq_ignore_ascii_case(b"content-length") {
                    parser.length = Some(decimal(value).ok_or(())?);
                } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                    parser.chunked = value.eq_ignore_ascii_case(b"chunked");
                } else if name.eq_ignore_ascii_case(b"connection") {
                    parser.close |= value.eq_ignore_ascii_case(b"close");
                }
                Ok(false)
            }
            State::ChunkSize => {
                let line = parser.line.text().ok_or(())?;
                let size = line
                    .split(|&b| b == b';')
                    .next()
                    .unwrap_or_default()
                    .trim_ascii();
                let size = std::str::from_utf8(size).map_err(drop)?;
                let size = u64::from(u32::from_str_radix(size, 16).map_err(drop)?);
                parser.body_bytes += size;
                parser.state = if size == 0 {
                    State::Trailers
                } else {
                    State::ChunkData { left: size + 2 }
                };
                Ok(false)
            }
            State::Trailers => Ok(parser.line.text().is_some_and(<[u8]>::is_empty)),
            State::Body { .. } | State::ChunkData { .. } => Err(()),
        }
    }
}

fn end_of_headers(parser: &mut Parser) -> Result<bool, ()> {
    if (100..200).contains(&parser.status) {
        *parser = Parser {
            close: false,
            ..Parser::default()
        };
        return Ok(false);
    }
    if matches!(parser.status, 204 | 304) {
        return Ok(true);
    }
    if parser.chunked {
        parser.state = State::ChunkSize;
        return Ok(false);
    }
    let left = parser.length.ok_or(())?;
    parser.body_bytes = left;
    parser.state = State::Body { left };
    Ok(left == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed(http: &Http, bytes: &[u8], cuts: &[usize]) -> Vec<Reply> {
        let mut parser = Parser::default();
        let mut replies = Vec::new();
        let mut cuts = cuts.iter().copied().cycle();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (mut piece, after) = rest.split_at(cuts.next().unwrap_or(1).clamp(1, rest.len()));
            while !piece.is_empty() {
                let (used, reply) = http.parse(&mut parser, 0, piece);
                assert!(used > 0, "no progress");
                piece = &piece[used..];
                match reply {
                    Reply::Incomplete => assert!(piece.is_empty()),
                    Reply::Complete(_) => replies.push(reply),
                    Reply::Last(_) | Reply::Broken => {
                        replies.push(reply);
                        return replies;
                    }
                }
            }
            rest = after;
        }
        replies
    }

    const DONE: Reply = Reply::Complete(Outcome::Done);
    const FAILED: Reply = Reply::Complete(Outcome::Error);

    proptest! {
        #[test]
        fn replies_are_the_same_however_they_are_cut(
            kinds in prop::collection::vec((0..6_u8, 0..400_usize), 1..10),
            cuts in prop::collection::vec(1..40_usize, 1..30),
        ) {
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for (kind, size) in kinds {
                let body = "\r\n".repeat(size / 2);
                let (reply, outcome) = match kind {
                    0 => ("HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n".to_owned(), DONE),
                    1 => (format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{body}", body.len()), FAILED),
                    2 => (format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length:{}\r\n\r\n{body}", body.len()), DONE),
                    3 => (format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 0\r\n\r\n", "y".repeat(size)), DONE),
                    4 if !body.is_empty() => (
                        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n{:x};a=b\r\n{body}\r\n1\r\nz\r\n0\r\nT: 1\r\n\r\n", body.len()), DONE),
                    _ => (format!("HTTP/1.1 200 OK\nContent-Length: {}\n\n{body}", body.len()), DONE),
                };
                bytes.extend(reply.into_bytes());
                expected.push(outcome);
            }
            let http = Http::new("h", "/", 1, None).unwrap();
            prop_assert_eq!(feed(&http, &bytes, &cuts), expected);
        }

        #[test]
        fn random_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..500),
            prefix in prop::sample::select(vec!["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]),
            cuts in prop::collection::vec(1..9_usize, 1..9),
        ) {
            feed(&Http::new("h", "/", 1, None).unwrap(), &[prefix.as_bytes(), &bytes].concat(), &cuts);
        }
    }

    #[test]
    fn what_cannot_be_delimited_or_closes_is_told_apart() {
        let http = Http::new("h", "/", 1, Some(3)).unwrap();
        assert_eq!(
            feed(&http, b"HTTP/1.1 200 OK\r\n\r\nabc", &[100]),
            [Reply::Broken]
        );
        let close = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(feed(&http, close, &[4]), [Reply::Last(Outcome::Done)]);
        let wrong_length = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab";
        assert_eq!(feed(&http, wrong_length, &[4]), [FAILED]);
    }

    #[test]
    fn paths_are_numbered_and_refused_when_unsafe() {
        let http = Http::new("10.0.0.2:80", "/f{}.html", 3, None).unwrap();
        let mut out = Vec::new();
        http.encode(2, &mut out);
        assert!(out.starts_with(b"GET /f2.html HTTP/1.1\r\nHost: 10.0.0.2:80\r\n"));
        for (path, paths) in [
            ("f", 1),
            ("/a b", 1),
            ("/a\r\nX: y", 1),
            ("/f", 2),
            ("/{}", 0),
        ] {
            assert!(Http::new("h", path, paths, None).is_err(), "{path} {paths}");
        }
    }
}
