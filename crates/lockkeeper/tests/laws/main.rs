//! Laws × stores: what must hold, whatever the store.
//!
//! A law is one small function named as a sentence. The list below instantiates each of them for
//! every store, and most of them for both kinds of locks, so that a failure reads
//! `redis::waiting::mutex::a_waiter_gets_the_lock_as_soon_as_it_is_released`. Memory runs on the
//! paused clock, where a minute costs nothing; Redis runs in real time on a real server.

mod acquire;
mod blocking;
mod bounds;
mod decorators;
mod force;
mod input;
mod inspect;
mod keys;
mod kinds;
mod lease;
mod lifecycle;
mod loss;
mod mutex;
mod outage;
mod reentry;
mod release;
mod run;
mod runtimes;
mod store;
mod strangers;
mod urls;
mod waiting;

/// `theme (for what) { laws }`: `both` kinds of locks, the lock `alone`, on plain `threads`, or only
/// about the `keys` that a Redis store has.
macro_rules! laws {
    ($($theme:ident ($for:ident) { $($law:ident)+ })+) => {
        mod memory { $( theme! { memory $theme $for $($law)+ } )+ }
        mod redis { $( theme! { redis $theme $for $($law)+ } )+ }
    };
}

macro_rules! theme {
    (memory $theme:ident keys $($law:ident)+) => {};
    ($store:ident $theme:ident both $($law:ident)+) => {
        mod $theme {
            mod lock { $( law! { $store $law, crate::$theme::$law::<lockkeeper::Lock> } )+ }
            mod mutex { $( law! { $store $law, crate::$theme::$law::<lockkeeper::Mutex> } )+ }
        }
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

macro_rules! law {
    (memory $law:ident, $path:expr) => {
        #[tokio::test(start_paused = true)]
        async fn $law() {
            crate::store::Store::memory().uphold($path).await;
        }
    };
    (redis $law:ident, $path:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            crate::store::Store::redis().uphold($path).await;
        }
    };
}

laws! {
    acquire (both) {
        a_free_lock_is_granted_at_once
        try_lock_is_none_while_another_client_holds_it
        two_tasks_that_share_a_handle_exclude_each_other
        locks_of_different_names_are_independent
        zero_wait_is_one_attempt
        every_acquire_has_an_id_that_is_never_used_again
        waiters_get_ids_of_their_own
        try_lock_asks_nobody_while_its_own_client_holds_it
        try_lock_asks_nobody_while_its_own_client_waits
        a_thousand_local_waiters_cost_the_store_what_one_does
        under_contention_there_is_never_more_than_one_holder
        attempts_under_contention_never_grant_it_twice
    }
    lease (both) {
        the_lease_given_is_the_time_to_live
        a_lease_is_cut_to_whole_milliseconds
        a_fixed_lease_is_never_renewed
        without_a_lease_the_time_to_live_is_the_watchdog_timeout
        without_a_lease_it_is_renewed_for_as_long_as_the_guard_lives
        renewed_is_a_watchdog_lease_for_this_request
        the_deadline_moves_on_with_each_renewal
        the_deadline_comes_before_the_end_at_the_store
        hundreds_of_locks_of_one_task_are_all_renewed
        extend_sets_a_new_end
        extend_never_shortens_what_the_store_keeps
        extend_ends_the_renewals
        a_lost_guard_cannot_be_extended
        extending_what_was_deleted_says_so_and_creates_nothing
        leave_for_keeps_the_lock_standing_and_then_frees_it
        leave_for_may_be_longer_than_the_lease_was
        what_is_left_standing_is_not_renewed_for_a_waiter_of_its_own
        leaving_what_was_lost_is_not_held
    }
    release (both) {
        release_frees_the_lock
        a_dropped_guard_releases_the_lock
        a_release_that_nobody_awaits_is_done_all_the_same
        a_task_that_panics_releases_its_lock
        an_aborted_task_releases_its_lock
        releasing_an_expired_lock_is_not_held
        releasing_an_expired_lock_does_not_disturb_the_new_holder
        a_stale_guard_does_not_disturb_its_own_client
        dropping_a_stale_guard_does_not_disturb_the_new_holder
        releasing_what_was_deleted_is_not_held
        releasing_what_a_stranger_took_leaves_it_to_the_stranger
        a_release_after_the_deadline_still_asks_the_store
    }
    inspect (both) {
        is_locked_says_what_the_store_says
        remaining_counts_down_and_is_free_at_the_end
        nobody_holds_a_free_lock
        holder_names_the_owner_and_its_process
        who_holds_it_is_known_for_as_long_as_it_is_held
    }
    waiting (both) {
        a_waiter_gets_the_lock_as_soon_as_it_is_released
        a_waiter_gets_the_lock_as_soon_as_its_guard_is_dropped
        a_waiter_of_the_same_client_gets_it_as_soon_as_it_is_released
        a_waiter_gets_in_when_the_lease_of_a_vanished_holder_ends
        a_waiter_gets_in_when_a_forgotten_guard_expires
        the_wait_limit_ends_in_none_while_it_is_busy
        the_wait_limit_holds_in_the_local_queue
        what_is_freed_within_the_wait_limit_is_granted
        an_endless_wait_limit_is_allowed
        a_waiters_lease_begins_with_the_grant
        a_lock_handed_over_has_the_receivers_lease
        waiters_of_one_client_are_served_in_order
        a_thousand_waiters_of_one_client_are_all_served
        waiters_of_many_clients_are_all_served
        a_busy_client_does_not_starve_another
        a_cancelled_waiter_leaves_nothing_behind
        a_waiter_that_gives_up_leaves_nothing_behind
        after_the_last_waiter_nobody_listens
        a_cancelled_waiter_passes_its_turn_on
        a_waiter_dropped_after_its_grant_gives_the_lock_back
        random_cancellations_leave_no_lock_held
        a_waiter_that_is_never_told_looks_again_by_itself
        waiters_do_not_hammer_the_store
    }
    loss (both) {
        lost_is_signalled_before_the_lease_ends_at_the_store
        lost_is_signalled_no_earlier_than_need_be
        after_the_loss_nothing_remains
        its_own_clock_is_enough_to_know
        a_renewed_lease_that_was_slept_through_is_lost
        a_deleted_lock_is_noticed_at_the_next_renewal
        a_deleted_lock_of_fixed_lease_is_noticed_at_the_next_check
        a_lock_that_someone_else_has_was_taken
        the_loss_of_one_lock_is_not_that_of_another
        loss_is_for_good
        lost_outlives_the_guard_and_says_released
        lost_waits_while_the_lock_is_held
        another_holder_begins_only_after_the_loss
    }
    force (both) {
        forcing_a_free_lock_is_false
        forcing_a_held_lock_is_true_and_frees_it
        the_victim_is_told_at_once_and_why
        a_reason_need_not_be_given
        a_client_may_force_its_own_lock
        the_victims_release_is_not_held
        a_waiter_of_another_client_gets_in_at_once
        a_waiter_of_the_victims_client_gets_in_at_once
        only_the_one_lock_is_forced
        a_reason_of_many_lines_arrives_as_one
    }
    run (both) {
        run_holds_the_lock_while_the_work_runs
        run_tells_how_long_it_waited_and_held
        the_work_is_renewed_for_as_long_as_it_takes
        try_run_is_none_and_runs_nothing_while_it_is_busy
        the_work_is_dropped_when_the_lease_ends
        the_work_is_dropped_when_the_lock_is_forced
        the_work_is_dropped_when_the_lock_was_deleted
        work_that_finished_too_late_gives_its_output_and_the_loss
        the_work_is_not_polled_after_the_deadline
        work_whose_lock_was_deleted_unnoticed_gives_its_output_and_the_loss
        run_that_cannot_acquire_never_starts_the_work
        a_run_that_is_dropped_drops_the_work_and_releases
        work_that_panics_releases_the_lock
        runs_exclude_each_other
    }
    lifecycle (both) {
        shutdown_releases_every_lock
        shutdown_leaves_the_locks_of_others_alone
        waiters_of_a_client_that_is_shut_down_are_told
        waiters_for_a_lock_of_their_own_client_are_told
        a_client_that_is_shut_down_refuses_everything
        a_client_may_be_shut_down_twice
        the_guard_of_a_client_that_is_shut_down_is_not_held
        a_guard_keeps_its_client_alive
        a_handle_keeps_its_client_alive
        dropping_everything_gives_the_lock_back
    }
    kinds (both) {
        a_name_in_use_for_the_other_kind_is_refused
        the_two_kinds_of_one_client_do_not_share_a_gate
        a_waiter_is_told_when_the_name_becomes_something_else
    }
    input (both) {
        an_empty_name_is_refused
        an_empty_name_is_refused_behind_a_prefix_too
        a_lease_out_of_bounds_is_refused
        the_shortest_and_the_longest_lease_are_taken
        a_lease_is_fixed_or_renewed_but_not_both
        a_guard_refuses_what_makes_no_sense_and_stays
        a_reentry_that_makes_no_sense_adds_no_hold
        any_bytes_make_a_name
        names_that_differ_in_one_byte_are_different
        a_prefix_is_put_before_every_name
        an_error_names_the_lock_and_what_was_being_done
        a_name_is_shown_escaped
    }
    reentry (alone) {
        each_release_takes_one_hold_off
        a_guard_may_be_reentered
        a_view_of_the_hold_may_reenter_it
        owners_of_one_client_exclude_each_other
        an_owner_reenters_by_every_request
        a_new_hold_of_the_same_owner_has_a_new_id
        requests_of_one_owner_go_one_at_a_time
        an_owner_is_not_kept_from_its_lock_by_those_who_wait
        a_dropped_guard_takes_one_hold_off
        a_cancelled_reentry_leaves_the_count_as_it_was
        a_longer_lease_lengthens_the_time_to_live
        a_shorter_lease_never_shortens_the_time_to_live
        a_partial_release_leaves_what_the_rest_is_owed
        what_stays_after_a_partial_release_ends_when_it_was_to
        releasing_the_outer_hold_first_keeps_the_inner_ones_lease
        one_hold_without_a_lease_keeps_the_group_renewed
        a_fixed_hold_in_a_renewed_one_is_renewed_too
        without_its_renewed_hold_a_group_ends_with_its_fixed_one
        a_group_that_is_owed_nothing_more_is_lost
        guards_of_one_owner_are_lost_together
        all_guards_of_a_forced_lock_are_told
        a_lost_lock_cannot_be_reentered
        a_vanished_lock_is_not_created_by_a_reentry
        an_owner_that_lost_its_lock_may_take_it_anew
        an_owner_belongs_to_the_client_that_made_it
        an_owner_holds_different_locks_independently
        a_hold_that_is_left_stands_after_the_others_are_released
        a_lock_reentered_a_hundred_times_is_one_lock
        a_waiter_is_served_only_after_the_last_hold
    }
    mutex (alone) {
        a_mutex_is_not_reentrant
        whoever_locks_a_mutex_twice_waits_for_itself
        a_mutex_is_held_once_by_its_holder
    }
    keys (keys) {
        a_key_that_is_no_lock_is_refused_and_left_alone
        a_key_that_is_no_mutex_is_refused_and_left_alone
        a_held_key_that_becomes_something_else_is_lost
        a_foreign_field_in_the_lock_means_that_it_was_taken
        the_hold_count_is_the_hash_value
        a_mutex_is_a_string_with_the_owner_in_it
        a_lock_of_a_stranger_is_respected_and_shown
        a_release_wakes_whoever_listens_as_redisson_does
        a_mutex_deleted_in_silence_is_taken_soon
        a_lock_deleted_in_silence_is_taken_within_the_recheck
        a_lock_without_an_end_is_shown_as_such_and_waited_for
        a_client_subscribes_once_for_all_its_waiters
        the_note_of_who_a_client_is_goes_with_it
        a_forced_unlock_is_remembered
        the_scripts_may_be_flushed_at_any_time
    }
    runtimes (threads) {
        when_the_runtime_ends_its_locks_are_lost
        when_the_runtime_ends_whoever_waits_for_the_loss_is_told
        a_client_whose_runtime_ended_is_closed
        a_lock_whose_runtime_ended_is_free_when_its_lease_ends
        a_guard_may_be_released_on_another_runtime
    }
    blocking (threads) {
        a_thread_holds_and_releases
        a_lock_is_reentrant_per_thread
        threads_exclude_each_other
        a_waiting_thread_is_woken_by_the_release
        a_dropped_guard_releases
        a_thread_that_panics_releases
        the_watchdog_renews_while_the_thread_sleeps
        a_fixed_lease_ends_and_says_so
        the_wait_limit_is_kept
        run_holds_the_lock_while_it_runs
        run_tells_of_a_loss
        a_mutex_is_not_reentrant
        a_guard_may_be_released_by_another_thread
        extend_and_leave_for_work_on_threads
        a_forced_lock_is_lost_with_the_reason
        shutdown_releases_and_closes
        a_waiting_thread_is_told_of_the_shutdown
        a_guard_keeps_its_client_alive
        many_threads_share_one_client
    }
}
