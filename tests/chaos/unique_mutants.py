"""Mutants of unique tasks: each fault breaks a promise, and the row `unique` or a test finds it."""

from __future__ import annotations

from typing import Final

from tests.chaos.edits import Edit, Mutant, lua

UNIQUE: Final = "tests/celery/admission/test_unique.py"
FAULTS: Final = "tests/celery/admission/test_unique_faults.py"
WORKERS: Final = "tests/celery/admission/test_unique_workers.py"
STORE: Final = "tests/celery/admission/test_unique_store.py"
CALLS: Final = "celery/publish/unique_calls.py"

MESSAGES: Final = 150

UNIQUE_MUTANTS: Final = [
    Mutant(
        "confirm and drop nothing",
        (lua("includes/unique_confirm", "drop_all(before, ttl) end", "end"),),
        f"{UNIQUE} -k new_arguments_under_its_id",
    ),
    Mutant(
        "confirm a message that lost its key",
        (lua("includes/unique_confirm", "if found ~= token then", "if not found then"),),
        f"{UNIQUE} -k sent_late",
    ),
    Mutant(
        "drop what the store has removed",
        (lua("includes/unique_confirm", "if not (gone and", "if not (false and"),),
        f"{UNIQUE} -k has_a_new_time",
    ),
    Mutant(
        "confirm and keep sending",
        (lua("includes/unique_confirm", "    own(field, token, '-', new_state, ttl, id, now + ttl)\n", ""),),
        f"{UNIQUE} -k second_call_returns",
    ),
    Mutant(
        "take what was replaced",
        (
            lua(
                "includes/unique_take",
                "if is_dropped(token, letter) then",
                "if is_dropped(token, letter) and false then",
            ),
        ),
        f"{UNIQUE} -k new_arguments_under_its_id",
    ),
    Mutant(
        "take a message and let its replacement run",
        (lua("includes/unique_take", "    drop(found, ttl)\n", ""),),
        f"{UNIQUE} -k it_was_to_replace_runs",
    ),
    Mutant(
        "take a message and let one of two replacements run",
        (lua("includes/unique_take", "    drop_all(rest, ttl)\n", ""),),
        f"{FAULTS} -k all_that_was_to_replace",
    ),
    Mutant(
        "take a replacement and let the replaced one run",
        (lua("includes/unique_take", "    drop_all(before, ttl)\n", ""),),
        f"{FAULTS} -k what_it_was_to_replace",
    ),
    Mutant(
        "keep the key after the start",
        (lua("includes/unique_take", "    if owns then disown(field, owner_id) end\n", ""),),
        f"{UNIQUE} -k until_it_starts",
    ),
    Mutant(
        "free the key at the start",
        (lua("includes/unique_take", "    own(field, token, '-', 'r', ttl, id, ends)", "    disown(field, id)"),),
        f"{UNIQUE} -k until_it_ends",
    ),
    Mutant(
        "a time that ends with the sending",
        (lua("includes/unique_take", "if until_ == 'e' or state == 's' then", "if until_ == 'e' then"),),
        f"{UNIQUE} -k a_time_goes_on",
    ),
    Mutant(
        "count the ttl from the call",
        (lua("includes/unique_take", "if until_ == 'e' or state == 's' then", "if state == 's' then"),),
        f"{FAULTS} -k time_of_a_key_begins",
    ),
    Mutant(
        "forget what a delivery owns",
        (lua("includes/unique_take", "return message, table.concat({letter, token, field}, ' ')", "return message"),),
        f"{UNIQUE} -k until_it_ends",
    ),
    Mutant(
        "run without a key after the ttl",
        (lua("includes/unique_take", " or (not found and until_ == 'e')", ""),),
        f"{FAULTS} -k whose_time_has_passed",
    ),
    Mutant(
        "let the message of a dead sender run",
        (lua("includes/unique_owner", "  if state == 's' then drop(token, ttl) end\n", ""),),
        f"{UNIQUE} -k sent_late",
    ),
    Mutant(
        "a dead sender keeps its key",
        (lua("includes/unique_owner", "if ends > now then", "if ends then"),),
        f"{UNIQUE} -k key_is_free_soon",
    ),
    Mutant(
        "lose what a dead sender was to replace",
        (lua("includes/unique_owner", "if state == 's' and before ~= '-' then", "if false then"),),
        f"{UNIQUE} -k was_to_replace_can_be",
    ),
    Mutant(
        "keep a key for an unconfirmed message",
        (lua("includes/unique_owner", "if rest == '' and state ~= 's' then", "if false then"),),
        f"{FAULTS} -k cancelled_after_its_replacement",
    ),
    Mutant(
        "give up a message and keep its key",
        (lua("includes/unique_owner", "  elseif found == token then\n    disown(field, id)\n", ""),),
        f"{UNIQUE} -k until_it_ends",
    ),
    Mutant(
        "give up a message and wait for it",
        (lua("includes/unique_owner", "    own(field, found, rest, state, ttl, id, ends)\n", ""),),
        f"{UNIQUE} -k cancelled_meanwhile",
    ),
    Mutant(
        "free the key of a lost lease",
        (lua("includes/unique_settle", "if not lost[tags[i]] then", "if true then"),),
        f"{FAULTS} -k late_one_frees_no_key",
    ),
    Mutant(
        "settle and keep the mark",
        (lua("includes/unique_settle", "        is_dropped(token, letter)\n", ""),),
        f"{FAULTS} -k sent_again_leaves_nothing",
    ),
    Mutant(
        "settle and keep the record",
        (lua("includes/unique_settle", "      redis.call('HDEL', owned, tags[i])\n", ""),),
        f"{UNIQUE} -k until_it_ends",
    ),
    Mutant(
        "free a key before its time",
        (lua("includes/unique_settle", "if string.lower(letter) ~= 't' then give_up", "if true then give_up"),),
        f"{UNIQUE} -k for_a_time",
    ),
    Mutant(
        "settle and keep the key",
        (lua("includes/unique_settle", "if string.lower(letter) ~= 't' then give_up(field, token) end", ""),),
        f"{UNIQUE} -k until_it_ends",
    ),
    Mutant(
        "settle alone and keep the key",
        (lua("admission/settle", "free_keys(tags, missing)\n", ""),),
        f"{FAULTS} -k alone",
    ),
    Mutant(
        "settle, take and keep the key",
        (lua("admission/take", "free_keys(tags, missing)\n", ""),),
        f"{UNIQUE} -k until_it_ends",
    ),
    Mutant(
        "take and record no key",
        (
            lua(
                "admission/take",
                "  if #keys_owned > 0 then redis.call('HSET', owned, unpack(keys_owned)) end\n",
                "",
            ),
        ),
        f"{UNIQUE} -k until_it_ends",
    ),
    Mutant(
        "return a message without its key",
        (lua("admission/restore", "  if is_owner then own(field, token, '-', 'w', ttl, id, now + ttl) end\n", ""),),
        f"{UNIQUE} -k rejected_message_waits",
    ),
    Mutant(
        "return a message with the key of another one",
        (
            lua(
                "admission/restore",
                "local is_owner = not found or (found == token and before == '-' and state ~= 's')",
                "local is_owner = true",
            ),
        ),
        f"{UNIQUE} -k does_not_take_the_key",
    ),
    Mutant(
        "return a message and end the sending of another one",
        (lua("admission/restore", "(found == token and before == '-' and state ~= 's')", "found == token"),),
        f"{UNIQUE} -k killed_between",
    ),
    Mutant(
        "return a replaced message with its key",
        (lua("admission/restore", "  if redis.call('ZSCORE', replaced, token) then is_owner = false end\n", ""),),
        f"{FAULTS} -k does_not_wait_again",
    ),
    Mutant(
        "return a message and keep its record",
        (lua("admission/restore", "redis.call('HDEL', owned, tag)\n", ""),),
        f"{UNIQUE} -k rejected_message_waits",
    ),
    Mutant(
        "send a message that lost its key",
        (
            lua(
                "admission/send",
                "and not confirm(field, token, 'w', false) then",
                "and not confirm(field, token, 'w', false) and false then",
            ),
        ),
        f"{UNIQUE} -k sent_late",
    ),
    Mutant(
        "send and confirm nothing",
        (lua("admission/send", "if until_ and is_new and not", "if until_ and false and not"),),
        f"{UNIQUE} -k second_call_returns",
    ),
    Mutant(
        "refuse what another broker delivers",
        (lua("admission/send", "if until_ and is_new and not", "if until_ and not"),),
        f"{UNIQUE} -k another_broker_delivers",
    ),
    Mutant(
        "refuse a message and keep its mark",
        (lua("admission/send", "  redis.call('ZREM', replaced, token)\n", ""),),
        f"{UNIQUE} -k sent_late",
    ),
    Mutant(
        "acquire twice",
        (lua("admission/acquire", "if found == token then", "if false then"),),
        f"{FAULTS} -k repeated_call",
    ),
    Mutant(
        "refuse the key to the retry of its owner",
        (lua("admission/acquire", "if found == running and", "if false and"),),
        f"{UNIQUE} -k retry_that_was_never_sent",
    ),
    Mutant(
        "replace a task that runs",
        (lua("admission/acquire", "if not replaces or not waits then", "if not replaces then"),),
        f"{UNIQUE} -k that_runs_is_not_replaced",
    ),
    Mutant(
        "own a key while another call is sent",
        (
            lua(
                "admission/acquire",
                "if state == 's' then return {(running == '' or other == id) and 3 or 0, other, state} end\n",
                "",
            ),
        ),
        f"{UNIQUE} -k another_call_waits",
    ),
    Mutant(
        "return what is being sent",
        (lua("admission/acquire", "(running == '' or other == id) and 3 or 0", "0"),),
        f"{UNIQUE} -k another_call_waits",
    ),
    Mutant(
        "shorten the time of what is replaced",
        (lua("admission/acquire", "ttl = string.format('%.0f', math.max(ttl, ends - now))\n", ""),),
        f"{FAULTS} -k may_wait_longer",
    ),
    Mutant(
        "forget the first of two that are replaced",
        (lua("admission/acquire", "if before ~= '-' then instead = instead .. '+' .. before end\n", ""),),
        f"{UNIQUE} -k was_to_replace_can_be",
    ),
    Mutant(
        "hold a key for its ttl while it is sent",
        (
            lua(
                "admission/acquire",
                "own(field, token, before_it, 's', ttl, id, now + HOLD)",
                "own(field, token, before_it, 's', ttl, id, now + ttl)",
            ),
        ),
        f"{FAULTS} -k lost_its_key_does_not",
    ),
    Mutant(
        "a dead letter keeps its key",
        (lua("admission/acquire", "if not found or (waits and other == gone) then", "if not found then"),),
        f"{UNIQUE} -k dead_letter_frees",
    ),
    Mutant(
        "never remove owners",
        (lua("admission/acquire", "  if not owner(name) then disown(name, '') end\n", ""),),
        f"{FAULTS} -k forgets_what_has_ended",
    ),
    Mutant(
        "never remove marks",
        (lua("admission/acquire", "if #old > 0 then redis.call('ZREM', replaced, unpack(old)) end\n", ""),),
        f"{FAULTS} -k forgets_what_has_ended",
    ),
    Mutant(
        "replace under another id",
        (
            lua(
                "admission/acquire",
                "own(field, token, instead, 's', ttl, other, now + HOLD)\nreturn {2, other,",
                "own(field, token, instead, 's', ttl, id, now + HOLD)\nreturn {2, id,",
            ),
        ),
        f"{UNIQUE} -k new_arguments_under_its_id",
    ),
    Mutant(
        "free the key of another message",
        (lua("admission/release", " or (token ~= '' and found ~= token)", ""),),
        f"{FAULTS} -k lost_its_key_does_not",
    ),
    Mutant(
        "wait for a cancelled message",
        (lua("admission/cancel", "    give_up(field, token)\n", ""),),
        f"{UNIQUE} -k cancelled_meanwhile",
    ),
    Mutant(
        "withdraw what was sent",
        (lua("admission/release", "if not sent and state ~= 's' then return 0 end\n", ""),),
        f"{UNIQUE} -k reply_was_lost",
    ),
    Mutant(
        "withdraw what took a place in the store",
        (lua("admission/release", "if not sent and state_before == 'd' then", "if false then"),),
        f"{UNIQUE} -k refused_after_it_was_stored",
    ),
    Mutant(
        "withdraw a message and let it run",
        (lua("admission/release", "if not sent then drop(found, ttl) end\n", ""),),
        f"{FAULTS} -k was_withdrawn",
    ),
    Mutant(
        "withdraw a message and free the key of the one before",
        (lua("admission/release", "if token_before and token ~= '' then", "if false then"),),
        f"{FAULTS} -k was_withdrawn",
    ),
    Mutant(
        "a retry replaces another call",
        (Edit(CALLS, 'call.unique.on_conflict == "replace" and not running', 'call.unique.on_conflict == "replace"'),),
        f"{WORKERS} -k another_call_waits",
    ),
    Mutant(
        "a retry counts as a call",
        (Edit(CALLS, "        if is_retry_of(self._app, id_):\n", "        if False:\n"),),
        f"{WORKERS} -k retries_keep",
    ),
    Mutant(
        "a retry takes a new key",
        (Edit(CALLS, "key, token = running.key, running.token", "key, token = running.key, NOBODY"),),
        f"{WORKERS} -k retries_keep",
    ),
    Mutant(
        "never confirm",
        (
            Edit(
                CALLS,
                "elif not owners.confirm(header.field, header.token, gone=send.progress == Progress.REPLACED):",
                "elif False:",
            ),
        ),
        f"{UNIQUE} -k has_a_new_time",
    ),
    Mutant(
        "return although the key was lost",
        (
            Edit(
                CALLS,
                "                raise LostKeyError\n        except StoreError",
                "                pass\n        except StoreError",
            ),
        ),
        f"{UNIQUE} -k sent_late",
    ),
    Mutant(
        "a send that failed keeps its key",
        (Edit(CALLS, "owners.withdraw(header.field, header.token, sent=send.progress == Progress.MADE)", "pass"),),
        f"{UNIQUE} -k send_that_fails",
    ),
    Mutant(
        "do not send what others wait for",
        (
            Edit(
                CALLS,
                "        if call.is_awaited:\n            self._tell",
                "        if False:\n            self._tell",
            ),
        ),
        f"{UNIQUE} -k what_others_wait_for_is_sent",
    ),
    Mutant(
        "replace what others wait for",
        (Edit(CALLS, 'if call.is_awaited and call.unique.on_conflict == "replace":', "if False:"),),
        f"{UNIQUE} -k others_wait_for_is_not_replaced",
    ),
    Mutant(
        "wait for a dead letter",
        (Edit(CALLS, "return is_dead(owner.task_id) or is_dead(retry_id(owner.task_id))", "return False"),),
        f"{UNIQUE} -k dead_letter_frees",
    ),
    Mutant(
        "return where a call has to raise",
        (Edit(CALLS, "if call.may_raise and not collects:", "if False:"),),
        f"{UNIQUE} -k it_raises",
    ),
    Mutant(
        "own keys of what push_many collects",
        (Edit("celery/publish/send.py", "with self._set(send, None):", "with self._set(send, self.batch):"),),
        f"{UNIQUE} -k push_many",
    ),
    Mutant(
        "return what may never be sent",
        (
            Edit(
                CALLS,
                "            if late:\n",
                "            if late and not found.owns:\n                return found\n            if late:\n",
            ),
        ),
        f"{UNIQUE} -k in_vain_raises",
    ),
    Mutant(
        "own a key for longer than a message",
        (Edit(CALLS, "int(min(ttl_ms, expires_ms))", "int(ttl_ms)"),),
        f"{UNIQUE} -k expires_owns_its_key",
    ),
    Mutant(
        "forget the delay of a call",
        (Edit(CALLS, "call.unique.ttl_ms + duration_ms(max(0.0, delay))", "call.unique.ttl_ms"),),
        f"{UNIQUE} -k delay_counts_once",
    ),
    Mutant(
        "cancel and keep the key",
        (lua("admission/cancel", "if field ~= '' and (flag", "if false and (flag"),),
        f"{UNIQUE} -k cancelled_or_revoked",
    ),
    Mutant(
        "cancel and let what was sent run",
        (lua("admission/cancel", "if maybe_sent then drop", "if false then drop"),),
        f"{FAULTS} -k may_have_sent_does_not_run",
    ),
    Mutant(
        "cancel and let run what the message was to replace",
        (lua("admission/cancel", "do drop(other, ttl) end", "do end"),),
        f"{FAULTS} -k never_confirmed_is_removed",
    ),
    Mutant(
        "cancel another message than that whose key is freed",
        (lua("includes/remove_entry", "if record and not", "if false and not"),),
        f"{FAULTS} -k replaced_meanwhile_frees",
    ),
    Mutant(
        "cancel a retry and keep its key",
        (
            Edit(
                "celery/stored_tasks.py",
                "self._removal.cancel([*names, *map(retry_id, names)])",
                "self._removal.cancel(names) * 2",
            ),
        ),
        f"{FAULTS} -k behind_another_call_frees",
    ),
    Mutant(
        "cancel without an app and keep the key",
        (Edit("operate/access.py", "if removal.has_keys() else", "if False else"),),
        f"{FAULTS} -k without_the_app",
    ),
    Mutant(
        "delete a dead letter and keep its key",
        (Edit("celery/message_store.py", "if self.has_keys() else {}", "if False else {}"),),
        f"{STORE} -k its_key_is_free",
    ),
    Mutant(
        "delete dead letters that died later",
        (lua("admission/cancel", "(died and died <= latest)", "died"),),
        f"{STORE} -k one_that_stays_keeps",
    ),
    Mutant(
        "reschedule and keep the time of the key",
        (Edit("celery/stored_tasks.py", "due_at=eta) and self._extend_key(id)", "due_at=eta)"),),
        f"{STORE} -k counts_from_it",
    ),
    Mutant(
        "extend the key of another message",
        (lua("admission/extend", "if found ~= token or", "if not found or"),),
        f"{STORE} -k does_not_own_the_key",
    ),
    Mutant(
        "let a retry be replaced for which others wait",
        (
            Edit(
                CALLS,
                'TIME or (call.is_awaited and call.unique.on_conflict == "replace"):',
                "TIME:",
            ),
        ),
        f"{FAULTS} -k others_wait_is_not_replaced",
    ),
    Mutant(
        "own a key by the clock of the host",
        (Edit(CALLS, "if expires_ms == math.inf:", "if False:"),),
        f"{FAULTS} -k clock_of_its_host",
    ),
    Mutant(
        "remember a message that was never written",
        (Edit(CALLS, "sent=send.progress == Progress.MADE", "sent=False"),),
        f"{FAULTS} -k cannot_be_written",
    ),
    Mutant(
        "forget a message that may come again",
        (lua("includes/unique_owner", "if letter == string.lower(letter) then", "if true then"),),
        f"{FAULTS} -k not_run_once_it_was_replaced",
    ),
    Mutant(
        "return a message and forget that it may come again",
        (lua("admission/restore", "if letter then message =", "if false then message ="),),
        f"{FAULTS} -k not_run_once_it_was_replaced",
    ),
    Mutant(
        "keep marks of messages that came for as long as of others",
        (
            lua(
                "includes/unique_owner",
                "  if kept then redis.call('ZADD', replaced, string.format('%.0f', now + AGAIN), token) end\n",
                "",
            ),
        ),
        f"{FAULTS} -k not_run_once_it_was_replaced",
    ),
    Mutant(
        "a second retry replaces the first one and keeps its key",
        (Edit(CALLS, "(token := self._earlier(call, result, request))", '(token := "")'),),
        f"{FAULTS} -k its_retry_replaces",
    ),
    Mutant(
        "a second retry replaces one that is being sent",
        (lua("admission/acquire", "(running == '' or other == id) and 3 or 0", "running == '' and 3 or 0"),),
        f"{FAULTS} -k its_retry_waits",
    ),
    Mutant(
        "run what was replaced",
        (
            lua(
                "includes/unique_take",
                "if is_dropped(token, letter) then",
                "if is_dropped(token, letter) and false then",
            ),
        ),
        messages=MESSAGES,
        scenario="unique",
    ),
    Mutant(
        "let two tasks of a key run",
        (lua("includes/unique_take", "    own(field, token, '-', 'r', ttl, id, ends)", "    disown(field, id)"),),
        messages=MESSAGES,
        scenario="unique",
    ),
    Mutant(
        "free the key of a revoked task, and run it",
        (lua("admission/revoke", "    drop(token, ttl)\n", ""),),
        f"{UNIQUE} -k a_revoke_frees",
    ),
    Mutant(
        "free the key of a revoked task that runs",
        (lua("admission/revoke", " and before == '-' and (state == 'w' or state == 'd')", ""),),
        f"{UNIQUE} -k a_revoke_leaves_the_key",
    ),
    Mutant(
        "free the key of a revoked task that others wait for",
        (lua("admission/acquire", "if not awaited then", "if true then"),),
        f"{UNIQUE} -k a_revoke_leaves_a_task",
    ),
]
