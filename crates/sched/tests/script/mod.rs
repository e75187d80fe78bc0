//! The language of the scenario files: one line, one fact or event. Quantities of cpu are whole cpus.

use std::sync::Arc;

use usher_sched::model::*;
use usher_sched::names::Names;
use usher_sched::plan::Decision;
use usher_sched::scheduler::{Event, Scheduler};

#[derive(Default)]
pub struct Script {
    pub names: Names,
    pub sched: Scheduler,
    shapes: std::collections::BTreeMap<u32, Arc<Shape>>,
    workloads: std::collections::BTreeMap<u32, Workload>,
    decided: Vec<String>,
    clock: i64,
}

type Fields<'a> = Vec<(&'a str, &'a str)>;

impl Script {
    pub fn take_decided(&mut self) -> Vec<String> {
        std::mem::take(&mut self.decided)
    }

    pub fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or("");
        if verb == "plan" {
            let now = words.next().map_or(Ok(self.clock), str::parse).map_err(|_| "time")?;
            self.clock = now;
            return self.plan(Time(now));
        }
        let name = if verb == "settings" { "" } else { words.next().ok_or("a name is missing")? };
        let rest: Vec<&str> = words.collect();
        let fields: Fields = rest.iter().map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
        match verb {
            "settings" => self.settings(&fields),
            "flavor" => self.flavor(name, &fields),
            "cohort" => self.cohort(name, &fields),
            "queue" => self.queue(name, &fields),
            "local" => self.local(name, &fields),
            "check" => {
                let id = CheckId(self.names.checks.id(name));
                let active = (rest.first() != Some(&"gone")).then(|| rest.first() != Some(&"inactive"));
                self.sched.apply(Event::Check(id, active));
                Ok(())
            }
            "migration" => self.migration(name, &fields),
            "pending" => self.workload(name, &fields, None),
            "reserved" => self.workload(name, &fields, Some(false)),
            "admitted" => self.workload(name, &fields, Some(true)),
            _ => self.happened(verb, name, &fields),
        }
    }

    fn happened(&mut self, verb: &str, name: &str, fields: &Fields) -> Result<(), String> {
        let id = WorkloadId(self.names.workloads.find(name).ok_or("no such workload")?);
        let event = match verb {
            "ready" => Event::Admitted(id),
            "pods-ready" => Event::PodsReady(id, true),
            "refuse" => Event::AdmissionRefused(id),
            "evicting" => Event::Evicting(id),
            "stays" => Event::EvictionRefused(id),
            "released" => Event::Released(id),
            "gone" => Event::Gone(id),
            "confirm" | "resize" => {
                let shape = match verb {
                    "resize" => Arc::new(self.shape(fields)?),
                    _ => self.shapes[&id.0].clone(),
                };
                let assignment = self.assignment(&shape, fields);
                match verb {
                    "resize" => Event::Resized { workload: id, assignment },
                    _ => Event::Reserved {
                        workload: id,
                        queue: None,
                        assignment,
                        since: Time(self.clock),
                        admitted: false,
                    },
                }
            }
            _ => return Err(format!("unknown verb {verb}")),
        };
        self.sched.apply(event);
        Ok(())
    }

    fn settings(&mut self, fields: &Fields) -> Result<(), String> {
        let mut settings = Settings::default();
        for (key, value) in fields {
            match *key {
                "fair" => settings.fair_sharing = Some(FairSharing::default()),
                "fair-final" => {
                    settings.fair_sharing =
                        Some(FairSharing { strategies: vec![FairStrategy::LessThanOrEqualToFinalShare] })
                }
                "ignore-undeclared" => settings.ignore_undeclared = true,
                "block-until-ready" => settings.block_until_ready = true,
                _ => return Err(format!("unknown setting {key}={value}")),
            }
        }
        self.sched.apply(Event::Settings(settings));
        Ok(())
    }

    fn flavor(&mut self, name: &str, fields: &Fields) -> Result<(), String> {
        let id = FlavorId(self.names.flavors.id(name));
        let mut flavor = Flavor::default();
        for (key, value) in fields {
            match *key {
                "gone" => {
                    self.sched.apply(Event::Flavor(id, None));
                    return Ok(());
                }
                "label" => {
                    let (key, value) = value.split_once(':').ok_or("label=key:value")?;
                    flavor.labels.insert(key.into(), value.into());
                }
                "taint" => flavor.taints.push(Taint {
                    key: value.to_string(),
                    value: "true".into(),
                    effect: TaintEffect::NoSchedule,
                }),
                _ => return Err(format!("unknown field {key}")),
            }
        }
        self.sched.apply(Event::Flavor(id, Some(flavor)));
        Ok(())
    }

    fn cohort(&mut self, name: &str, fields: &Fields) -> Result<(), String> {
        let id = CohortId(self.names.cohorts.id(name));
        let mut cohort = Cohort::default();
        for (key, value) in fields {
            match *key {
                "parent" => cohort.parent = Some(CohortId(self.names.cohorts.id(value))),
                "weight" => cohort.fair_weight = FairWeight(value.parse().map_err(|_| "weight")?),
                _ => {
                    let (cell, quota) = self.quota(key, value)?;
                    *cohort.quotas.entry(cell) = quota;
                }
            }
        }
        self.sched.apply(Event::Cohort(id, Some(cohort)));
        Ok(())
    }

    fn queue(&mut self, name: &str, fields: &Fields) -> Result<(), String> {
        let id = QueueId(self.names.queues.id(name));
        let mut queue = Queue { groups: vec![ResourceGroup::default()], ..Queue::default() };
        for (key, value) in fields {
            match (*key, *value) {
                ("gone", _) => {
                    self.sched.apply(Event::Queue(id, None));
                    return Ok(());
                }
                ("cohort", name) => queue.cohort = Some(CohortId(self.names.cohorts.id(name))),
                ("|", _) => queue.groups.push(ResourceGroup::default()),
                ("strict", _) => queue.strategy = Queueing::StrictFifo,
                ("stop", "hold") => queue.stop = Stop::Hold,
                ("stop", "drain") => queue.stop = Stop::HoldAndDrain,
                ("within", "lower") => queue.preemption.within_queue = WithinQueue::LowerPriority,
                ("within", "newer") => queue.preemption.within_queue = WithinQueue::LowerOrNewerEqualPriority,
                ("reclaim", "lower") => queue.preemption.reclaim = Reclaim::LowerPriority,
                ("reclaim", "any") => queue.preemption.reclaim = Reclaim::Any,
                ("borrow-within", "lower") => {
                    queue.preemption.borrow = BorrowWithin::LowerPriority { max_priority: None }
                }
                ("borrow-within", max) => {
                    queue.preemption.borrow =
                        BorrowWithin::LowerPriority { max_priority: Some(max.parse().map_err(|_| "threshold")?) }
                }
                ("next-when-borrowing", _) => queue.fungibility.try_next_when_borrowing = true,
                ("stop-when-preempting", _) => queue.fungibility.try_next_when_preempting = false,
                ("prefer-preemption", _) => queue.fungibility.preference = Preference::PreemptionOverBorrowing,
                ("weight", weight) => queue.fair_weight = FairWeight(weight.parse().map_err(|_| "weight")?),
                ("check", text) => {
                    let (check, on) = text.split_once(':').map_or((text, None), |(check, on)| (check, Some(on)));
                    let on = on.map(|flavor| FlavorId(self.names.flavors.id(flavor))).into_iter().collect();
                    queue.checks.push((CheckId(self.names.checks.id(check)), on));
                }
                (cell, amount) => {
                    let (cell, quota) = self.quota(cell, amount)?;
                    *queue.quotas.entry(cell) = quota;
                    let group = queue.groups.last_mut().ok_or("group")?;
                    if !group.resources.contains(&cell.resource) {
                        group.resources.push(cell.resource);
                    }
                    if !group.flavors.contains(&cell.flavor) {
                        group.flavors.push(cell.flavor);
                    }
                }
            }
        }
        let local = LocalId(self.names.locals.id(name));
        self.sched.apply(Event::LocalQueue(local, Some(LocalQueue { queue: id, stop: Stop::None })));
        self.sched.apply(Event::Queue(id, Some(queue)));
        Ok(())
    }

    fn local(&mut self, name: &str, fields: &Fields) -> Result<(), String> {
        let id = LocalId(self.names.locals.id(name));
        let mut local = LocalQueue::default();
        for (key, value) in fields {
            match (*key, *value) {
                ("gone", _) => {
                    self.sched.apply(Event::LocalQueue(id, None));
                    return Ok(());
                }
                ("queue", queue) => local.queue = QueueId(self.names.queues.id(queue)),
                ("stop", "hold") => local.stop = Stop::Hold,
                ("stop", "drain") => local.stop = Stop::HoldAndDrain,
                _ => return Err(format!("unknown field {key}={value}")),
            }
        }
        self.sched.apply(Event::LocalQueue(id, Some(local)));
        Ok(())
    }

    fn migration(&mut self, group: &str, fields: &Fields) -> Result<(), String> {
        let id = GroupId(group.parse().map_err(|_| "groups are numbers")?);
        let migration = match fields.first() {
            Some(("never", _)) => Migration::Never,
            Some(("upgrade", to)) => Migration::Upgrade { down_to: to.parse().ok() },
            _ => return Err("never or upgrade[=sibling]".into()),
        };
        self.sched.apply(Event::Group(id, migration));
        Ok(())
    }

    /// `cpu=10` or `spot.cpu=10`, with `10+3` a borrowing limit and `10-4` a lending limit.
    fn quota(&mut self, cell: &str, text: &str) -> Result<(Cell, Quota), String> {
        let cell = self.cell(cell);
        let number = |text: &str| self.amount(cell.resource, text);
        let (text, lending) = match text.split_once('-') {
            Some((text, lending)) => (text, Some(number(lending)?)),
            None => (text, None),
        };
        let (text, borrowing) = match text.split_once('+') {
            Some((text, borrowing)) => (text, Some(number(borrowing)?)),
            None => (text, None),
        };
        Ok((cell, Quota { nominal: number(text)?, borrowing, lending }))
    }

    fn cell(&mut self, text: &str) -> Cell {
        let (flavor, resource) = text.split_once('.').unwrap_or(("default", text));
        if self.names.flavors.find(flavor).is_none() && flavor == "default" {
            let id = FlavorId(self.names.flavors.id(flavor));
            self.sched.apply(Event::Flavor(id, Some(Flavor::default())));
        }
        Cell::new(FlavorId(self.names.flavors.id(flavor)), ResourceId(self.names.resources.id(resource)))
    }

    fn amount(&self, resource: ResourceId, text: &str) -> Result<Amount, String> {
        let number: i64 = text.parse().map_err(|_| format!("{text} is not a number"))?;
        Ok(Amount(if self.names.resources.name(resource.0) == "cpu" { number * 1000 } else { number }))
    }

    fn shape(&mut self, fields: &Fields) -> Result<Shape, String> {
        let plain = || PodSet { name: "main".into(), count: 1, ..PodSet::default() };
        let mut shape = Shape { pod_sets: vec![plain()], allowed: None };
        for (key, value) in fields {
            let number = |text: &str| text.parse().map_err(|_| format!("{text} is not a number"));
            let at = shape.pod_sets.len();
            let pod_set = &mut shape.pod_sets[at - 1];
            match *key {
                "+" => shape.pod_sets.push(PodSet { name: format!("set{}", at + 1), ..plain() }),
                "count" => pod_set.count = number(value)?,
                "min" => pod_set.min_count = Some(number(value)?),
                "together" => pod_set.group = Some(value.to_string()),
                "tolerates" => pod_set.tolerations.push(Toleration {
                    key: value.to_string(),
                    operator: TolerationOperator::Exists,
                    value: String::new(),
                    effect: None,
                }),
                "selector" => {
                    let (key, value) = value.split_once(':').ok_or("selector=key:value")?;
                    pod_set.node_selector.push((key.into(), value.into()));
                }
                "affinity" => {
                    let (key, value) = value.split_once(':').ok_or("affinity=key:value")?;
                    let requirement =
                        Requirement { key: key.into(), operator: Operator::In, values: vec![value.into()] };
                    pod_set.affinity.push(vec![requirement]);
                }
                "pinned" => {
                    let flavor = FlavorId(self.names.flavors.id(value));
                    let cpu = ResourceId(self.names.resources.id("cpu"));
                    pod_set.pinned.push((cpu, flavor));
                }
                "allowed" => {
                    shape.allowed = Some(value.split(',').map(|name| FlavorId(self.names.flavors.id(name))).collect())
                }
                "priority" | "at" | "place" | "group" | "sibling" | "part-of" | "inactive" | "requeue-at" | "gated"
                | "blocked" | "not-yet" | "on" | "since" | "local" => {}
                resource => {
                    let id = ResourceId(self.names.resources.id(resource));
                    let amount = self.amount(id, value)?;
                    shape.pod_sets[at - 1].requests.push((id, amount));
                }
            }
        }
        Ok(shape)
    }

    fn workload(&mut self, name: &str, fields: &Fields, booked: Option<bool>) -> Result<(), String> {
        let new = self.names.workloads.find(name).is_none();
        let id = self.names.workloads.id(name);
        let queue = name.split('/').next().unwrap_or(name);
        let shape = Arc::new(self.shape(fields)?);
        let mut workload = Workload::new(LocalId(self.names.locals.id(queue)), shape.clone());
        workload.place = u64::from(id);
        let mut since = self.clock;
        for (key, value) in fields {
            let number = |text: &str| text.parse::<i64>().map_err(|_| format!("{text} is not a number"));
            match *key {
                "local" => workload.local = LocalId(self.names.locals.id(value)),
                "priority" => workload.priority = number(value)?,
                "at" => workload.queued_at = Time(number(value)?),
                "place" => workload.place = number(value)? as u64,
                "since" => since = number(value)?,
                "group" => workload.group = Some(GroupId(number(value)? as u32)),
                "sibling" => workload.sibling = number(value)? as u32,
                "part-of" => workload.part_of = Some(WorkloadId(self.names.workloads.id(value))),
                "inactive" => workload.active = false,
                "requeue-at" => workload.requeue_at = Some(Time(number(value)?)),
                "gated" => workload.preemption_gated = true,
                "blocked" => workload.block = Some(Block::NamespaceMismatch),
                "not-yet" => workload.block = Some(Block::NotYet),
                _ => {}
            }
        }
        let _ = new;
        self.shapes.insert(id, shape.clone());
        self.workloads.insert(id, workload.clone());
        self.sched.apply(Event::Workload(WorkloadId(id), workload));
        if let Some(admitted) = booked {
            let assignment = self.assignment(&shape, fields);
            let workload = WorkloadId(id);
            self.sched.apply(Event::Reserved { workload, queue: None, assignment, since: Time(since), admitted });
        }
        Ok(())
    }

    /// All of it on one flavor: `on=spot`, or the default one.
    fn assignment(&mut self, shape: &Shape, fields: &Fields) -> Assignment {
        let on = fields.iter().find(|(key, _)| *key == "on").map_or("default", |(_, value)| value);
        let flavor = FlavorId(self.names.flavors.id(on));
        let pod_sets: Vec<PodSetAssignment> = (shape.pod_sets.iter())
            .map(|pod_set| PodSetAssignment {
                count: pod_set.count,
                flavors: pod_set.requests.iter().map(|(resource, _)| (*resource, flavor)).collect(),
                usage: pod_set
                    .requests
                    .iter()
                    .map(|(resource, amount)| (*resource, amount.times(pod_set.count)))
                    .collect(),
            })
            .collect();
        let usage = Assignment::total(&pod_sets);
        Assignment { pod_sets, usage, borrowing: 0 }
    }

    fn plan(&mut self, now: Time) -> Result<(), String> {
        let plan = self.sched.plan(now);
        self.decided.clear();
        for decision in plan.decisions {
            let line = self.show(&decision);
            self.decided.push(line);
        }
        if let Some(time) = plan.next_timer {
            self.decided.push(format!("next timer {}", time.0));
        }
        if self.decided.is_empty() {
            self.decided.push("nothing".into());
        }
        Ok(())
    }

    fn show(&self, decision: &Decision) -> String {
        let name = |id: &WorkloadId| self.names.workloads.name(id.0);
        match decision {
            Decision::Admit { workload, assignment, checks, .. } => {
                let checks: Vec<&str> = checks.iter().map(|check| self.names.checks.name(check.0)).collect();
                let checks = if checks.is_empty() { String::new() } else { format!(", checks {}", checks.join(" ")) };
                format!("{}: admit {}{checks}", name(workload), self.show_assignment(workload, assignment))
            }
            Decision::Preempt { workload, assignment, victims, .. } => {
                let victims: Vec<String> = victims
                    .iter()
                    .map(|victim| format!("{} ({})", name(&victim.workload), victim.why.wire()))
                    .collect();
                format!(
                    "{}: preempt {} for {}",
                    name(workload),
                    victims.join(", "),
                    self.show_assignment(workload, assignment)
                )
            }
            Decision::Evict { workload, why } => format!("{}: evict ({})", name(workload), why.wire()),
            Decision::Wait { workload, reason } => {
                let shape = &self.shapes[&workload.0];
                format!("{}: wait {}: {}", name(workload), reason.code().wire(), reason.render(shape, &self.names))
            }
        }
    }

    fn show_assignment(&self, workload: &WorkloadId, assignment: &Assignment) -> String {
        let cells: Vec<String> = (assignment.usage.iter())
            .map(|(cell, amount)| {
                let (flavor, resource) =
                    (self.names.flavors.name(cell.flavor.0), self.names.resources.name(cell.resource.0));
                format!("{flavor}.{resource}={}", self.names.quantity(cell.resource, *amount))
            })
            .collect();
        let mut text = cells.join(" ");
        let full: Vec<u32> = self.shapes[&workload.0].pod_sets.iter().map(|pod_set| pod_set.count).collect();
        let got: Vec<u32> = assignment.pod_sets.iter().map(|pod_set| pod_set.count).collect();
        if full != got {
            text += &format!(" counts {got:?}");
        }
        if assignment.borrowing > 0 {
            text += &format!(", borrowing from level {}", assignment.borrowing);
        }
        text
    }
}
