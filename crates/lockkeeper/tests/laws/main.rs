//! Laws × stores: behaviour that every store must have.
//!
//! A law is one small function. The list below instantiates each of them for every store, and most of them
//! for the kinds of lock that differ there (`kind!` leaves out the others), so that a failure reads
//! `redis::waiting::mutex::a_waiter_acquires_as_soon_as_the_lock_is_released`. Memory runs
//! on the paused clock; Redis runs in real time on a real server, and the file store in real time on a file of
//! its own.

mod acquire;
mod announcements;
mod auto_traits;
mod blocking;
mod checks;
mod decorators;
mod fair;
mod fenced;
mod fenced_primitives {
    pub(crate) use crate::fenced::*;
}
mod force_release;
mod input;
mod inspector;
mod inspector_kinds {
    pub(crate) use crate::inspector_primitives::*;
}
mod inspector_primitives;
mod keys;
mod kinds;
mod latch;
mod lease;
mod lifecycle;
mod listing;
mod listing_keys;
mod listing_kinds {
    pub(crate) use crate::listing_primitives::*;
}
mod listing_primitives;
mod local_queue;
mod lock_state;
#[cfg(feature = "file")]
#[path = "../file/lockfile.rs"]
mod lockfile;
mod loss;
mod multi;
mod mutex;
mod non_reentrant;
mod permits;
mod reentry;
mod release;
mod run;
mod runtimes;
mod rw;
mod rw_holds;
mod rw_keys;
mod semaphore;
mod spin;
mod starvation;
mod store;
mod urls;
mod waiting;
mod watch;
mod watch_kinds {
    pub(crate) use crate::watch::*;
}

/// `theme (for what) { laws }`: for `each` kind of lock; for the kinds whose waiters are `queued` locally; whose
/// waiters are `notified`; that are `reentrant`, or `non_reentrant` on request; for `plain` locks alone; for a
/// `single` primitive; on plain `threads`; of `blocking` clients, on a server and a
/// file; or only about the keys of a `redis` store.
macro_rules! laws {
    ($($theme:ident ($for:ident) { $($law:ident)+ })+) => {
        mod memory { $( theme! { memory $theme $for $($law)+ } )+ }
        mod redis { $( theme! { redis $theme $for $($law)+ } )+ }
        mod sentinel { $( theme! { sentinel $theme $for $($law)+ } )+ }
        mod cluster { $( theme! { cluster $theme $for $($law)+ } )+ }
        mod quorum { $( theme! { quorum $theme $for $($law)+ } )+ }
        #[cfg(feature = "file")]
        mod file { $( theme! { file $theme $for $($law)+ } )+ }
    };
}

macro_rules! theme {
    (memory $theme:ident redis $($law:ident)+) => {};
    (file $theme:ident redis $($law:ident)+) => {};
    (cluster $theme:ident redis $($law:ident)+) => {};
    (quorum $theme:ident redis $($law:ident)+) => {};
    (quorum $theme:ident single $($law:ident)+) => {};
    // Sentinels only lead to a server; what it does with a request is the same.
    (sentinel run each $($law:ident)+) => {};
    (sentinel input each $($law:ident)+) => {};
    (sentinel lifecycle each $($law:ident)+) => {};
    (sentinel kinds each $($law:ident)+) => {};
    (sentinel lock_state each $($law:ident)+) => {};
    (quorum $theme:ident threads $($law:ident)+) => {};
    (memory $theme:ident blocking $($law:ident)+) => {};
    (sentinel $theme:ident blocking $($law:ident)+) => {};
    (cluster $theme:ident blocking $($law:ident)+) => {};
    (quorum $theme:ident blocking $($law:ident)+) => {};
    ($store:ident $theme:ident each $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme mutex lockkeeper::Mutex, $($law)+ }
            kind! { $store $theme fair lockkeeper::FairLock, $($law)+ }
            kind! { $store $theme fenced lockkeeper::FencedLock, $($law)+ }
            kind! { $store $theme spin crate::store::Polling, $($law)+ }
            kind! { $store $theme write crate::store::WriteSide, $($law)+ }
        }
    };
    ($store:ident $theme:ident queued $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme mutex lockkeeper::Mutex, $($law)+ }
            kind! { $store $theme fenced lockkeeper::FencedLock, $($law)+ }
            kind! { $store $theme spin crate::store::Polling, $($law)+ }
            kind! { $store $theme write crate::store::WriteSide, $($law)+ }
        }
    };
    ($store:ident $theme:ident notified $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme mutex lockkeeper::Mutex, $($law)+ }
            kind! { $store $theme fair lockkeeper::FairLock, $($law)+ }
            kind! { $store $theme fenced lockkeeper::FencedLock, $($law)+ }
            kind! { $store $theme write crate::store::WriteSide, $($law)+ }
        }
    };
    ($store:ident $theme:ident reentrant $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme fair lockkeeper::FairLock, $($law)+ }
            kind! { $store $theme fenced lockkeeper::FencedLock, $($law)+ }
            kind! { $store $theme spin crate::store::Polling, $($law)+ }
            kind! { $store $theme write crate::store::WriteSide, $($law)+ }
        }
    };
    ($store:ident $theme:ident non_reentrant $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme fair lockkeeper::FairLock, $($law)+ }
        }
    };
    ($store:ident $theme:ident blocking $($law:ident)+) => {
        theme! { $store $theme threads $($law)+ }
    };
    ($store:ident $theme:ident threads $($law:ident)+) => {
        mod $theme { $(
            #[test]
            fn $law() {
                crate::$theme::$law(&crate::store::Store::$store());
            }
        )+ }
    };
    ($store:ident $theme:ident $for:ident $($law:ident)+) => {
        mod $theme { $( law! { $store $law, crate::$theme::$law } )+ }
    };
}

macro_rules! kind {
    // A token is one more line in the scripts and rules of a plain lock: the laws of `fenced` are about it.
    (memory $theme:ident fenced $($rest:tt)+) => {};
    (redis $theme:ident fenced $($rest:tt)+) => {};
    (quorum $theme:ident fenced $($rest:tt)+) => {};
    // A spinning waiter is a plain one that pauses where that one subscribes.
    (redis acquire spin $($rest:tt)+) => { kind! { = redis acquire spin $($rest)+ } };
    (redis waiting spin $($rest:tt)+) => { kind! { = redis waiting spin $($rest)+ } };
    (redis loss spin $($rest:tt)+) => { kind! { = redis loss spin $($rest)+ } };
    (redis $theme:ident spin $($rest:tt)+) => {};
    (memory $theme:ident spin $($rest:tt)+) => {};
    (sentinel $theme:ident fair $($rest:tt)+) => {};
    (sentinel $theme:ident fenced $($rest:tt)+) => {};
    (sentinel $theme:ident spin $($rest:tt)+) => {};
    (sentinel $theme:ident write $($rest:tt)+) => {};
    // A quorum has no other primitive than locks without a queue.
    (quorum $theme:ident fair $($rest:tt)+) => {};
    (quorum $theme:ident write $($rest:tt)+) => {};
    ($store:ident $theme:ident $kind:ident $($rest:tt)+) => {
        kind! { = $store $theme $kind $($rest)+ }
    };
    (= $store:ident $theme:ident $kind:ident $Type:ty, $($law:ident)+) => {
        mod $kind { $( law! { $store $law, crate::$theme::$law::<$Type> } )+ }
    };
}

macro_rules! law {
    (memory $law:ident, $path:expr) => {
        #[tokio::test(start_paused = true)]
        async fn $law() {
            crate::store::Store::memory().uphold($path).await;
        }
    };
    ($store:ident $law:ident, $path:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            crate::store::Store::$store().uphold($path).await;
        }
    };
}

laws! {
    acquire (each) {
        a_free_lock_is_granted_at_once
        try_lock_is_none_while_another_client_holds_it
        two_tasks_that_share_a_handle_exclude_each_other
        locks_of_different_names_are_independent
        zero_wait_is_one_attempt
        every_acquire_has_an_id_that_is_never_used_again
        waiters_get_ids_of_their_own
        a_contended_lock_has_at_most_one_holder
        contending_attempts_are_granted_once
    }
    local_queue (queued) {
        try_lock_sends_no_request_while_its_own_client_holds_the_lock
        try_lock_sends_no_request_while_its_own_client_waits
        a_thousand_local_waiters_send_the_requests_of_one
    }
    starvation (notified) {
        a_busy_client_does_not_starve_another
    }
    lease (each) {
        the_requested_lease_is_the_ttl
        a_lease_is_cut_to_whole_milliseconds
        a_fixed_lease_is_never_renewed
        without_a_lease_the_ttl_is_the_watchdog_timeout
        without_a_lease_a_guard_is_renewed
        renewed_is_a_watchdog_lease_for_this_request
        the_deadline_moves_on_with_each_renewal
        the_deadline_precedes_the_expiry_at_the_store
        hundreds_of_locks_of_one_task_are_all_renewed
        extend_sets_a_new_deadline
        extend_never_shortens_the_ttl
        extend_stops_the_renewals
        a_lost_guard_cannot_be_extended
        extending_a_deleted_lock_fails_and_creates_nothing
        leave_for_holds_the_lock_until_it_expires
        leave_for_can_exceed_the_previous_lease
        leave_for_is_not_renewed_for_a_local_waiter
        leave_for_of_a_lost_lock_is_not_held
    }
    release (each) {
        release_frees_the_lock
        a_dropped_guard_releases_the_lock
        a_release_that_is_never_polled_is_done
        a_task_that_panics_releases_its_lock
        an_aborted_task_releases_its_lock
        releasing_an_expired_lock_is_not_held
        releasing_an_expired_lock_does_not_disturb_the_new_holder
        a_stale_guard_does_not_disturb_its_own_client
        dropping_a_stale_guard_does_not_disturb_the_new_holder
        releasing_a_deleted_lock_is_not_held
        releasing_a_lock_of_another_holder_does_not_change_it
        a_release_after_the_deadline_still_asks_the_store
    }
    lock_state (each) {
        is_locked_and_holder_reflect_the_store
        remaining_counts_down_until_the_lock_is_free
        holder_names_the_owner_and_its_process
        the_holder_is_known_as_long_as_the_lock_is_held
    }
    waiting (each) {
        a_waiter_acquires_as_soon_as_the_lock_is_released
        a_waiter_of_the_same_client_acquires_as_soon_as_the_lock_is_released
        a_waiter_acquires_when_the_lease_of_a_dead_holder_expires
        a_waiter_acquires_when_a_forgotten_guard_expires
        a_waiter_times_out_while_the_lock_is_busy
        the_wait_limit_holds_in_the_local_queue
        waiters_of_one_client_that_time_out_together_find_it_busy
        a_wait_limit_shorter_than_a_round_trip_is_answered
        a_store_that_stops_answering_during_the_wait_is_unreachable
        a_release_within_the_wait_limit_grants_the_lock
        an_endless_wait_limit_is_allowed
        the_lease_of_a_waiter_starts_at_the_grant
        a_handoff_sets_the_lease_of_the_receiver
        waiters_of_one_client_are_served_in_order
        a_thousand_waiters_of_one_client_are_all_served
        waiters_of_many_clients_are_all_served
        a_cancelled_waiter_leaves_nothing_behind
        a_waiter_that_times_out_leaves_nothing_behind
        the_last_waiter_ends_the_subscription
        a_cancelled_waiter_wakes_the_next_one
        a_waiter_dropped_after_its_grant_releases_the_lock
        random_cancellations_leave_no_lock_held
        a_waiter_without_wake_ups_rechecks
        waiters_do_not_poll_in_a_tight_loop
    }
    loss (each) {
        lost_is_signalled_before_the_lease_ends_at_the_store
        lost_is_signalled_at_the_deadline_and_nothing_remains
        a_loss_is_detected_without_the_store
        a_deleted_lock_is_detected_at_the_next_renewal
        a_deleted_lock_of_fixed_lease_is_detected_at_the_next_check
        a_lock_of_another_holder_is_lost_as_taken
        the_loss_of_one_lock_is_not_that_of_another
        a_loss_is_final
        lost_outlives_the_guard_and_reports_released
        lost_waits_while_the_lock_is_held
        another_holder_starts_only_after_the_loss
    }
    force_release (each) {
        a_force_release_of_a_free_lock_is_false
        a_force_release_of_a_held_lock_is_true_and_frees_it
        the_holder_is_notified_of_a_force_release_at_once
        a_client_can_force_release_its_own_lock
        a_release_after_a_force_release_is_not_held
        a_force_release_with_expected_holders_spares_other_holders
        a_waiter_of_another_client_acquires_at_once
        a_waiter_of_the_holders_client_acquires_at_once
        a_force_release_affects_one_lock_only
        a_reason_of_many_lines_arrives_as_one
    }
    run (each) {
        run_holds_the_lock_while_the_work_runs
        run_reports_its_wait_and_hold_times
        the_work_is_renewed_for_as_long_as_it_takes
        try_run_is_none_and_runs_nothing_while_it_is_busy
        the_work_is_dropped_when_the_lease_expires
        the_work_is_dropped_when_the_lock_is_force_released
        the_work_is_dropped_when_the_lock_was_deleted
        work_that_finished_too_late_returns_its_output_and_the_loss
        the_work_is_not_polled_after_the_deadline
        work_whose_lock_was_deleted_returns_its_output_and_the_loss
        run_that_cannot_acquire_never_starts_the_work
        a_run_that_is_dropped_drops_the_work_and_releases
        work_that_panics_releases_the_lock
        runs_exclude_each_other
    }
    lifecycle (each) {
        shutdown_releases_every_lock
        a_hold_of_an_abandoned_client_expires_with_its_lease
        shutdown_leaves_the_locks_of_others_alone
        a_drained_client_waits_for_its_guards
        a_guard_beyond_the_limit_of_a_drain_is_lost
        a_dropped_drain_keeps_the_guards
        waiters_fail_when_their_client_shuts_down
        waiters_behind_their_own_client_fail_at_shutdown
        a_client_that_is_shut_down_rejects_everything
        a_client_may_be_shut_down_twice
        the_guard_of_a_client_that_is_shut_down_is_not_held
        after_the_shutdown_every_release_is_closed
        a_guard_keeps_its_client_alive
        a_handle_keeps_its_client_alive
        dropping_guard_and_client_releases_the_lock
    }
    kinds (each) {
        a_name_of_the_other_kind_is_rejected
        two_kinds_of_one_client_do_not_share_a_local_queue
        a_waiter_fails_when_the_name_changes_its_kind
    }
    input (each) {
        an_empty_name_is_rejected
        an_empty_name_with_a_prefix_is_rejected
        a_lease_out_of_bounds_is_rejected
        the_shortest_and_the_longest_lease_are_accepted
        a_guard_rejects_invalid_arguments_and_stays_held
        an_invalid_reentry_adds_no_hold
        any_bytes_make_a_name
        names_that_differ_in_one_byte_are_different
        a_prefix_is_put_before_every_name
        an_error_names_the_lock_and_the_phase
        a_name_is_printed_escaped
        a_long_name_is_printed_truncated
    }
    reentry (reentrant) {
        each_release_releases_one_hold
        a_guard_may_be_reentered
        owners_of_one_client_exclude_each_other
        an_owner_reenters_by_every_request
        an_owner_reenters_with_a_wait_limit_shorter_than_a_round_trip
        a_new_hold_of_the_same_owner_has_a_new_id
        requests_of_one_owner_are_sent_one_at_a_time
        an_owner_reenters_past_waiters
        a_dropped_guard_releases_one_hold
        a_cancelled_reentry_leaves_the_count_as_it_was
        a_longer_lease_extends_the_ttl
        a_shorter_lease_never_shortens_the_ttl
        a_partial_release_keeps_the_lease_of_the_remaining_holds
        the_remaining_holds_expire_at_their_own_deadline
        releasing_the_outer_hold_first_keeps_the_inner_ones_lease
        one_hold_without_a_lease_keeps_the_group_renewed
        a_fixed_hold_in_a_renewed_one_is_renewed_too
        without_its_renewed_hold_a_lock_expires_with_its_fixed_one
        holds_without_remaining_lease_are_lost
        guards_of_one_owner_are_lost_together
        all_guards_of_a_force_released_lock_are_lost
        a_lost_lock_cannot_be_reentered
        a_reentry_does_not_recreate_a_deleted_lock
        an_owner_can_acquire_again_after_a_loss
        an_owner_belongs_to_the_client_that_made_it
        an_owner_holds_different_locks_independently
        a_hold_after_leave_for_outlives_the_other_holds
        reentering_in_a_loop_leaves_no_holds_behind
        a_lock_reentered_a_hundred_times_is_one_lock
        a_waiter_is_served_only_after_the_last_hold
    }
    mutex (plain) {
        a_mutex_is_not_reentrant
        a_second_lock_of_a_mutex_waits
        a_mutex_is_held_once_by_its_holder
    }
    fair (single) {
        waiters_of_many_clients_are_served_in_the_order_of_arrival
        a_holder_that_acquires_again_queues_last
        hundreds_of_waiters_with_random_cancellations_keep_their_order
        a_waiter_that_timed_out_is_skipped_at_once
        a_waiter_that_was_dropped_is_skipped_at_once
        a_waiter_dropped_at_its_grant_wakes_the_next_one
        random_cancellations_leave_no_queue_position
        try_lock_does_not_jump_the_queue
        a_reentry_does_not_queue
        a_waiter_that_died_delays_the_queue_by_seconds
        a_long_wait_keeps_its_queue_position
        the_head_acquires_when_the_lease_of_a_dead_holder_expires
        a_fair_lock_and_a_lock_of_one_name_exclude_each_other
    }
    fenced (plain) {
        each_holder_has_a_greater_token
        names_have_sequences_of_their_own
        a_handoff_issues_a_greater_token
        a_repeated_request_issues_a_greater_token
        a_handoff_issues_a_token_only_to_a_fenced_waiter
        after_a_force_release_the_next_token_is_greater
        after_an_expired_lease_the_next_token_is_greater
        the_work_receives_the_token
        a_token_outlives_the_lock
    }
    fenced_primitives (single) {
        reentries_share_the_token
        a_guard_of_an_unfenced_lock_has_no_token
        all_fenced_locks_of_one_name_share_the_sequence
        waiters_of_a_fair_lock_have_growing_tokens
        tokens_grow_after_their_record_expired
    }
    non_reentrant (non_reentrant) {
        a_second_acquire_of_the_owner_is_rejected_at_once
        a_non_reentrant_guard_cannot_be_reentered
        a_non_reentrant_request_or_hold_rejects_reentry
        other_owners_wait
    }
    spin (plain) {
        a_spinning_waiter_does_not_subscribe
        the_release_of_a_spin_lock_wakes_a_waiting_lock
        a_spin_lock_and_a_lock_of_one_name_exclude_each_other
        a_constant_back_off_is_the_same_each_time
        an_exponential_back_off_doubles_up_to_its_limit
        the_factor_of_the_back_off_is_used
        a_pause_is_never_shorter_than_a_millisecond
        the_wait_limit_ends_a_long_pause
    }
    multi (single) {
        all_members_are_held_until_the_release
        the_guards_are_in_the_order_of_the_names
        one_busy_member_leaves_the_others_free
        a_member_held_by_the_same_client_leaves_the_others_free
        the_wait_limit_applies_to_all_members_together
        a_multi_lock_waits_for_its_last_member
        a_multi_lock_does_not_hold_some_members_while_it_waits
        a_multi_lock_waits_behind_a_queue_that_moves
        multi_locks_go_on_after_a_member_was_busy_for_long
        multi_locks_of_many_clients_go_on_after_a_member_was_busy_for_long
        multi_locks_in_opposite_orders_do_not_deadlock
        multi_locks_of_many_kinds_in_opposite_orders_do_not_deadlock
        overlapping_multi_locks_exclude_each_other
        a_multi_lock_holds_different_kinds
        a_multi_lock_spans_stores
        a_multi_lock_spans_clients
        the_loss_of_one_member_is_a_loss_of_all
        a_force_released_member_is_lost_with_the_reason
        all_members_are_renewed
        all_members_have_the_same_lease
        a_lease_expires_for_all_members
        the_lease_starts_with_the_last_member
        renewed_is_a_watchdog_lease_for_all
        an_empty_multi_lock_and_a_repeated_member_are_rejected
        an_invalid_lease_is_rejected
        other_clients_see_and_force_release_all_members
        a_multi_lock_of_one_member_works
        an_error_of_one_member_leaves_the_others_free
        plain_locks_of_one_client_take_one_request
        a_multi_lock_dropped_at_any_step_leaves_nothing_behind
        run_holds_all_members_while_the_work_runs
        the_work_is_dropped_when_a_member_is_lost
        an_owner_reenters_members_that_it_holds
        shutdown_releases_all_members
        waiters_fail_when_their_client_shuts_down
    }
    listing (each) {
        a_held_lock_is_listed_with_all_there_is_to_know
        a_released_lock_is_not_listed
        an_expired_lock_is_not_listed
        locks_of_two_clients_are_listed_with_their_holders
        a_lock_whose_holder_does_not_announce_is_listed_where_possible
        waiters_are_counted
        any_bytes_make_a_name_that_is_listed
        a_prefix_hides_other_names
    }
    inspector (each) {
        a_free_name_is_inspected_as_free
        a_held_lock_is_inspected_with_its_kind_and_holder
        an_inspection_as_another_kind_is_rejected
        force_releases_are_logged
    }
    listing_primitives (plain) {
        thousands_are_all_found
        a_list_of_nothing_is_complete
        a_client_announces_that_it_has_more_holds_than_it_lists
        a_client_that_is_shut_down_lists_nothing
        a_hold_that_lasts_becomes_known_soon
    }
    listing_kinds (single) {
        readers_are_listed_with_their_counts
        a_writer_that_reads_is_listed_as_both
        an_expired_reader_is_not_listed
        holds_are_counted
        held_permits_are_listed_with_their_holders
        expired_permits_are_not_listed
        a_semaphore_is_listed_while_a_client_holds_permits
        a_counter_without_holders_is_not_listed
        a_pattern_chooses_among_the_names
        a_list_reports_holds_that_were_not_announced
        a_list_distinguishes_fair_locks_from_plain_ones
        the_start_of_a_hold_does_not_change_with_renewals
    }
    inspector_primitives (plain) {
        the_last_token_is_inspected
        an_empty_name_is_rejected
        the_log_of_a_force_release_names_the_previous_holder
        a_failed_release_names_the_process_of_the_new_holder
        a_client_without_announcements_is_overdue
        a_lock_after_leave_for_shows_its_client_and_time
        a_client_can_continue_after_leave_for
    }
    inspector_kinds (single) {
        the_queue_of_a_fair_lock_is_inspected_in_order
        a_waiter_that_holds_something_is_known
        readers_are_inspected
        permits_are_inspected
        counters_are_inspected
    }
    watch (plain) {
        a_watch_reports_added_changed_and_removed_locks
        a_watch_reports_no_change_while_only_time_passes
        a_watch_that_is_dropped_half_way_loses_nothing
        a_watch_polls_at_its_interval
        a_watch_reports_whether_it_is_complete
    }
    watch_kinds (single) {
        another_holder_is_a_change
        acquired_and_released_permits_are_changes
    }
    announcements (plain) {
        under_load_a_client_announces_at_most_once_per_second
        short_holds_are_not_announced
        a_long_hold_is_announced_once_and_then_renewed
        an_announcement_without_an_answer_delays_nothing
    }
    checks (plain) {
        a_check_reports_the_kinds_that_work
        a_healthy_store_is_safe
        a_check_leaves_no_lock_behind
        a_check_works_beside_held_locks
    }
    listing_keys (redis) {
        locks_of_other_libraries_are_listed
        other_data_is_never_listed
        keys_of_our_own_are_never_listed
        a_string_is_a_mutex_only_while_its_client_announces_it
        an_announced_name_of_another_kind_is_not_listed
        a_lock_of_a_thousand_readers_is_one_of_readers
        a_semaphore_of_any_name_is_listed_by_its_name
        a_lock_name_may_start_like_an_internal_key
        other_databases_are_not_listed
        inspecting_other_data_reports_it_and_changes_nothing
    }
    rw (single) {
        readers_share_the_lock
        a_writer_blocks_readers_and_writers
        a_reader_blocks_writers
        a_contended_write_lock_has_at_most_one_holder
        a_writer_acquires_as_soon_as_the_last_reader_releases
        all_waiting_readers_acquire_as_soon_as_the_writer_releases
        a_waiter_times_out_while_the_lock_is_busy
        a_release_within_the_wait_limit_grants_the_lock
        both_sides_can_be_reentered
        a_holder_reenters_past_a_waiting_writer
        a_writer_can_read
        releasing_a_nested_read_does_not_change_the_write_lease
        a_released_writer_keeps_its_nested_reader
        a_downgrade_wakes_waiting_readers
        no_writer_acquires_during_a_downgrade
        a_downgrade_of_one_guard_leaves_the_others_writing
        a_reader_that_requests_a_write_lock_is_rejected_at_once
        the_only_reader_can_upgrade
        one_reader_of_two_cannot_upgrade
        a_waiting_writer_does_not_block_an_upgrade
        a_cancelled_writer_stops_blocking_readers_at_once
        a_cancelled_reader_leaves_nothing_behind
        random_cancellations_leave_nothing_behind
        a_stream_of_readers_does_not_starve_a_writer
        a_stream_of_writers_does_not_starve_a_reader
    }
    rw_holds (single) {
        waiters_of_both_sides_are_notified
        the_requested_lease_is_the_ttl
        both_sides_are_renewed_for_as_long_as_they_are_held
        a_fixed_lease_expires_and_is_reported_lost
        a_writer_expires_before_its_nested_reader
        the_lease_of_a_writer_is_independent_of_its_nested_reader
        one_readers_lease_never_shortens_anothers
        a_released_reader_no_longer_extends_the_ttl
        an_expired_reader_stops_blocking_writers
        expired_readers_are_not_holders
        readers_acquire_when_the_lease_of_a_dead_writer_expires
        a_reader_that_timed_out_delays_writers_briefly
        leave_for_of_a_reader_blocks_writers_until_it_expires
        extend_sets_a_new_deadline_for_a_reader
        a_deleted_hold_is_detected_at_the_next_check
        a_reader_whose_lock_is_written_is_lost_as_taken
        a_lost_guard_neither_reads_nor_writes_nor_reenters
        all_readers_of_a_force_released_lock_are_lost_with_the_reason
        a_force_release_with_expected_holders_needs_all_readers
        the_writer_of_a_force_released_lock_is_lost_with_the_reason
        a_force_release_of_a_free_lock_is_false
        holders_are_inspected_with_their_counts
        hold_counts_are_per_owner
        writers_have_growing_tokens_and_readers_none
        a_fenced_upgrade_issues_a_token
        an_upgrade_without_its_read_hold_is_a_loss
        a_name_of_another_kind_is_rejected
        the_name_of_a_read_write_lock_is_rejected_for_other_kinds
        shutdown_releases_both_sides_and_fails_waiters
        the_holds_of_a_drained_client_are_used_to_the_end
        work_runs_under_either_side
    }
    rw_keys (redis) {
        redisson_readers_are_respected_and_listed
        an_expired_reader_does_not_block_a_writer_while_the_key_exists
        a_long_reader_outlives_a_redisson_reader_that_died
        a_reader_whose_lock_becomes_something_else_is_lost
    }
    semaphore (single) {
        a_semaphore_is_created_once
        permits_are_acquired_and_released
        a_dropped_permit_is_released
        a_forgotten_permit_can_be_released_by_any_client
        shutdown_releases_the_permits
        permits_are_added_and_removed
        a_semaphore_expires_and_is_not_recreated
        invalid_arguments_are_rejected_and_change_nothing
        a_semaphore_that_was_not_created_is_rejected
        a_name_of_another_kind_is_rejected
        a_waiter_is_woken_by_whatever_frees_permits
        waiters_are_notified
        a_waiter_of_the_same_client_is_woken_too
        as_many_waiters_acquire_as_there_are_permits
        a_waiter_acquires_after_the_semaphore_is_recreated
        a_waiter_fails_when_the_semaphore_expires
        a_waiter_times_out_at_its_wait_limit
        a_release_within_the_wait_limit_grants_the_lock
        hundreds_of_waiters_share_few_permits
        random_cancellations_lose_no_permit
        a_cancelled_waiter_wakes_the_next_one
        a_waiter_for_many_permits_is_not_overtaken
    }
    permits (single) {
        a_semaphore_is_created_once
        permits_are_acquired_and_released
        every_permit_has_an_id_of_its_own
        permits_without_a_lease_are_renewed
        permits_of_a_fixed_lease_expire_and_are_reported_lost
        permits_released_by_another_client_are_lost
        the_remaining_lease_of_a_permit_can_be_asked
        permits_are_released_by_id_all_or_none
        a_lease_can_be_set_by_permit_id
        extend_and_leave_for_set_a_new_lease
        the_total_may_be_set_and_changed
        invalid_arguments_are_rejected_and_change_nothing
        a_name_of_another_kind_is_rejected
        a_semaphore_expires_and_is_not_recreated
        a_temporary_semaphore_is_deleted_with_its_last_permit
        a_temporary_semaphore_expires_with_its_last_lease
        a_temporary_acquire_counts_by_its_own_number
        a_waiter_recreates_a_temporary_semaphore
        a_permanent_semaphore_is_not_temporary
        a_waiter_is_woken_by_whatever_frees_permits
        waiters_are_notified
        a_shortened_lease_is_found_within_the_recheck
        a_waiter_acquires_when_the_lease_of_a_dead_holder_expires
        a_waiter_times_out_at_its_wait_limit
        work_runs_under_permits
        shutdown_releases_the_permits
        hundreds_of_waiters_share_few_permits
        random_cancellations_lose_no_permit
        hundreds_of_expired_permits_are_free_at_once
        after_the_shutdown_every_release_is_closed
    }
    latch (single) {
        a_latch_is_set_once_and_counted_down
        a_latch_that_was_never_set_is_open
        the_last_count_wakes_the_waiters
        waiters_are_notified
        the_wait_limit_bounds_the_wait
        the_wait_limit_bounds_many_waits_at_once
        a_wait_limit_shorter_than_a_round_trip_is_answered
        a_store_that_stops_answering_during_the_wait_is_unreachable
        deleting_the_latch_wakes_its_waiters
        invalid_arguments_are_rejected
        a_name_of_another_kind_is_rejected
        every_count_counts_once
        hundreds_of_waiters_wake_up_together
        a_latch_set_again_at_once_still_wakes_every_waiter
        a_latch_that_opens_during_the_subscription_wakes_the_waiter
        a_cancelled_waiter_leaves_nothing_behind
        waiters_fail_when_their_client_shuts_down
        a_waiter_without_wake_ups_rechecks
    }
    keys (redis) {
        a_key_that_is_not_a_lock_is_rejected_and_not_changed
        a_key_that_is_not_a_mutex_is_rejected_and_not_changed
        a_lock_without_a_ttl_is_busy_and_has_no_remaining_time
        a_token_has_no_ttl_unless_configured
    }
    runtimes (threads) {
        locks_are_lost_when_their_runtime_ends
        lost_resolves_when_the_runtime_ends
        a_client_whose_runtime_ended_is_closed
        a_lock_whose_runtime_ended_is_free_after_its_lease
        a_guard_may_be_released_on_another_runtime
        after_the_runtime_ended_every_release_is_closed
        every_future_works_on_any_executor
        guards_may_be_dropped_on_any_executor
        a_wait_on_another_executor_ends_when_the_runtime_ends
        a_runtime_that_ends_before_it_polled_its_tasks_wakes_waiters
        a_client_is_made_on_a_runtime
    }
    blocking (blocking) {
        threads_exclude_each_other_and_re_enter
        the_watchdog_renews_while_the_thread_sleeps
        every_kind_is_reentrant_per_thread
        a_thread_owns_both_sides
        a_thread_cannot_re_enter_a_non_reentrant_lock
        the_thread_that_calls_is_the_owner
        a_multi_lock_is_held_by_its_guard
        run_holds_the_lock_while_the_thread_works
        the_last_drop_waits_for_the_release
        the_last_drop_may_be_in_a_task
        a_pending_acquire_keeps_its_client_alive
        an_acquire_that_is_awaited_fails
        wait_in_async_code_fails_instead_of_blocking
    }
}
