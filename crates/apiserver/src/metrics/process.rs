//! What the operating system says of this process, under the names every Prometheus client uses. Read when the page is asked
//! for, from Linux' `/proc`; elsewhere there is nothing to show.

use std::fmt::Write;

/// The kernel counts processor time for programs in hundredths of a second, whatever its own timer does.
const TICKS_PER_SEC: f64 = 100.0;

/// The figures as lines of the page.
pub fn lines() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let open_fds = std::fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count());
    lines_of(
        &read("/proc/self/stat"),
        &read("/proc/self/status"),
        &read("/proc/self/limits"),
        &read("/proc/stat"),
        open_fds,
    )
}

fn lines_of(stat: &str, status: &str, limits: &str, system: &str, open_fds: Option<usize>) -> String {
    // The command's name is in brackets and may hold anything; what follows it is numbers from the third field on.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok());
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib * 1024.0)
    };
    let limit = |name: &str| {
        let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
        if soft == "unlimited" { None } else { soft.parse::<f64>().ok() }
    };
    let booted = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    let cpu = field(14).zip(field(15)).map(|(user, kernel)| (user + kernel) / TICKS_PER_SEC);
    let started = booted.zip(field(22)).map(|(booted, ticks)| booted + ticks / TICKS_PER_SEC);
    let mut out = String::new();
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "Processor time spent, of programs and kernel together", cpu),
        ("process_max_fds", "gauge", "File descriptors that may be open", limit("Max open files")),
        ("process_open_fds", "gauge", "File descriptors that are open", open_fds.map(|n| n as f64)),
        ("process_resident_memory_bytes", "gauge", "Memory in use", kib("VmRSS")),
        ("process_start_time_seconds", "gauge", "When the process began, in seconds since 1970", started),
        ("process_virtual_memory_bytes", "gauge", "Addresses in use", kib("VmSize")),
    ] {
        if let Some(value) = value {
            let _ = write!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_become_figures() {
        let stat = "4711 (a )(b) S 1 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 1000 5 6";
        let status = "Name:\tusher\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        let page = lines_of(stat, status, limits, "cpu 1\nbtime 1700000000\n", Some(7));
        let figures: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            figures,
            [
                "process_cpu_seconds_total 2",
                "process_max_fds 1024",
                "process_open_fds 7",
                "process_resident_memory_bytes 524288",
                "process_start_time_seconds 1700000010",
                "process_virtual_memory_bytes 2097152",
            ]
        );
    }

    #[test]
    fn what_the_system_does_not_say_is_left_out() {
        assert_eq!(lines_of("", "", "Max open files unlimited unlimited files", "", None), "");
    }
}
