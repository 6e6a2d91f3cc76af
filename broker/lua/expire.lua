-- expire: mark a session dead. From now on its beats and claims are refused; the leader releases its batches.
--
-- A detector names the beat that it judged by: a beat that came since saves the session. The supervisor, which saw
-- the process end, names none.
--
-- KEYS 1 session  2 sessions  3 wake
-- ARGV 1 session id  2 reason  3 beat that was judged, in ms ('' for none)  4 cause (crashed, hung, lost, stopped)
--      5 instance that the session must be of ('' for any): a supervisor speaks for its own process only
-- Returns 1 when this call killed the session, 0 when it was dead before, gone, another's, or has beaten since.

local session = redis.call('HMGET', KEYS[1], 'state', 'instance')
if not session[1] or session[1] == 'dead' then return 0 end
if ARGV[5] ~= '' and session[2] ~= ARGV[5] then return 0 end
if ARGV[3] ~= '' then
  local beat = redis.call('ZSCORE', KEYS[2], ARGV[1])
  if beat and tonumber(beat) > tonumber(ARGV[3]) then return 0 end
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'state', 'dead', 'reason', ARGV[2], 'cause', ARGV[4],
  'dead_ms', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('LPUSH', KEYS[3], 1)
redis.call('LTRIM', KEYS[3], 0, 0)
return 1
