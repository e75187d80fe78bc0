//! The server's half of RFC 6455, as far as `kubectl exec` needs it: the handshake, and messages either way. No extensions.

use std::io;

use base64::Engine;
use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Longer than any piece that clients send; what is longer is refused rather than held in memory.
const MAX_MESSAGE_BYTES: u64 = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn read(bits: u8) -> io::Result<Opcode> {
        let all = [Opcode::Continuation, Opcode::Text, Opcode::Binary, Opcode::Close, Opcode::Ping, Opcode::Pong];
        all.into_iter().find(|code| *code as u8 == bits).ok_or_else(|| wrong("an unknown kind of frame"))
    }
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Data(Bytes),
    Ping(Bytes),
    Pong,
    Close,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// What a client that wants to speak websocket is answered, in `Sec-WebSocket-Accept`; `None` for others.
pub fn accept(headers: &HeaderMap) -> Option<String> {
    let has = |name: &str, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case(word))
    };
    if !has("upgrade", "websocket") || !has("connection", "upgrade") || !has("sec-websocket-version", "13") {
        return None;
    }
    let key = headers.get("sec-websocket-key")?.to_str().ok()?;
    // Not for secrecy: the standard wants this very digest.
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    Some(base64::engine::general_purpose::STANDARD.encode(digest))
}

/// The first of `known` that the client offers.
pub fn protocol<'a>(headers: &HeaderMap, known: &[&'a str]) -> Option<&'a str> {
    let values = headers.get_all("sec-websocket-protocol").iter().filter_map(|v| v.to_str().ok());
    let offered: Vec<&str> = values.flat_map(|v| v.split(',')).map(str::trim).collect();
    known.iter().copied().find(|name| offered.contains(name))
}

/// The next message, put together from its frames. Control frames come between them.
pub async fn read<R: AsyncRead + Unpin>(from: &mut R, partial: &mut Vec<u8>) -> io::Result<Message> {
    loop {
        let head = [from.read_u8().await?, from.read_u8().await?];
        let (last, opcode) = (head[0] & 0x80 != 0, Opcode::read(head[0] & 0x0f)?);
        if head[0] & 0x70 != 0 {
            return Err(wrong("an extension that was not agreed on"));
        }
        if head[1] & 0x80 == 0 {
            return Err(wrong("a client's frame without a mask"));
        }
        let length = match head[1] & 0x7f {
            126 => u64::from(from.read_u16().await?),
            127 => from.read_u64().await?,
            short => u64::from(short),
        };
        let control = matches!(opcode, Opcode::Close | Opcode::Ping | Opcode::Pong);
        let before = if control { 0 } else { partial.len() as u64 };
        if length > MAX_MESSAGE_BYTES - before || (control && (length > 125 || !last)) {
            return Err(wrong("a message that is too long"));
        }
        let mut mask = [0; 4];
        from.read_exact(&mut mask).await?;
        let mut payload = vec![0; length as usize];
        from.read_exact(&mut payload).await?;
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        match opcode {
            Opcode::Close => return Ok(Message::Close),
            Opcode::Ping => return Ok(Message::Ping(payload.into())),
            Opcode::Pong => return Ok(Message::Pong),
            Opcode::Continuation | Opcode::Text | Opcode::Binary => {
                partial.extend(payload);
                if last {
                    return Ok(Message::Data(std::mem::take(partial).into()));
                }
            }
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(to: &mut W, opcode: Opcode, parts: [&[u8]; 2]) -> io::Result<()> {
    let length = parts[0].len() + parts[1].len();
    let mut frame = vec![0x80 | opcode as u8];
    match length {
        0..=125 => frame.push(length as u8),
        126..=0xffff => {
            frame.push(126);
            frame.extend((length as u16).to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    to.write_all(&frame).await?;
    to.flush().await
}

/// A message of one of Kubernetes' channels: its number, and what is said there.
pub async fn write_channel<W: AsyncWrite + Unpin>(to: &mut W, channel: u8, data: &[u8]) -> io::Result<()> {
    write(to, Opcode::Binary, [&[channel], data]).await
}

pub async fn write_pong<W: AsyncWrite + Unpin>(to: &mut W, data: &[u8]) -> io::Result<()> {
    write(to, Opcode::Pong, [data, &[]]).await
}

/// A normal end: 1000.
pub async fn write_close<W: AsyncWrite + Unpin>(to: &mut W) -> io::Result<()> {
    write(to, Opcode::Close, [&1000u16.to_be_bytes(), &[]]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first, 0x80 | payload.len() as u8];
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    async fn all(bytes: Vec<u8>) -> (Vec<Message>, io::Error) {
        let (mut from, mut partial, mut messages) = (&bytes[..], Vec::new(), Vec::new());
        loop {
            match read(&mut from, &mut partial).await {
                Ok(message) => messages.push(message),
                Err(error) => return (messages, error),
            }
        }
    }

    #[test]
    fn the_handshake_is_the_one_of_the_standard() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade")] {
            headers.insert(name, value.parse().unwrap());
        }
        headers.insert("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
        assert_eq!(accept(&headers), None, "without a version");
        headers.insert("sec-websocket-version", "13".parse().unwrap());
        assert_eq!(accept(&headers).as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        headers.insert("sec-websocket-protocol", "a, v4.channel.k8s.io".parse().unwrap());
        assert_eq!(protocol(&headers, &["v5.channel.k8s.io", "v4.channel.k8s.io"]), Some("v4.channel.k8s.io"));
    }

    #[tokio::test]
    async fn messages_are_put_together_and_pings_come_between() {
        let mut bytes = masked(0x02, b"ab");
        bytes.extend(masked(0x89, b"?"));
        bytes.extend(masked(0x80, b"cd"));
        bytes.extend(masked(0x88, &[]));
        let (messages, end) = all(bytes).await;
        let expected = [Message::Ping("?".into()), Message::Data("abcd".into()), Message::Close];
        assert_eq!((messages.as_slice(), end.kind()), (&expected[..], io::ErrorKind::UnexpectedEof));
    }

    #[tokio::test]
    async fn hostile_frames_end_the_conversation() {
        let huge = [&[0x82, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
        for bytes in [vec![0x82, 1, b'a'], huge, masked(0x83, b""), masked(0xc2, b""), masked(0x09, b"")] {
            let (messages, error) = all(bytes.clone()).await;
            assert_eq!((messages.len(), error.kind()), (0, io::ErrorKind::InvalidData), "{bytes:?}");
        }
    }
}
