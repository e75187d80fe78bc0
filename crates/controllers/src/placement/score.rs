//! How good a node that fits is: kube-scheduler's scores with its default weights. Of equals the one with the fewest pods,
//! then the first, where kube-scheduler draws lots.
//!
//! Not scored: images that a node has, since nothing pulls images here.

use super::model::{Node, Shape};
use super::state::Room;

const MAX: i64 = 100;
const TAINTS: i64 = 3;
const NODE_AFFINITY: i64 = 2;
pub const SPREAD: i64 = 2;
pub const POD_AFFINITY: i64 = 2;

/// Free room, and evenness of what is used: what changes with every pod.
pub fn room(shape: &Shape, node: &Node, room: &Room) -> i64 {
    least_allocated(shape, node, room) + balanced(shape, node, room)
}

fn least_allocated(shape: &Shape, node: &Node, room: &Room) -> i64 {
    let free = |requested: i128, capacity: i64| -> i64 {
        let capacity = i128::from(capacity);
        if requested > capacity { 0 } else { ((capacity - requested) * i128::from(MAX) / capacity) as i64 }
    };
    let cpu = (room.nonzero_cpu_milli + i128::from(shape.nonzero_cpu_milli), node.allocatable.cpu_milli);
    let memory = (room.nonzero_memory + i128::from(shape.nonzero_memory), node.allocatable.memory);
    let offered = [cpu, memory].into_iter().filter(|(_, capacity)| *capacity > 0);
    let (sum, weight) =
        offered.fold((0, 0), |(sum, n), (requested, capacity)| (sum + free(requested, capacity), n + 1));
    if weight == 0 { 0 } else { sum / weight }
}

fn balanced(shape: &Shape, node: &Node, room: &Room) -> i64 {
    let requests = &shape.requests;
    if requests.cpu_milli == 0 && requests.memory == 0 {
        return 0;
    }
    let evenness = |cpu: i128, memory: i128| -> i64 {
        let (cpu_max, memory_max) = (node.allocatable.cpu_milli, node.allocatable.memory);
        if cpu_max == 0 || memory_max == 0 {
            return MAX;
        }
        let fraction = |used: i128, of: i64| (used as f64 / of as f64).min(1.0);
        let deviation = ((fraction(cpu, cpu_max) - fraction(memory, memory_max)) / 2.0).abs();
        ((1.0 - deviation) * MAX as f64) as i64
    };
    let (cpu, memory) = (room.used.cpu_milli, room.used.memory);
    let with = evenness(cpu + i128::from(requests.cpu_milli), memory + i128::from(requests.memory));
    MAX / 2 + (MAX / 2 + with - evenness(cpu, memory)) / 2
}

/// What the node's labels and taints are worth, given the most of either among the nodes that fit.
pub fn regard(preference: i64, dislikes: i64, most_preference: i64, most_dislikes: i64) -> i64 {
    let affinity = if most_preference > 0 { MAX * preference / most_preference } else { 0 };
    let taints = if most_dislikes > 0 { MAX - MAX * dislikes / most_dislikes } else { MAX };
    NODE_AFFINITY * affinity + TAINTS * taints
}

/// From the least to the most, as 0 to 100.
pub fn stretch(score: i64, least: i64, most: i64) -> i64 {
    if most > least { (MAX as f64 * ((score - least) as f64 / (most - least) as f64)) as i64 } else { 0 }
}

/// The fewer of one's like, the better.
pub fn spread(count: i64, least: i64, most: i64) -> i64 {
    if most == 0 { MAX } else { MAX * (most + least - count) / most }
}
