//! A simulated world leaves nothing in memory. Alone in its process, because all allocations are counted.

use std::alloc::System;

use proof::simulation::run;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tasks, leases, subscriptions and buffers end with their world.
#[test]
fn a_world_leaves_no_memory() {
    let live = || {
        let stats = ALLOCATOR.stats();
        stats.allocations - stats.deallocations
    };
    let seeds = || (1..=4).for_each(|seed| drop(run(seed, false)));
    seeds();
    let before = live();
    seeds();
    let more = live().saturating_sub(before);
    assert!(more < 20, "{more} blocks more after the same seeds");
}
