//! Probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use usher_schema::field::Errors;

use super::validate::Shared;
use crate::registry::kinds::at::At;
use crate::registry::kinds::common::{each_invalid, list, not_negative, one_of, text};
use crate::registry::names;

const SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// A container's hooks and probes.
pub fn validate_all(container: &Container, shared: &Shared, at: &At, errors: &mut Errors) {
    if let Some(lifecycle) = &container.lifecycle {
        validate_lifecycle(lifecycle, shared, &at.child("lifecycle"), errors);
    }
    if let Some(probe) = &container.liveness_probe {
        validate_once(probe, &at.child("livenessProbe"), errors);
    }
    if let Some(probe) = &container.readiness_probe {
        let at = at.child("readinessProbe");
        validate_probe(probe, &at, errors);
        if let Some(secs) = probe.termination_grace_period_seconds {
            let detail = "must not be set for readinessProbes";
            errors.invalid(&at.child("terminationGracePeriodSeconds").path(), secs, detail);
        }
    }
    if let Some(probe) = &container.startup_probe {
        validate_once(probe, &at.child("startupProbe"), errors);
    }
}

/// A probe whose first success decides.
fn validate_once(probe: &Probe, at: &At, errors: &mut Errors) {
    validate_probe(probe, at, errors);
    let threshold = probe.success_threshold.unwrap_or(0);
    if threshold != 1 {
        errors.invalid(&at.child("successThreshold").path(), threshold, "must be 1");
    }
}

fn validate_probe(probe: &Probe, at: &At, errors: &mut Errors) {
    let handler = Handler {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    handler.validate(None, at, errors);
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        not_negative(value.unwrap_or(0), &at.child(field), errors);
    }
    if let Some(secs) = probe.termination_grace_period_seconds.filter(|secs| *secs <= 0) {
        errors.invalid(&at.child("terminationGracePeriodSeconds").path(), secs, "must be greater than 0");
    }
}

fn validate_lifecycle(lifecycle: &Lifecycle, shared: &Shared, at: &At, errors: &mut Errors) {
    for (field, handler) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        if let Some(handler) = handler {
            Handler::from(handler).validate(shared.grace_secs, &at.child(field), errors);
        }
    }
    if let Some(signal) = &lifecycle.stop_signal {
        let at = at.child("stopSignal");
        match shared.os {
            "" => errors.forbidden(&at.path(), "may not be set for containers with empty `spec.os.name`"),
            "windows" => one_of(signal, &["SIGKILL", "SIGTERM"], &at, errors),
            _ if signal.starts_with("SIGRTM") => {}
            _ => one_of(signal, &SIGNALS, &at, errors),
        }
    }
}

/// What is common to probes and hooks.
#[derive(Default)]
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

impl<'a> From<&'a LifecycleHandler> for Handler<'a> {
    fn from(handler: &'a LifecycleHandler) -> Handler<'a> {
        Handler {
            exec: handler.exec.as_ref(),
            http_get: handler.http_get.as_ref(),
            tcp_socket: handler.tcp_socket.as_ref(),
            grpc: None,
            sleep: handler.sleep.as_ref(),
        }
    }
}

impl Handler<'_> {
    /// Exactly one way to act; only the first one found is looked into.
    fn validate(&self, grace_secs: Option<i64>, at: &At, errors: &mut Errors) {
        let mut found = false;
        let mut first = |field: &'static str, errors: &mut Errors| {
            if found {
                errors.forbidden(&at.child(field).path(), "may not specify more than 1 handler type");
            }
            !std::mem::replace(&mut found, true)
        };
        if let Some(exec) = self.exec
            && first("exec", errors)
            && list(&exec.command).is_empty()
        {
            errors.required(&at.child("exec").child("command").path(), "");
        }
        if let Some(get) = self.http_get
            && first("httpGet", errors)
        {
            validate_http_get(get, &at.child("httpGet"), errors);
        }
        if let Some(tcp) = self.tcp_socket
            && first("tcpSocket", errors)
        {
            port_number_or_name(&tcp.port, &at.child("tcpSocket").child("port"), errors);
        }
        if let Some(grpc) = self.grpc
            && first("grpc", errors)
        {
            port_number_or_name(&IntOrString::Int(grpc.port), &at.child("grpc").child("port"), errors);
        }
        if let Some(sleep) = self.sleep
            && first("sleep", errors)
            && let Some(grace_secs) = grace_secs
            && !(0..=grace_secs).contains(&sleep.seconds)
        {
            let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace_secs})");
            errors.invalid(&at.child("sleep").path(), sleep.seconds, detail);
        }
        if !found {
            errors.required(&at.path(), "must specify a handler type");
        }
    }
}

fn validate_http_get(get: &HTTPGetAction, at: &At, errors: &mut Errors) {
    if text(&get.path).is_empty() {
        errors.required(&at.child("path").path(), "");
    }
    port_number_or_name(&get.port, &at.child("port"), errors);
    one_of(text(&get.scheme), &["HTTP", "HTTPS"], &at.child("scheme"), errors);
    for header in list(&get.http_headers) {
        each_invalid(names::http_header_name(&header.name), &header.name, &at.child("httpHeaders"), errors);
    }
}

pub fn port_number_or_name(port: &IntOrString, at: &At, errors: &mut Errors) {
    match port {
        IntOrString::Int(port) => {
            for problem in names::port_number(i64::from(*port)) {
                errors.invalid(&at.path(), *port, problem);
            }
        }
        IntOrString::String(port) => each_invalid(names::port_name(port), port, at, errors),
    }
}
