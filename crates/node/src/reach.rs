//! How the node itself reaches into a run of a container, for probes and hooks: commands in the container's own view of the
//! machine, TCP connections, HTTP and HTTPS requests and gRPC health checks to this machine.
//!
//! Says whether it worked and why not; what follows from that is decided elsewhere. Certificates are not verified, as
//! kubelet does not either.

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::launch::Kit;
use crate::record::Attempt;
use crate::{shim, tls};

/// Of a command's output, for its message.
const OUTPUT_BYTES: u64 = 10 * 1024;
const ANSWER_BYTES: u64 = 1024;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[derive(Clone)]
pub struct Reach {
    pub kit: Arc<Kit>,
    pub container: Container,
    pub run: Attempt,
}

impl Reach {
    /// Runs a command where the container runs: its user, its volumes, its environment.
    /// `place` keeps what it is told apart from other commands that run at the same time.
    pub async fn exec(&self, place: &str, command: &[String], timeout: Option<Duration>) -> Result<(), String> {
        let mut launch = self.run.launch().map_err(|e| e.to_string())?;
        launch.argv = command.to_vec();
        let place = Attempt::at(self.run.dir().join(place));
        place.create(&launch).map_err(|e| e.to_string())?;
        let (mut failure, failure_end) = std::io::pipe().map_err(|e| e.to_string())?;
        let mut enter = tokio::process::Command::new("/proc/self/exe");
        enter.arg0("usher").arg(shim::ENTER).arg(place.dir()).env_clear();
        enter.stdin(failure_end).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = enter.spawn().map_err(|e| e.to_string())?;
        drop(enter);
        let _kill = KillGroup::of(child.id());
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let text = async {
            let mut text = Vec::new();
            if let Some(out) = out {
                let _ = out.take(OUTPUT_BYTES).read_to_end(&mut text).await;
            }
            if let Some(err) = err {
                let _ = err.take(OUTPUT_BYTES).read_to_end(&mut text).await;
            }
            text
        };
        let ending = async { tokio::join!(text, child.wait()) };
        let (text, status) = match timeout {
            None => ending.await,
            Some(timeout) => match tokio::time::timeout(timeout, ending).await {
                Ok(ended) => ended,
                Err(_) => {
                    let secs = timeout.as_secs();
                    return Err(format!("command timed out: {:?} timed out after {secs}s", command.join(" ")));
                }
            },
        };
        if status.is_ok_and(|s| s.success()) {
            return Ok(());
        }
        let mut why = String::new();
        let _ = failure.read_to_string(&mut why);
        Err(if why.is_empty() { String::from_utf8_lossy(&text).into_owned() } else { why })
    }

    pub fn port(&self, wanted: &IntOrString) -> Result<u16, String> {
        let number = match wanted {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => {
                let ports = self.container.ports.as_deref().unwrap_or_default();
                let named = ports.iter().find(|p| p.name.as_ref() == Some(name)).map(|p| p.container_port);
                named.or_else(|| name.parse().ok())
            }
        };
        number.and_then(|n| u16::try_from(n).ok()).ok_or_else(|| format!("invalid port: {wanted:?}"))
    }

    /// At the pod's address, which is the machine's, or where only programs of the machine listen.
    pub async fn connect(&self, host: Option<&str>, port: u16) -> Result<TcpStream, String> {
        let ip = host.filter(|h| !h.is_empty()).unwrap_or(&self.kit.host.ip);
        match TcpStream::connect((ip, port)).await {
            Ok(stream) => Ok(stream),
            Err(error) => match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(stream) if host.is_none_or(str::is_empty) => Ok(stream),
                _ => Err(format!("dial tcp {ip}:{port}: {error}")),
            },
        }
    }

    /// The code of the answer to a GET.
    pub async fn http(&self, wanted: &HTTPGetAction, agent: &str) -> Result<u16, String> {
        let secure = wanted.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
        let scheme = if secure { "https" } else { "http" };
        let port = self.port(&wanted.port)?;
        let host = wanted.host.as_deref().filter(|h| !h.is_empty());
        let path = wanted.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
        let shown = host.unwrap_or(&self.kit.host.ip);
        let failed = |why: String| format!("Get \"{scheme}://{shown}:{port}{path}\": {why}");
        let plain = self.connect(host, port).await.map_err(failed)?;
        let mut stream: Box<dyn Stream> = match secure {
            true => Box::new(tls::connect(plain).await.map_err(|e| failed(e.to_string()))?),
            false => Box::new(plain),
        };
        let request = http_request(wanted, &format!("{shown}:{port}"), path, agent);
        stream.write_all(request.as_bytes()).await.map_err(|e| failed(e.to_string()))?;
        let mut answer = Vec::new();
        let mut limited = stream.take(ANSWER_BYTES);
        while !answer.contains(&b'\n') {
            if limited.read_buf(&mut answer).await.map_err(|e| failed(e.to_string()))? == 0 {
                break;
            }
        }
        status_code(&answer).ok_or_else(|| failed("malformed HTTP response".to_owned()))
    }

    /// Asks `grpc.health.v1.Health` how `service` is.
    pub async fn grpc(&self, port: i32, service: &str) -> Result<(), String> {
        let port = u16::try_from(port).map_err(|_| format!("invalid port: {port}"))?;
        let address = format!("{}:{port}", self.kit.host.ip);
        let failed = |why: String| format!("error: failed to connect service at {address:?}: {why}");
        let stream = self.connect(None, port).await.map_err(failed)?;
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut client, connection) = handshake.map_err(|e| failed(e.to_string()))?;
        let driving = tokio::spawn(connection);
        let answer = async {
            let request = http::Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("user-agent", "kube-probe/1.37")
                .body(Full::new(grpc_question(service)))
                .map_err(|e| e.to_string())?;
            let response = client.send_request(request).await.map_err(|e| e.to_string())?;
            let (head, body) = response.into_parts();
            let body = http_body_util::Limited::new(body, ANSWER_BYTES as usize).collect().await;
            let body = body.map_err(|e| e.to_string())?;
            let trailer = |name| {
                let of = |headers: &http::HeaderMap| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
                body.trailers().and_then(of).or_else(|| of(&head.headers)).unwrap_or_default()
            };
            let (code, message) = (trailer("grpc-status"), trailer("grpc-message"));
            Ok((code, message, body.to_bytes()))
        }
        .await;
        driving.abort();
        let (code, message, body) = answer.map_err(|e: String| format!("error: health rpc probe failed: {e}"))?;
        match code.as_str() {
            "0" => grpc_answer(&body),
            "12" => Err(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            )),
            code => Err(format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}")),
        }
    }
}

/// `HealthCheckRequest{service}` in a gRPC frame.
fn grpc_question(service: &str) -> Bytes {
    let service = &service.as_bytes()[..service.len().min(127)];
    let mut message = Vec::new();
    if !service.is_empty() {
        message.extend([0x0a, service.len() as u8]);
        message.extend(service);
    }
    let mut frame = vec![0];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message);
    frame.into()
}

/// `HealthCheckResponse{status}` in a gRPC frame: 1 is SERVING.
fn grpc_answer(frame: &[u8]) -> Result<(), String> {
    let status = match frame.get(5..) {
        Some([0x08, status, ..]) => *status,
        _ => 0,
    };
    let name = match status {
        1 => return Ok(()),
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNKNOWN",
    };
    Err(format!("service unhealthy (responded with {name:?})"))
}

/// Whatever a command left behind goes with it.
pub struct KillGroup(Option<Pid>);

impl KillGroup {
    pub fn of(leader: Option<u32>) -> KillGroup {
        KillGroup(leader.and_then(|pid| Pid::from_raw(pid as i32)))
    }
}

impl Drop for KillGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn http_request(wanted: &HTTPGetAction, authority: &str, path: &str, agent: &str) -> String {
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
    let headers = wanted.http_headers.as_deref().unwrap_or_default();
    let has = |name: &str| headers.iter().any(|h| h.name.eq_ignore_ascii_case(name));
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut text = format!("GET {slash}{} HTTP/1.1\r\n", clean(path).replace(' ', "%20"));
    for (name, value) in [("Host", authority), ("User-Agent", agent), ("Accept", "*/*")] {
        if !has(name) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    for header in headers {
        text.push_str(&format!("{}: {}\r\n", clean(&header.name), clean(&header.value)));
    }
    text.push_str("Connection: close\r\n\r\n");
    text
}

fn status_code(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer.split(|&b| b == b'\n').next()?).ok()?;
    let mut words = line.split_whitespace();
    words.next().filter(|w| w.starts_with("HTTP/"))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_answer_to_a_request_is_its_code() {
        assert_eq!(status_code(b"HTTP/1.1 204 No Content\r\nX: y\r\n"), Some(204));
        assert_eq!(status_code(b"SSH-2.0-x\r\n"), None);
        assert_eq!(status_code(b""), None);
    }

    #[test]
    fn headers_of_the_pods_author_cannot_smuggle_lines() {
        let wanted: HTTPGetAction =
            serde_json::from_value(json!({"port": 80, "httpHeaders": [{"name": "host", "value": "a\r\nX: 1"}]}))
                .unwrap();
        let text = http_request(&wanted, "1.2.3.4:80", "health", "kube-probe/1.37");
        assert!(text.starts_with("GET /health HTTP/1.1\r\n") && text.contains("host: aX: 1\r\n"), "{text}");
        assert!(!text.contains("1.2.3.4"), "{text}");
    }

    #[test]
    fn health_is_asked_and_told_in_protobuf() {
        assert_eq!(&grpc_question("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&grpc_question("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(grpc_answer(&[0, 0, 0, 0, 2, 8, 1]), Ok(()));
        let sick = "service unhealthy (responded with \"NOT_SERVING\")";
        assert_eq!(grpc_answer(&[0, 0, 0, 0, 2, 8, 2]).unwrap_err(), sick);
        assert!(grpc_answer(&[]).unwrap_err().contains("UNKNOWN"));
    }
}
