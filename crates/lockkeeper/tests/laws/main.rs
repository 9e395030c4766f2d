//! Laws × stores: what must hold, whatever the store.
//!
//! A law is one small function named as a sentence. The list below instantiates each of them for
//! every store, and most of them for every kind of lock, so that a failure reads
//! `redis::waiting::mutex::a_waiter_gets_the_lock_as_soon_as_it_is_released`. Memory runs on the
//! paused clock, where a minute costs nothing; Redis runs in real time on a real server, the file
//! store in real time on a file of the law's own.

mod acquire;
mod blocking;
mod bounds;
mod checks;
mod decorators;
mod fair;
mod fenced;
mod force;
mod gate;
mod input;
mod inspect;
mod keys;
mod kinds;
mod latch;
mod lease;
mod lifecycle;
mod listed;
mod listing;
mod listing_keys;
#[cfg(feature = "file")]
#[path = "../file/lockfile.rs"]
mod lockfile;
mod looked_at;
mod looks;
mod loss;
mod multi;
mod mutex;
mod once;
mod outage;
mod permits;
mod reentry;
mod release;
mod run;
mod runtimes;
mod rw;
mod rw_keys;
mod rw_life;
mod semaphore;
mod spin;
mod store;
mod strangers;
mod telling;
mod threads;
mod turns;
mod urls;
mod waiting;
mod watch;

/// `theme (for what) { laws }`: for `each` kind of lock; for those of which a client asks on one
/// `seat`; those whose waiters are `told`; those that are `reentrant`, or only `once` on
/// request; for what the theme is about `alone`, on plain `threads`, or only about the `keys` that a Redis store has.
macro_rules! laws {
    ($($theme:ident ($for:ident) { $($law:ident)+ })+) => {
        mod memory { $( theme! { memory $theme $for $($law)+ } )+ }
        mod redis { $( theme! { redis $theme $for $($law)+ } )+ }
        #[cfg(feature = "file")]
        mod file { $( theme! { file $theme $for $($law)+ } )+ }
    };
}

macro_rules! theme {
    (memory $theme:ident keys $($law:ident)+) => {};
    (file $theme:ident keys $($law:ident)+) => {};
    ($store:ident $theme:ident each $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme mutex lockkeeper::Mutex, $($law)+ }
            kind! { $store $theme fair lockkeeper::FairLock, $($law)+ }
            kind! { $store $theme fenced lockkeeper::FencedLock, $($law)+ }
            kind! { $store $theme spin lockkeeper::SpinLock, $($law)+ }
            kind! { $store $theme write crate::store::WriteSide, $($law)+ }
        }
    };
    ($store:ident $theme:ident seat $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme mutex lockkeeper::Mutex, $($law)+ }
            kind! { $store $theme fenced lockkeeper::FencedLock, $($law)+ }
            kind! { $store $theme spin lockkeeper::SpinLock, $($law)+ }
            kind! { $store $theme write crate::store::WriteSide, $($law)+ }
        }
    };
    ($store:ident $theme:ident told $($law:ident)+) => {
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
            kind! { $store $theme spin lockkeeper::SpinLock, $($law)+ }
            kind! { $store $theme write crate::store::WriteSide, $($law)+ }
        }
    };
    ($store:ident $theme:ident once $($law:ident)+) => {
        mod $theme {
            kind! { $store $theme lock lockkeeper::Lock, $($law)+ }
            kind! { $store $theme fair lockkeeper::FairLock, $($law)+ }
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

macro_rules! kind {
    ($store:ident $theme:ident $kind:ident $Type:ty, $($law:ident)+) => {
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
    (redis $law:ident, $path:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            crate::store::Store::redis().uphold($path).await;
        }
    };
    (file $law:ident, $path:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $law() {
            crate::store::Store::file().uphold($path).await;
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
        under_contention_there_is_never_more_than_one_holder
        attempts_under_contention_never_grant_it_twice
    }
    gate (seat) {
        try_lock_asks_nobody_while_its_own_client_holds_it
        try_lock_asks_nobody_while_its_own_client_waits
        a_thousand_local_waiters_cost_the_store_what_one_does
    }
    turns (told) {
        a_busy_client_does_not_starve_another
    }
    lease (each) {
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
    release (each) {
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
    inspect (each) {
        is_locked_says_what_the_store_says
        remaining_counts_down_and_is_free_at_the_end
        nobody_holds_a_free_lock
        holder_names_the_owner_and_its_process
        who_holds_it_is_known_for_as_long_as_it_is_held
    }
    waiting (each) {
        a_waiter_gets_the_lock_as_soon_as_it_is_released
        a_waiter_gets_the_lock_as_soon_as_its_guard_is_dropped
        a_waiter_of_the_same_client_gets_it_as_soon_as_it_is_released
        a_waiter_gets_in_when_the_lease_of_a_vanished_holder_ends
        a_waiter_gets_in_when_a_forgotten_guard_expires
        the_wait_limit_ends_in_none_while_it_is_busy
        the_wait_limit_holds_in_the_local_queue
        waiters_of_one_client_that_time_out_together_find_it_busy
        a_wait_limit_shorter_than_a_round_trip_gets_an_answer
        a_store_that_falls_silent_during_the_wait_is_unreachable
        what_is_freed_within_the_wait_limit_is_granted
        an_endless_wait_limit_is_allowed
        a_waiters_lease_begins_with_the_grant
        a_lock_handed_over_has_the_receivers_lease
        waiters_of_one_client_are_served_in_order
        a_thousand_waiters_of_one_client_are_all_served
        waiters_of_many_clients_are_all_served
        a_cancelled_waiter_leaves_nothing_behind
        a_waiter_that_gives_up_leaves_nothing_behind
        after_the_last_waiter_nobody_listens
        a_cancelled_waiter_passes_its_turn_on
        a_waiter_dropped_after_its_grant_gives_the_lock_back
        random_cancellations_leave_no_lock_held
        a_waiter_that_is_never_told_looks_again_by_itself
        waiters_do_not_hammer_the_store
    }
    loss (each) {
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
    force (each) {
        forcing_a_free_lock_is_false
        forcing_a_held_lock_is_true_and_frees_it
        the_victim_is_told_at_once_and_why
        a_reason_need_not_be_given
        a_client_may_force_its_own_lock
        the_victims_release_is_not_held
        it_is_taken_only_from_those_who_were_seen
        a_waiter_of_another_client_gets_in_at_once
        a_waiter_of_the_victims_client_gets_in_at_once
        only_the_one_lock_is_forced
        a_reason_of_many_lines_arrives_as_one
    }
    run (each) {
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
    lifecycle (each) {
        shutdown_releases_every_lock
        what_is_abandoned_stands_until_its_lease_ends
        shutdown_leaves_the_locks_of_others_alone
        waiters_of_a_client_that_is_shut_down_are_told
        waiters_for_a_lock_of_their_own_client_are_told
        a_client_that_is_shut_down_refuses_everything
        a_client_may_be_shut_down_twice
        the_guard_of_a_client_that_is_shut_down_is_not_held
        after_the_shutdown_every_release_says_closed
        a_guard_keeps_its_client_alive
        a_handle_keeps_its_client_alive
        dropping_everything_gives_the_lock_back
    }
    kinds (each) {
        a_name_in_use_for_the_other_kind_is_refused
        the_two_kinds_of_one_client_do_not_share_a_gate
        a_waiter_is_told_when_the_name_becomes_something_else
    }
    input (each) {
        an_empty_name_is_refused
        an_empty_name_is_refused_behind_a_prefix_too
        a_lease_out_of_bounds_is_refused
        the_shortest_and_the_longest_lease_are_taken
        a_guard_refuses_what_makes_no_sense_and_stays
        a_reentry_that_makes_no_sense_adds_no_hold
        any_bytes_make_a_name
        names_that_differ_in_one_byte_are_different
        a_prefix_is_put_before_every_name
        an_error_names_the_lock_and_what_was_being_done
        a_name_is_shown_escaped
        a_long_name_is_shown_by_its_beginning
    }
    reentry (reentrant) {
        each_release_takes_one_hold_off
        a_guard_may_be_reentered
        a_view_of_the_hold_may_reenter_it
        owners_of_one_client_exclude_each_other
        an_owner_reenters_by_every_request
        an_owner_reenters_though_its_wait_limit_is_shorter_than_a_round_trip
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
    fair (alone) {
        waiters_of_many_clients_are_served_in_the_order_of_arrival
        whoever_comes_back_comes_last
        hundreds_of_waiters_and_random_deaths_keep_the_order
        a_waiter_that_gave_up_is_passed_over_at_once
        a_waiter_that_was_dropped_is_passed_over_at_once
        a_waiter_dropped_in_its_turn_passes_it_on
        random_cancellations_leave_nobody_in_the_queue
        try_lock_does_not_jump_the_queue
        a_reentry_does_not_queue
        a_dead_waiter_delays_the_others_by_seconds
        who_waits_for_long_keeps_its_place
        the_first_gets_in_when_the_lease_of_a_vanished_holder_ends
        a_fair_lock_and_a_lock_of_one_name_exclude_each_other
    }
    fenced (alone) {
        each_holder_has_a_greater_token
        names_have_sequences_of_their_own
        a_hand_over_inside_the_client_brings_a_greater_token
        a_hand_over_brings_what_the_receiver_asked_for
        after_a_forced_unlock_the_next_token_is_greater
        after_an_expired_lease_the_next_token_is_greater
        reentries_share_the_token
        a_guard_of_what_is_not_fenced_has_no_token
        all_fenced_locks_of_one_name_share_the_sequence
        waiters_of_a_fair_lock_have_growing_tokens
        the_work_gets_the_token_of_its_lock
        a_token_outlives_the_lock
        tokens_grow_also_after_they_were_forgotten
    }
    once (once) {
        an_owner_that_asks_twice_is_refused_at_once
        its_guard_cannot_be_reentered
        one_request_of_that_kind_is_enough_to_be_refused
        other_owners_wait_as_ever
    }
    spin (alone) {
        nobody_listens_while_it_is_waited_for
        its_release_wakes_a_waiting_lock
        a_spin_lock_and_a_lock_of_one_name_exclude_each_other
        a_constant_back_off_is_the_same_each_time
        an_exponential_back_off_doubles_up_to_its_limit
        the_factor_of_the_back_off_is_used
        a_pause_is_never_shorter_than_a_millisecond
        the_wait_limit_ends_a_long_pause
    }
    multi (alone) {
        all_are_held_until_they_are_released
        the_guards_are_in_the_order_of_the_names
        one_that_is_busy_leaves_the_others_free
        one_that_its_own_client_holds_leaves_the_others_free
        the_wait_limit_is_for_all_of_them_together
        it_waits_for_the_last_of_them
        it_does_not_hold_some_and_wait_for_the_rest
        opposite_orders_never_wait_for_each_other
        opposite_orders_of_many_kinds_never_wait_for_each_other
        those_that_overlap_exclude_each_other
        different_kinds_are_held_as_one
        different_stores_are_held_as_one
        different_clients_are_held_as_one
        losing_one_is_losing_all
        a_forced_member_is_told_with_the_reason
        all_of_them_are_renewed
        the_lease_is_the_same_for_all
        a_lease_ends_for_all_of_them
        the_lease_begins_when_the_last_is_there
        renewed_is_a_watchdog_lease_for_all
        none_and_the_same_one_twice_are_refused
        a_lease_that_makes_no_sense_is_refused
        all_of_them_are_seen_and_forced_from_outside
        one_alone_is_enough
        an_error_of_one_leaves_the_others_free
        plain_locks_of_one_client_take_one_request
        random_cancellations_leave_nothing_behind
        dropped_at_any_step_it_leaves_nothing_behind
        run_holds_all_of_them_while_the_work_runs
        the_work_is_dropped_when_one_is_lost
        an_owner_reenters_what_it_holds
        a_client_that_is_shut_down_gives_all_back
        waiters_of_a_client_that_is_shut_down_are_told
    }
    listing (each) {
        a_held_lock_is_listed_with_all_there_is_to_know
        what_was_given_back_is_not_listed
        what_has_ended_is_not_listed
        those_of_two_clients_have_each_its_holder
        one_whose_holder_is_silent_is_listed_where_it_can_be
        who_waits_is_counted
        any_bytes_make_a_name_that_is_listed
        a_prefix_hides_what_is_not_behind_it
    }
    looks (each) {
        a_free_name_is_free
        what_is_held_is_seen_as_what_it_is
        asked_for_as_something_else_it_is_refused
        forced_open_its_holder_is_told_at_once_and_why
        forced_unlocks_are_remembered
    }
    listed (alone) {
        readers_are_listed_with_their_counts
        a_writer_that_reads_is_listed_as_both
        a_reader_whose_lease_has_ended_is_not_listed
        holds_are_counted
        taken_permits_are_listed_with_their_holders
        permits_that_have_ended_are_not_listed
        a_semaphore_is_listed_while_a_client_has_permits
        what_nobody_holds_is_not_listed
        a_pattern_chooses_among_the_names
        thousands_are_all_found
        a_list_of_nothing_is_complete
        a_client_with_very_many_holds_says_that_there_are_more
        of_very_many_holds_the_hidden_ones_are_told
        a_client_that_is_shut_down_lists_nothing
        a_fair_lock_is_told_from_a_plain_one
        since_when_stays_the_same_while_it_is_renewed
        a_hold_that_lasts_becomes_known_soon
    }
    looked_at (alone) {
        the_queue_of_a_fair_lock_is_seen_in_order
        a_waiter_that_holds_something_is_known
        the_last_token_is_seen
        readers_are_seen
        permits_are_seen
        counters_are_seen
        an_empty_name_is_refused
        a_forced_unlock_names_the_process_it_was_taken_from
        a_client_that_is_silent_is_overdue
        a_lock_that_was_left_says_who_left_it_and_when
        a_client_that_left_a_lock_goes_on
    }
    watch (alone) {
        what_comes_changes_and_goes_is_told
        another_holder_is_a_change
        permits_that_come_and_go_are_changes
        nothing_happens_while_only_time_passes
        a_watch_that_is_dropped_half_way_loses_nothing
        it_looks_once_in_a_while
        a_watch_says_whether_it_sees_everything
    }
    telling (alone) {
        under_load_there_is_at_most_one_word_a_second
        short_holds_are_not_told_of
        long_holds_are_told_of_once_and_then_kept_in_mind
        a_word_that_is_not_heard_holds_nothing_up
    }
    checks (alone) {
        what_works_is_found_to_work
        a_healthy_store_is_safe
        a_check_leaves_no_lock_behind
        a_check_works_beside_held_locks
    }
    listing_keys (keys) {
        locks_of_strangers_are_listed
        other_data_is_never_listed
        keys_of_our_own_are_never_listed
        a_string_is_a_mutex_only_while_its_client_says_so
        what_is_told_and_has_become_something_else_is_not_listed
        a_lock_of_a_thousand_readers_is_one_of_readers
        a_semaphore_of_any_name_is_listed_by_its_name
        a_lock_may_be_called_as_keys_of_ours_begin
        other_databases_are_not_looked_at
        a_look_at_other_data_says_so_and_changes_nothing
    }
    rw (alone) {
        readers_share_it
        a_writer_keeps_everybody_out
        a_reader_keeps_writers_out
        under_contention_a_writer_is_alone
        a_writer_gets_in_as_soon_as_the_last_reader_goes
        all_waiting_readers_get_in_as_soon_as_the_writer_goes
        the_wait_limit_ends_in_none_while_it_is_busy
        what_is_freed_within_the_wait_limit_is_granted
        both_sides_may_be_reentered
        who_holds_it_is_not_kept_out_by_a_waiting_writer
        a_writer_may_read
        a_nested_read_that_ends_leaves_the_write_lease_alone
        a_writer_that_goes_first_leaves_its_reader
        a_downgrade_lets_waiting_readers_in
        no_writer_comes_in_between_a_downgrade
        a_downgrade_of_one_guard_leaves_the_others_writing
        a_reader_that_asks_to_write_is_refused_at_once
        the_only_reader_may_write
        one_reader_of_two_may_not_write
        a_waiting_writer_does_not_keep_the_only_reader_from_writing
        a_cancelled_writer_lets_the_readers_in_at_once
        a_cancelled_reader_leaves_nothing_behind
        random_cancellations_leave_nothing_behind
        a_stream_of_readers_does_not_starve_a_writer
        a_stream_of_writers_does_not_starve_a_reader
    }
    rw_life (alone) {
        who_waits_for_either_side_is_told
        the_lease_given_is_the_time_to_live
        both_sides_are_renewed_for_as_long_as_they_are_held
        a_fixed_lease_ends_and_says_so
        a_writer_ends_by_itself_before_the_reader_nested_in_it
        the_end_of_a_writer_that_reads_is_its_own
        one_readers_lease_never_shortens_anothers
        a_reader_that_goes_takes_its_lease_with_it
        a_dead_reader_stops_blocking_when_its_own_lease_ends
        the_dead_are_not_among_the_holders
        readers_get_in_when_a_dead_writer_has_ended
        a_reader_that_gave_up_after_long_delays_writers_by_little
        what_is_left_standing_keeps_writers_out_for_so_long
        extend_sets_a_new_end_for_a_reader
        a_deleted_hold_is_noticed_at_the_next_look
        what_a_writer_has_now_was_taken
        a_lost_guard_neither_reads_nor_writes_nor_reenters
        all_readers_of_a_forced_lock_are_told_why
        readers_are_taken_away_only_if_all_were_seen
        the_writer_of_a_forced_lock_is_told_why
        forcing_a_free_lock_is_false
        the_holders_are_shown_with_their_counts
        counts_are_those_of_an_owner_of_the_client
        writers_have_growing_tokens_and_readers_none
        a_fenced_upgrade_has_a_token_whatever_was_held_before
        an_upgrade_beside_a_hold_that_is_gone_is_a_loss
        a_name_in_use_for_something_else_is_refused
        its_own_name_is_refused_for_anything_else
        shutdown_releases_both_sides_and_ends_the_waiting
        work_runs_under_either_side
    }
    rw_keys (keys) {
        a_reader_and_a_writer_are_what_redisson_writes
        java_readers_are_respected_and_shown
        a_dead_reader_that_others_keep_alive_blocks_no_writer
        a_long_reader_outlives_a_java_reader_that_dies
        a_reader_whose_lock_becomes_something_else_is_lost
        a_lock_deleted_in_silence_is_taken_within_the_recheck
    }
    semaphore (alone) {
        it_is_set_up_once
        permits_are_taken_and_given_back
        a_dropped_permit_is_given_back
        a_forgotten_permit_is_given_back_by_anybody
        shutdown_gives_the_permits_back
        permits_are_added_and_taken_away
        it_ends_when_it_was_to_and_is_not_made_anew
        what_makes_no_sense_is_refused_and_changes_nothing
        one_that_was_not_set_up_is_refused
        a_name_in_use_for_something_else_is_refused
        a_waiter_is_woken_by_whatever_frees_permits
        who_waits_is_told
        a_waiter_of_the_same_client_is_woken_too
        as_many_waiters_are_let_in_as_there_are_permits
        who_waits_for_one_that_is_set_anew_gets_in
        a_waiter_is_told_when_the_semaphore_has_ended
        the_wait_limit_ends_in_none
        what_is_freed_within_the_wait_limit_is_granted
        hundreds_of_waiters_share_few_permits
        random_cancellations_lose_no_permit
        a_cancelled_waiter_passes_its_turn_on
    }
    permits (alone) {
        it_is_set_up_once
        permits_are_taken_and_given_back
        every_permit_has_an_id_of_its_own
        permits_of_no_lease_are_renewed
        permits_of_a_fixed_lease_end_and_say_so
        what_was_given_back_elsewhere_is_lost
        the_remaining_lease_of_a_permit_can_be_asked
        ids_are_given_back_all_or_none
        a_new_end_may_be_set_by_id
        extend_and_leave_for_set_a_new_end
        the_total_may_be_set_and_changed
        what_makes_no_sense_is_refused_and_changes_nothing
        a_name_in_use_for_something_else_is_refused
        it_ends_when_it_was_to_and_is_not_made_anew
        a_temporary_semaphore_goes_with_its_last_permit
        a_temporary_semaphore_ends_with_its_last_lease
        a_temporary_acquire_counts_by_its_own_number
        a_waiter_makes_a_temporary_semaphore_anew
        what_was_set_up_otherwise_is_not_temporary
        a_waiter_is_woken_by_whatever_frees_permits
        who_waits_is_told
        an_end_that_comes_sooner_is_noticed_within_the_recheck
        a_waiter_gets_in_when_the_lease_of_a_vanished_holder_ends
        the_wait_limit_ends_in_none
        work_runs_under_permits
        shutdown_gives_the_permits_back
        hundreds_of_waiters_share_few_permits
        random_cancellations_lose_no_permit
    }
    latch (alone) {
        it_is_set_once_and_counted_down
        one_that_was_never_set_is_open
        the_last_count_lets_the_waiters_go
        who_waits_is_told
        the_wait_limit_is_kept
        the_wait_limit_is_kept_by_many_at_once
        a_wait_limit_shorter_than_a_round_trip_gets_an_answer
        a_store_that_falls_silent_during_the_wait_is_unreachable
        deleting_it_lets_the_waiters_go
        what_makes_no_sense_is_refused
        a_name_in_use_for_something_else_is_refused
        every_count_counts_once
        hundreds_of_waiters_go_on_together
        one_that_is_reopened_at_once_lets_every_waiter_go
        one_that_opens_as_the_waiter_subscribes_lets_it_go
        a_cancelled_waiter_leaves_nothing_behind
        waiters_of_a_client_that_is_shut_down_are_told
        a_waiter_that_is_never_told_looks_again_by_itself
    }
    threads (threads) {
        threads_read_together_and_write_alone
        the_thread_owns_both_sides
        a_thread_that_reads_and_asks_to_write_is_refused
        waiting_threads_are_woken_by_the_writer
        threads_are_told_why_they_lost_either_side
        threads_share_permits
        permits_are_changed_by_threads
        a_clients_end_gives_the_permits_of_its_threads_back
        permits_with_ids_work_on_threads
        threads_wait_for_a_latch
        threads_list_look_at_force_and_watch
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
        a_token_is_kept_for_ever_unless_it_is_to_end
        a_token_that_was_lost_or_set_back_heals
        a_token_is_written_in_plain_digits
        a_queue_leaves_no_key_behind
    }
    runtimes (threads) {
        when_the_runtime_ends_its_locks_are_lost
        when_the_runtime_ends_whoever_waits_for_the_loss_is_told
        a_client_whose_runtime_ended_is_closed
        a_lock_whose_runtime_ended_is_free_when_its_lease_ends
        a_guard_may_be_released_on_another_runtime
        after_the_runtime_ended_every_release_says_closed
        every_future_works_on_any_executor
        guards_may_be_dropped_on_any_executor
        a_wait_on_another_executor_ends_with_the_runtime
        a_client_is_made_on_a_runtime
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
        the_last_drop_waits_for_the_release
        the_last_drop_may_be_in_a_task
        a_waiting_thread_is_told_of_the_shutdown
        a_guard_keeps_its_client_alive
        many_threads_share_one_client
        every_kind_is_reentrant_per_thread
        threads_are_served_in_the_order_of_a_fair_lock
        a_thread_that_gives_up_leaves_the_queue
        tokens_grow_from_thread_to_thread
        a_spinning_thread_gets_the_lock
        a_thread_that_asks_twice_may_be_refused
        a_thread_holds_all_of_a_multi_lock_or_none
        a_thread_is_told_when_one_of_its_multi_lock_is_lost
        threads_that_name_them_in_opposite_orders_take_turns
    }
}
