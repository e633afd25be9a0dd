//! One conformance suite per port. The lists of cases below exist once, so no adapter can skip one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod bus;
mod help;
mod instance;
mod objects;
mod opening;
mod postgres;
mod queue;
mod rabbitmq;
mod random;
mod redis;
mod sqlite;
mod store_accept;
mod store_archive;
mod store_audit;
mod store_batches;
mod store_end;
mod store_faults;
mod store_feed;
mod store_keys;
mod store_lease;
mod store_read;
mod store_reap;
mod store_retention;
mod store_schedules;
mod store_sequences;
mod store_shares;
mod store_tenants;
mod store_usage;
mod store_webhooks;

macro_rules! on_every_store {
    ($module:ident: $($case:ident),+ $(,)?) => { $( mod $case {
        #[tokio::test]
        async fn sqlite() {
            crate::$module::$case(&mut crate::sqlite::Sqlite::fresh().await).await;
        }

        #[tokio::test]
        async fn postgres() {
            crate::$module::$case(&mut crate::postgres::Postgres::fresh().await).await;
        }
    } )+ };
}

macro_rules! on_every_queue {
    ($($case:ident),+ $(,)?) => { mod queue_cases { $( mod $case {
        #[tokio::test]
        async fn in_process() {
            let queue = backends::InProcessQueue::new(crate::queue::LIMIT);
            crate::queue::$case(crate::queue::UnderTest::exact(&queue)).await;
        }

        #[tokio::test]
        async fn rabbitmq() {
            let rabbit = crate::rabbitmq::Rabbit::fresh().await;
            crate::queue::$case(rabbit.under_test()).await;
            rabbit.clean().await;
        }
    } )+ } };
}

macro_rules! on_every_bus {
    ($($case:ident),+ $(,)?) => { mod bus_cases { $( mod $case {
        #[tokio::test(start_paused = true)]
        async fn in_process() {
            crate::bus::$case(&crate::bus::BusUnderTest::in_process()).await;
        }
        #[tokio::test]
        async fn redis() {
            crate::bus::$case(&crate::redis::fresh().await).await;
        }
    } )+ } };
}

on_every_store!(store_accept:
    an_accepted_job_is_shown_as_submitted,
    an_accepted_job_is_known_without_a_look,
    every_seed_survives,
    every_kind_of_job_survives,
    bound_is_exact_under_concurrent_accepts,
    a_refused_job_leaves_nothing,
    a_bound_of_zero_refuses_all,
    a_full_queue_still_answers_for_what_it_has_and_takes_what_fits_again,
    bounds_are_per_release_and_class,
    batch_lines_count_on_their_own,
    a_batch_line_is_accepted_once,
    the_same_key_and_body_is_the_same_job,
    the_same_key_with_another_body_is_refused,
    keys_are_per_tenant,
    a_key_of_a_refused_job_is_free,
    a_key_is_forgotten_after_a_day,
    concurrent_accepts_of_one_key_make_one_job,
    a_repeated_id_is_a_replay,
    the_second_of_a_sequence_is_held,
    null_characters_survive,
    all_are_accepted_or_none,
);

on_every_store!(store_lease:
    live_lease_is_exclusive,
    a_lease_needs_the_right_attempt,
    a_lease_carries_the_job,
    no_lease_past_the_deadline,
    no_lease_of_a_held_job,
    no_lease_of_an_unknown_job,
    renewing_returns_the_lost_ones,
    renewing_keeps_the_reaper_away,
    handing_back_spends_nothing,
    hand_back_waits_its_delay,
);

on_every_store!(store_end:
    a_result_is_kept,
    a_staged_result_is_kept,
    late_finish_is_refused,
    terminal_is_immutable,
    no_result_after_the_deadline,
    a_permanent_error_fails_at_once,
    an_expired_outcome_expires,
    counters_return_to_zero,
    a_finish_makes_room,
    transient_errors_back_off_and_run_out,
    a_stale_retry_is_refused,
    cancel_is_idempotent,
    cancel_beats_finish,
    finish_beats_cancel,
    cancel_of_another_tenant_is_not_found,
    usage_after_the_end_counts_once,
    usage_of_several_attempts_adds_up,
    a_result_shows_its_own_usage,
    a_sequence_runs_in_order,
    cancelling_a_held_job_keeps_the_order,
    every_transition_leaves_an_event,
);

on_every_store!(store_reap:
    passed_deadlines_expire,
    expired_lease_is_rescued,
    a_live_lease_is_left_alone,
    three_losses_alone_quarantine,
    losses_among_others_are_not_proof,
    leases_that_ran_out_at_different_times_are_no_proof,
    a_late_and_lost_job_expires,
    the_limit_holds_for_deadlines,
    a_lost_predecessor_keeps_its_sequence,
);

on_every_store!(store_sequences:
    each_end_blocks_or_skips_as_asked,
    a_blocked_sequence_holds_what_is_accepted,
    resuming_wakes_the_first_and_only_that,
    of_two_resumes_at_once_one_wakes,
    resuming_what_is_not_there_finds_nothing,
    held_jobs_end_without_waking_others,
    a_job_that_expires_behind_another_one_blocks_too,
    of_ends_at_one_time_the_first_accepted_blocks,
    blocked_sequences_are_listed_by_key_and_paged,
    a_block_outlives_the_process,
    a_job_shows_its_sequence,
);

on_every_store!(store_feed:
    due_rows_are_due_once,
    an_unused_message_is_due_again_after_a_minute,
    a_job_published_by_its_caller_is_not_due,
    wake_now_makes_due_at_once,
    due_takes_tenants_in_turn,
    turns_go_on_from_call_to_call,
    due_is_oldest_first_within_a_tenant,
    due_respects_queue_and_limit,
    queued_leaves_out_held_and_running,
    queues_are_those_with_unfinished_jobs,
    the_lead_has_one_holder,
);

on_every_store!(store_read:
    tenants_see_only_their_own,
    lists_are_newest_first_and_paged,
    filters_narrow_a_list,
    a_list_leaves_records_out,
    restart_keeps_everything,
);

on_every_store!(store_archive:
    a_succeeded_job_waits_to_be_archived,
    what_did_not_succeed_or_keeps_nothing_never_waits,
    a_full_trajectory_takes_the_records_place,
    a_redacted_trajectory_leaves_the_record,
    the_first_switch_counts,
    of_concurrent_switches_one_has_each_row,
    places_outlive_the_process,
    a_name_means_the_newest_release_offered,
);

on_every_store!(store_retention:
    a_payload_is_kept_exactly_for_its_time,
    what_is_kept_for_ever_and_what_has_not_ended_stays,
    every_end_is_emptied_and_errors_stay,
    nothing_of_a_payload_is_left,
    lines_wait_for_their_batch,
    open_batches_hide_nobody,
    an_announced_segment_that_nobody_switched_goes_after_an_hour,
    a_segment_is_kept_as_long_as_one_of_its_jobs,
    an_emptied_job_is_archived_by_nobody,
    archiving_beside_emptying_loses_no_segment,
);

on_every_store!(store_keys:
    a_key_is_found_by_its_prefix,
    an_installation_knows_whether_it_ever_had_a_key,
    a_key_ends_at_its_time,
    the_first_revocation_counts,
    keys_are_listed_by_tenant_newest_first,
    a_prefix_is_of_one_key,
);

on_every_store!(store_batches:
    a_file_is_kept_as_it_was_given,
    files_are_paged_in_both_orders,
    a_deleted_file_is_gone,
    expired_files_are_told_until_they_are_empty,
    one_key_makes_one_file_and_one_batch,
    concurrent_adds_of_one_key_make_one_batch,
    a_batch_is_shown_as_it_was_accepted,
    a_wrong_file_fails_its_batch_once,
    expanding_twice_gives_the_same_lines,
    a_batch_completes_when_all_its_lines_have_ended,
    a_cancelled_batch_keeps_what_has_ended,
    a_batch_that_has_ended_is_too_late_to_cancel,
    lines_are_counted_by_their_ends,
    batches_are_listed_newest_first_and_paged,
    ended_lines_come_in_the_order_of_their_ends,
    who_reads_on_misses_no_line,
    lines_with_a_result_are_those_that_succeeded,
    progress_says_what_runs_and_what_is_ahead,
    a_batch_for_later_is_open_until_it_is_checked_and_then_at_its_time,
);

on_every_store!(store_webhooks:
    a_webhook_is_kept_as_it_was_made,
    one_key_makes_one_webhook,
    a_tenant_has_one_secret_of_its_own,
    a_webhook_is_changed_and_rotated,
    a_job_is_told_of_as_it_goes,
    each_end_of_a_job_is_told,
    a_batch_is_told_of_and_its_lines_are_not,
    who_names_it_is_told_how_far_a_batch_is,
    what_is_due_is_taken_for_a_while,
    addresses_are_apart,
    attempts_are_kept_and_decide_what_follows,
    who_wants_no_more_gets_no_more,
    a_webhook_that_is_switched_off_gets_no_more,
    many_ends_at_the_same_time_are_all_kept,
    a_webhook_that_takes_nothing_is_disabled,
    a_delivery_is_sent_again_on_demand,
    a_deleted_webhook_is_told_nothing,
    old_deliveries_are_forgotten,
    a_job_for_later_waits_for_its_time,
);

on_every_store!(store_shares:
    shares_follow_weights_over_many_small_calls,
    shares_follow_weights_within_one_big_call,
    what_a_tenant_leaves_goes_to_the_others,
    an_idle_tenants_single_job_is_in_the_next_call,
    who_was_idle_saves_nothing_up,
    the_least_weight_is_not_starved_by_the_greatest,
    queues_have_turns_of_their_own,
    who_is_not_ahead_of_the_clock_is_forgotten_and_keeps_its_turn,
);

on_every_store!(store_tenants:
    a_tenant_is_kept_as_it_was_set,
    what_is_not_changed_of_a_tenant_stays,
    a_deleted_tenant_is_back_at_its_defaults,
    tenants_are_listed_by_name,
    a_tenants_bound_is_exact_under_concurrent_accepts,
    a_full_tenant_is_refused_and_leaves_nothing,
    of_a_call_a_tenant_gets_what_fits,
    batch_lines_are_not_a_tenants_queued_jobs,
    a_full_tenants_keys_still_find_their_jobs,
);

on_every_store!(store_schedules:
    a_schedule_is_kept_as_it_was_made,
    one_key_makes_one_schedule,
    schedules_are_listed_newest_first_and_a_hundred_are_the_most,
    a_schedule_needs_a_file_for_batches_that_lives,
    a_time_is_run_once_by_whoever_is_first,
    a_run_that_has_not_ended_is_waited_for,
    times_that_were_missed_are_one_run_or_none,
    a_file_stays_while_an_enabled_schedule_uses_it,
    a_schedule_whose_file_is_gone_says_so_and_goes_on,
    a_changed_schedule_runs_at_its_new_times_only,
    runs_on_demand_are_listed_with_the_others,
);

on_every_store!(store_usage:
    usage_is_by_day_and_by_end,
    waste_is_of_the_day_on_which_it_is_booked,
    a_job_that_runs_again_wastes_its_first_attempt,
    usage_is_kept_apart_and_in_order,
    what_was_used_outlives_its_rows,
    many_changes_at_once_are_all_counted,
    the_ledger_can_be_made_anew_from_the_rows,
);

on_every_store!(store_audit:
    what_is_sound_adds_up,
    each_damage_to_a_job_is_found,
    an_event_without_its_row_is_found,
    a_counter_that_is_off_is_found,
    a_batch_that_does_not_add_up_is_found,
    an_audit_is_of_the_days_and_the_tenant_asked_for,
    a_hundred_contradictions_are_named,
);

on_every_store!(random: random_lives_follow_the_model);

on_every_queue!(
    wakes_come_out_in_order,
    a_full_queue_says_so,
    a_slice_above_the_limit_is_confirmed_in_part,
    answers_stand_at_their_places,
    publishing_nothing_answers_nothing,
    publishers_do_not_mix,
    queues_are_apart,
    put_back_comes_before_what_nobody_fetched,
    returns_never_use_a_wake_up,
    an_acknowledged_wake_is_gone,
    taking_never_waits,
    take_gives_no_more_than_asked,
    tags_are_distinct,
    rest_gives_back_what_was_fetched,
    resting_and_taking_lose_nothing,
);

on_every_bus!(
    kept_and_live_events_are_gapless,
    a_reader_skips_what_it_has,
    a_stream_waits_for_the_first_event,
    a_stream_ends_with_the_job,
    a_new_attempt_replaces_the_old_one,
    events_of_an_old_attempt_are_dropped,
    dropped_events_are_gone,
    a_slow_reader_is_cut,
    jobs_do_not_mix,
    a_reader_that_fell_behind_catches_up,
    readers_come_and_go,
    events_come_out_as_they_went_in,
    old_events_go,
    signals_reach_all_listeners,
    workers_live_as_long_as_they_beat,
);
