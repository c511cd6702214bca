"""Mutants of unique tasks: each fault breaks a promise, and a test finds it."""

from __future__ import annotations

from typing import Final

from tests.chaos.edits import lua, py

CALLS: Final = "celery/publish/unique_calls.py"

FOUND_BY_UNIQUE_TESTS: Final = {
    "tests/celery/admission/test_unique.py": {
        "confirm and drop nothing": lua(
            "includes/unique_confirm", "drop_all(before, ttl) end", "end", "new_arguments_under_its_id"
        ),
        "confirm a message that lost its key": lua(
            "includes/unique_confirm", "if found ~= token then", "if not found then", "sent_late"
        ),
        "drop what the store has removed": lua(
            "includes/unique_confirm", "if not (gone and", "if not (false and", "has_a_new_time"
        ),
        "confirm and keep sending": lua(
            "includes/unique_confirm",
            "    own(field, token, '-', new_state, ttl, id, now + ttl)\n",
            "",
            "second_call_returns",
        ),
        "take what was replaced": lua(
            "includes/unique_take",
            "if is_dropped(token, letter) then",
            "if is_dropped(token, letter) and false then",
            "new_arguments_under_its_id",
        ),
        "take a message and let its replacement run": lua(
            "includes/unique_take", "    drop(found, ttl)\n", "", "it_was_to_replace_runs"
        ),
        "keep the key after the start": lua(
            "includes/unique_take", "    if owns then disown(field, owner_id) end\n", "", "until_it_starts"
        ),
        "free the key at the start": lua(
            "includes/unique_take",
            "    own(field, token, '-', 'r', ttl, id, ends)",
            "    disown(field, id)",
            "until_it_ends",
        ),
        "a time that ends with the sending": lua(
            "includes/unique_take", "if until_ == 'e' or state == 's' then", "if until_ == 'e' then", "a_time_goes_on"
        ),
        "forget what a delivery owns": lua(
            "includes/unique_take",
            "return message, table.concat({letter, token, field}, ' ')",
            "return message",
            "until_it_ends",
        ),
        "let the message of a dead sender run": lua(
            "includes/unique_owner", "  if state == 's' then drop(token, ttl) end\n", "", "sent_late"
        ),
        "a dead sender keeps its key": lua(
            "includes/unique_owner", "if ends > now then", "if ends then", "key_is_free_soon"
        ),
        "lose what a dead sender was to replace": lua(
            "includes/unique_owner", "if state == 's' and before ~= '-' then", "if false then", "was_to_replace_can_be"
        ),
        "give up a message and keep its key": lua(
            "includes/unique_owner", "  elseif found == token then\n    disown(field, id)\n", "", "until_it_ends"
        ),
        "give up a message and wait for it": lua(
            "includes/unique_owner", "    own(field, found, rest, state, ttl, id, ends)\n", "", "cancelled_meanwhile"
        ),
        "settle and keep the record": lua(
            "includes/unique_settle", "      redis.call('HDEL', owned, tags[i])\n", "", "until_it_ends"
        ),
        "free a key before its time": lua(
            "includes/unique_settle",
            "if string.lower(letter) ~= 't' then give_up",
            "if true then give_up",
            "for_a_time",
        ),
        "settle and keep the key": lua(
            "includes/unique_settle",
            "if string.lower(letter) ~= 't' then give_up(field, token) end",
            "",
            "until_it_ends",
        ),
        "settle, take and keep the key": lua("admission/take", "free_keys(tags, missing)\n", "", "until_it_ends"),
        "take and record no key": lua(
            "admission/take",
            "  if #keys_owned > 0 then redis.call('HSET', owned, unpack(keys_owned)) end\n",
            "",
            "until_it_ends",
        ),
        "return a message without its key": lua(
            "admission/restore",
            "  if is_owner then own(field, token, '-', 'w', ttl, id, now + ttl) end\n",
            "",
            "rejected_message_waits",
        ),
        "return a message with the key of another one": lua(
            "admission/restore",
            "local is_owner = not found or (found == token and before == '-' and state ~= 's')",
            "local is_owner = true",
            "does_not_take_the_key",
        ),
        "return a message and end the sending of another one": lua(
            "admission/restore",
            "(found == token and before == '-' and state ~= 's')",
            "found == token",
            "killed_between",
        ),
        "return a message and keep its record": lua(
            "admission/restore", "redis.call('HDEL', owned, tag)\n", "", "rejected_message_waits"
        ),
        "send a message that lost its key": lua(
            "admission/send",
            "and not confirm(field, token, 'w', false) then",
            "and not confirm(field, token, 'w', false) and false then",
            "sent_late",
        ),
        "send and confirm nothing": lua(
            "admission/send", "if until_ and is_new and not", "if until_ and false and not", "second_call_returns"
        ),
        "refuse what another broker delivers": lua(
            "admission/send", "if until_ and is_new and not", "if until_ and not", "another_broker_delivers"
        ),
        "refuse a message and keep its mark": lua(
            "admission/send", "  redis.call('ZREM', replaced, token)\n", "", "sent_late"
        ),
        "refuse the key to the retry of its owner": lua(
            "admission/acquire", "if found == running and", "if false and", "retry_that_was_never_sent"
        ),
        "replace a task that runs": lua(
            "admission/acquire",
            "if not replaces or not waits then",
            "if not replaces then",
            "that_runs_is_not_replaced",
        ),
        "own a key while another call is sent": lua(
            "admission/acquire",
            "if state == 's' then return {(running == '' or other == id) and 3 or 0, other, state} end\n",
            "",
            "another_call_waits",
        ),
        "return what is being sent": lua(
            "admission/acquire", "(running == '' or other == id) and 3 or 0", "0", "another_call_waits"
        ),
        "forget the first of two that are replaced": lua(
            "admission/acquire",
            "if before ~= '-' then instead = instead .. '+' .. before end\n",
            "",
            "was_to_replace_can_be",
        ),
        "a dead letter keeps its key": lua(
            "admission/acquire",
            "if not found or (waits and other == gone) then",
            "if not found then",
            "dead_letter_frees",
        ),
        "replace under another id": lua(
            "admission/acquire",
            "own(field, token, instead, 's', ttl, other, now + HOLD)\nreturn {2, other,",
            "own(field, token, instead, 's', ttl, id, now + HOLD)\nreturn {2, id,",
            "new_arguments_under_its_id",
        ),
        "wait for a cancelled message": lua(
            "admission/cancel", "    give_up(field, token)\n", "", "cancelled_meanwhile"
        ),
        "withdraw what was sent": lua(
            "admission/release", "if not sent and state ~= 's' then return 0 end\n", "", "reply_was_lost"
        ),
        "withdraw what took a place in the store": lua(
            "admission/release",
            "if not sent and state_before == 'd' then",
            "if false then",
            "refused_after_it_was_stored",
        ),
        "never confirm": py(
            CALLS,
            "elif not owners.confirm(header.field, header.token, gone=send.progress == Progress.REPLACED):",
            "elif False:",
            "has_a_new_time",
        ),
        "return although the key was lost": py(
            CALLS,
            "                raise LostKeyError\n        except StoreError",
            "                pass\n        except StoreError",
            "sent_late",
        ),
        "a send that failed keeps its key": py(
            CALLS,
            "owners.withdraw(header.field, header.token, sent=send.progress == Progress.MADE)",
            "pass",
            "send_that_fails",
        ),
        "do not send what others wait for": py(
            CALLS,
            "        if call.is_awaited:\n            self._tell",
            "        if False:\n            self._tell",
            "what_others_wait_for_is_sent",
        ),
        "replace what others wait for": py(
            CALLS,
            'if call.is_awaited and call.unique.on_conflict == "replace":',
            "if False:",
            "others_wait_for_is_not_replaced",
        ),
        "wait for a dead letter": py(
            CALLS,
            "return is_dead(owner.task_id) or is_dead(retry_id(owner.task_id))",
            "return False",
            "dead_letter_frees",
        ),
        "return where a call has to raise": py(CALLS, "if call.may_raise:", "if False:", "it_raises"),
        "own keys of what send_many collects": py(
            CALLS, "through_store=through_store)", "through_store=through_store, batch=self._sends.batch)", "send_many"
        ),
        "return what may never be sent": py(
            CALLS,
            "            if late:\n",
            "            if late and not found.owns:\n                return found\n            if late:\n",
            "in_vain_raises",
        ),
        "own a key for longer than a message": py(
            CALLS, "int(min(ttl_ms, expires_ms))", "int(ttl_ms)", "expires_owns_its_key"
        ),
        "forget the delay of a call": py(
            CALLS, "call.unique.ttl_ms + duration_ms(max(0.0, delay))", "call.unique.ttl_ms", "delay_counts_once"
        ),
        "cancel and keep the key": lua(
            "admission/cancel", "if field ~= '' and (flag", "if false and (flag", "cancelled_or_revoked"
        ),
        "free the key of a revoked task, and run it": lua(
            "admission/revoke", "    drop(token, ttl)\n", "", "a_revoke_frees"
        ),
        "free the key of a revoked task that runs": lua(
            "admission/revoke", " and before == '-' and (state == 'w' or state == 'd')", "", "a_revoke_leaves_the_key"
        ),
        "free the key of a revoked task that others wait for": lua(
            "admission/acquire", "if not awaited then", "if true then", "a_revoke_leaves_a_task"
        ),
    },
    "tests/celery/admission/test_unique_faults.py": {
        "take a message and let one of two replacements run": lua(
            "includes/unique_take", "    drop_all(rest, ttl)\n", "", "all_that_was_to_replace"
        ),
        "take a replacement and let the replaced one run": lua(
            "includes/unique_take", "    drop_all(before, ttl)\n", "", "what_it_was_to_replace"
        ),
        "count the ttl from the call": lua(
            "includes/unique_take",
            "if until_ == 'e' or state == 's' then",
            "if state == 's' then",
            "time_of_a_key_begins",
        ),
        "run without a key after the ttl": lua(
            "includes/unique_take", " or (not found and until_ == 'e')", "", "whose_time_has_passed"
        ),
        "keep a key for an unconfirmed message": lua(
            "includes/unique_owner",
            "if rest == '' and state ~= 's' then",
            "if false then",
            "cancelled_after_its_replacement",
        ),
        "free the key of a lost lease": lua(
            "includes/unique_settle", "if not lost[tags[i]] then", "if true then", "late_one_frees_no_key"
        ),
        "settle and keep the mark": lua(
            "includes/unique_settle", "        is_dropped(token, letter)\n", "", "sent_again_leaves_nothing"
        ),
        "settle alone and keep the key": lua("admission/settle", "free_keys(tags, missing)\n", "", "alone"),
        "return a replaced message with its key": lua(
            "admission/restore",
            "  if redis.call('ZSCORE', replaced, token) then is_owner = false end\n",
            "",
            "does_not_wait_again",
        ),
        "acquire twice": lua("admission/acquire", "if found == token then", "if false then", "repeated_call"),
        "shorten the time of what is replaced": lua(
            "admission/acquire", "ttl = string.format('%.0f', math.max(ttl, ends - now))\n", "", "may_wait_longer"
        ),
        "hold a key for its ttl while it is sent": lua(
            "admission/acquire",
            "own(field, token, before_it, 's', ttl, id, now + HOLD)",
            "own(field, token, before_it, 's', ttl, id, now + ttl)",
            "lost_its_key_does_not",
        ),
        "never remove owners": lua(
            "admission/acquire", "  if not owner(name) then disown(name, '') end\n", "", "forgets_what_has_ended"
        ),
        "never remove marks": lua(
            "admission/acquire",
            "if #old > 0 then redis.call('ZREM', replaced, unpack(old)) end\n",
            "",
            "forgets_what_has_ended",
        ),
        "free the key of another message": lua(
            "admission/release", " or (token ~= '' and found ~= token)", "", "lost_its_key_does_not"
        ),
        "withdraw a message and let it run": lua(
            "admission/release", "if not sent then drop(found, ttl) end\n", "", "was_withdrawn"
        ),
        "withdraw a message and free the key of the one before": lua(
            "admission/release", "if token_before and token ~= '' then", "if false then", "was_withdrawn"
        ),
        "cancel and let what was sent run": lua(
            "admission/cancel", "if maybe_sent then drop", "if false then drop", "may_have_sent_does_not_run"
        ),
        "cancel and let run what the message was to replace": lua(
            "admission/cancel", "do drop(other, ttl) end", "do end", "never_confirmed_is_removed"
        ),
        "cancel another message than that whose key is freed": lua(
            "admission/cancel", "if record and not", "if false and not", "replaced_meanwhile_frees"
        ),
        "cancel a retry and keep its key": py(
            "celery/entries.py", 'verbs.setdefault(retry_id(name), "remove")', "pass", "behind_another_call_frees"
        ),
        "cancel without an app and keep the key": py(
            "celery/entries.py", "if row.outcome is None and key is not None:", "if False:", "without_the_app"
        ),
        "let a retry be replaced for which others wait": py(
            CALLS,
            'TIME or (call.is_awaited and call.unique.on_conflict == "replace"):',
            "TIME:",
            "others_wait_is_not_replaced",
        ),
        "own a key by the clock of the host": py(CALLS, "if expires_ms == math.inf:", "if False:", "clock_of_its_host"),
        "remember a message that was never written": py(
            CALLS, "sent=send.progress == Progress.MADE", "sent=False", "cannot_be_written"
        ),
        "forget a message that may come again": lua(
            "includes/unique_owner",
            "if letter == string.lower(letter) then",
            "if true then",
            "not_run_once_it_was_replaced",
        ),
        "return a message and forget that it may come again": lua(
            "admission/restore", "if letter then message =", "if false then message =", "not_run_once_it_was_replaced"
        ),
        "keep marks of messages that came for as long as of others": lua(
            "includes/unique_owner",
            "  if kept then redis.call('ZADD', replaced, string.format('%.0f', now + AGAIN), token) end\n",
            "",
            "not_run_once_it_was_replaced",
        ),
        "a second retry replaces the first one and keeps its key": py(
            CALLS, "(token := self._earlier(call, result, request))", '(token := "")', "its_retry_replaces"
        ),
        "a second retry replaces one that is being sent": lua(
            "admission/acquire",
            "(running == '' or other == id) and 3 or 0",
            "running == '' and 3 or 0",
            "its_retry_waits",
        ),
    },
    "tests/celery/admission/test_unique_workers.py": {
        "a retry replaces another call": py(
            CALLS,
            'call.unique.on_conflict == "replace" and not call.is_retry',
            'call.unique.on_conflict == "replace"',
            "another_call_waits",
        ),
        "a retry counts as a call": py(
            CALLS, "        if is_retry_of(self._app, id_):\n", "        if False:\n", "retries_keep"
        ),
        "a retry takes a new key": py(
            CALLS, "key, token = running.key, running.token", "key, token = running.key, NOBODY", "retries_keep"
        ),
    },
    "tests/celery/admission/test_unique_store.py": {
        "delete a dead letter and keep its key": py(
            "celery/entries.py", "if self._has_keys() else {}", "if False else {}", "its_key_is_free"
        ),
        "delete dead letters that died later": lua(
            "admission/cancel", "(died and died <= latest)", "died", "one_that_stays_keeps"
        ),
        "reschedule and keep the time of the key": py(
            "celery/stored_tasks.py", "due_at=eta) and self.extend_key(id)", "due_at=eta)", "counts_from_it"
        ),
        "extend the key of another message": lua(
            "admission/extend", "if found ~= token or", "if not found or", "does_not_own_the_key"
        ),
    },
}
