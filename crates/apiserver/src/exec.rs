//! `kubectl exec`: a command in a container, its streams over a websocket (`v5.channel.k8s.io` and `v4.channel.k8s.io`). What
//! runs the command is the node's business, as with logs.
//!
//! Left out: SPDY, which clients older than 1.31 speak; attach and port-forward.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::logs::LogError;
use crate::object::Object;
use crate::request::{Info, Query};
use crate::rest::{Answer, Switch};
use crate::server::Server;
use crate::status::{ApiError, Result};
use crate::websocket::{self, Message};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// From v5 on: the channel named by the next byte has ended.
const CLOSED: u8 = 255;

/// `PodExecOptions`, about a pod that is bound to `node`.
#[derive(Clone, Debug)]
pub struct ExecRequest {
    pub pod: Object,
    pub node: String,
    pub container: String,
    pub command: Vec<String>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Stdout,
    Stderr,
}

/// A command that runs. Dropping it ends the command.
pub struct Session {
    /// Dropped when the client has no more to say.
    pub input: Option<mpsc::Sender<Bytes>>,
    /// Columns and rows of the client's terminal.
    pub sizes: Option<mpsc::Sender<(u16, u16)>>,
    pub output: mpsc::Receiver<(Output, Bytes)>,
    /// With which code it ended, or why it could not begin.
    pub end: BoxFuture<'static, std::result::Result<i32, String>>,
}

pub trait ExecSource: Send + Sync {
    /// Whether the container is there to run something in.
    fn check(&self, request: &ExecRequest) -> std::result::Result<(), LogError>;
    fn exec(&self, request: ExecRequest) -> std::result::Result<Session, LogError>;
}

pub(crate) fn is_stream(info: &Info) -> bool {
    info.group.is_empty()
        && info.resource == "pods"
        && matches!(info.subresource.as_str(), "exec" | "attach" | "portforward")
}

impl Server {
    fn stored_pod(&self, namespace: &str, name: &str) -> Result<Object> {
        let catalog = self.catalog();
        let kind = catalog.find("", "v1", "pods").ok_or_else(ApiError::no_such_path)?;
        let entry = self.store().get(&kind.collection(), &crate::stored::key(namespace, name));
        let entry = entry.ok_or_else(|| ApiError::not_found(kind.resource(), name))?;
        kind.thaw(&entry).map_err(|e| ApiError::internal(e.to_string()))
    }

    pub(crate) fn stream(&self, mut parts: Parts, info: &Info, query: &Query) -> Result<Answer> {
        if info.subresource != "exec" {
            let what = if info.subresource == "attach" { "attaching to a process" } else { "forwarding a port" };
            let instead = if info.subresource == "attach" {
                "follow its output with kubectl logs -f, or start another process with kubectl exec"
            } else {
                "pods share this machine's network: connect to the port itself"
            };
            return Err(ApiError::bad_request(format!("{what} is not supported by usher; {instead}")));
        }
        let pod = self.stored_pod(&info.namespace, &info.name)?;
        let request = read_request(query, info, pod)?;
        let name = &info.name;
        let refused = |error| match error {
            LogError::Refused(why) => ApiError::bad_request(why),
            LogError::NoSuchNode => ApiError::unavailable(format!("the node of pod {name:?} cannot be reached")),
        };
        let source = self.exec_source().ok_or_else(|| refused(LogError::NoSuchNode))?;
        // Before anything is said about protocols: a client whose websocket was refused asks again by SPDY, and shows that answer.
        source.check(&request).map_err(refused)?;
        let accept = websocket::accept(&parts.headers);
        let (Some(accept), Some(upgrade)) = (accept, parts.extensions.remove::<OnUpgrade>()) else {
            return Err(ApiError::bad_request(
                "exec is spoken over websockets here, which needs HTTP/1.1 and kubectl 1.31 or later; SPDY is not supported",
            ));
        };
        let Some(protocol) = websocket::protocol(&parts.headers, &[V5, V4]) else {
            return Err(ApiError::bad_request(format!("exec is spoken in {V5} or {V4}; the client offers neither")));
        };
        let session = source.exec(request).map_err(refused)?;
        let mut closing = self.closing();
        tokio::spawn(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let talking = talk(TokioIo::new(upgraded), session);
            tokio::select! {
                ended = talking => if let Err(error) = ended { tracing::debug!(%error, "an exec session was cut off") },
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
        let mut answer = Answer::text(101, "");
        answer.switch = Some(Switch { accept, protocol });
        Ok(answer)
    }
}

fn read_request(query: &Query, info: &Info, pod: Object) -> Result<ExecRequest> {
    let name = &info.name;
    let flag = |key: &str| query.flag(key);
    let command: Vec<String> = query.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(ApiError::bad_request("you must specify at least one command for the container"));
    }
    if !(flag("stdin") || flag("stdout") || flag("stderr")) {
        return Err(ApiError::bad_request("you must specify at least one of stdin, stdout, stderr"));
    }
    let names = |list: &str| -> Vec<String> {
        let all = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|c| c.get("name").and_then(Value::as_str).map(str::to_owned)).collect()
    };
    let (main, init) = (names("containers"), names("initContainers"));
    let container = match query.get("container").unwrap_or("") {
        "" if main.len() == 1 => main[0].clone(),
        "" => {
            let choices = main.join(" ");
            return Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{choices}]"
            )));
        }
        wanted if main.iter().chain(&init).any(|c| c == wanted) => wanted.to_owned(),
        wanted => return Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}"))),
    };
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(ApiError::bad_request(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().to_owned();
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    Ok(ExecRequest {
        pod,
        node,
        container,
        command,
        stdin: flag("stdin"),
        stdout: flag("stdout"),
        // A terminal has one stream for both.
        stderr: flag("stderr") && !flag("tty"),
        tty: flag("tty"),
    })
}

/// Carries streams to and fro until the command has ended or the client has gone.
async fn talk<T: AsyncRead + AsyncWrite + Send + 'static>(io: T, session: Session) -> std::io::Result<()> {
    let (read, mut write) = tokio::io::split(io);
    let Session { input, sizes, mut output, mut end } = session;
    let (tell, mut pings) = mpsc::channel(8);
    let listening = tokio::spawn(listen(read, input, sizes, tell));
    let _stop = StopOnDrop(listening);
    // As upstream: an empty message tells the client that it is connected.
    websocket::write_channel(&mut write, STDOUT, &[]).await?;
    let (mut drained, mut result) = (false, None);
    while !drained || result.is_none() {
        tokio::select! {
            ping = pings.recv() => match ping {
                Some(data) => websocket::write_pong(&mut write, &data).await?,
                None => return Ok(()),
            },
            piece = output.recv(), if !drained => match piece {
                Some((Output::Stdout, data)) => websocket::write_channel(&mut write, STDOUT, &data).await?,
                Some((Output::Stderr, data)) => websocket::write_channel(&mut write, STDERR, &data).await?,
                None => drained = true,
            },
            ended = &mut end, if result.is_none() => result = Some(ended),
        }
    }
    let status = end_status(&result.unwrap_or(Ok(0)));
    websocket::write_channel(&mut write, ERROR, status.to_string().as_bytes()).await?;
    websocket::write_close(&mut write).await
}

struct StopOnDrop(tokio::task::JoinHandle<()>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the client says, until it goes: then the pings end.
async fn listen<R: AsyncRead + Unpin>(
    mut from: R,
    mut input: Option<mpsc::Sender<Bytes>>,
    sizes: Option<mpsc::Sender<(u16, u16)>>,
    pings: mpsc::Sender<Bytes>,
) {
    let mut partial = Vec::new();
    loop {
        match websocket::read(&mut from, &mut partial).await {
            Ok(Message::Ping(data)) => {
                if pings.send(data).await.is_err() {
                    return;
                }
            }
            Ok(Message::Pong) => {}
            Ok(Message::Data(data)) => match data.split_first() {
                Some((&STDIN, rest)) => {
                    // A command that does not read any longer is no reason to stop listening.
                    if let Some(input) = &input
                        && !rest.is_empty()
                    {
                        let _ = input.send(data.slice(1..)).await;
                    }
                }
                Some((&CLOSED, [STDIN])) => drop(input.take()),
                Some((&RESIZE, rest)) => {
                    let size: Value = serde_json::from_slice(rest).unwrap_or_default();
                    let side = |name: &str| size.get(name).and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok());
                    if let (Some(sizes), Some(width), Some(height)) = (&sizes, side("Width"), side("Height")) {
                        let _ = sizes.send((width, height)).await;
                    }
                }
                _ => {}
            },
            Ok(Message::Close) | Err(_) => return,
        }
    }
}

/// What the error channel says at the end, as kubelet words it.
fn end_status(result: &std::result::Result<i32, String>) -> Value {
    match result {
        Ok(0) => json!({"metadata": {}, "status": "Success"}),
        Ok(code) => json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}}),
        Err(why) => json!({"metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
            "message": format!("Internal error occurred: error executing command in container: {why}"),
            "details": {"causes": [{"message": format!("error executing command in container: {why}")}]}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str, status: &str) -> Result<ExecRequest> {
        let pod = json!({"spec": {"nodeName": "n", "containers": [{"name": "a"}]}, "status": {"phase": status}});
        read_request(&Query::parse(query), &Info { name: "p".into(), ..Info::default() }, pod)
    }

    #[test]
    fn a_request_says_what_to_run_and_where() {
        let request = read("command=sh&command=-c&stdin=true&stdout=true&stderr=true&tty=true", "Running").expect("ok");
        assert_eq!((request.command, request.container.as_str()), (vec!["sh".to_owned(), "-c".into()], "a"));
        assert!(request.stdin && request.stdout && request.tty && !request.stderr);
        for (query, phase, why) in [
            ("stdout=1", "Running", "you must specify at least one command for the container"),
            ("command=a", "Running", "you must specify at least one of stdin, stdout, stderr"),
            ("command=a&stdout=1&container=b", "Running", "container b is not valid for pod p"),
            (
                "command=a&stdout=1",
                "Failed",
                "cannot exec into a container in a completed pod; current phase is Failed",
            ),
        ] {
            assert_eq!(read(query, phase).expect_err("refused").message, why);
        }
    }

    #[test]
    fn the_end_tells_the_exit_code() {
        assert_eq!(end_status(&Ok(0))["status"], "Success");
        assert_eq!(end_status(&Ok(3))["details"]["causes"][0]["message"], "3");
        assert_eq!(end_status(&Err("no".into()))["code"], 500);
    }
}
