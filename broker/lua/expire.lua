-- expire: mark a session dead. From now on its beats and claims are refused; the leader releases its batches.
--
-- A detector names the beat that it judged by: a beat that came since saves the session. The supervisor, which saw
-- the process end, names none.
--
-- KEYS 1 session  2 sessions  3 wake
-- ARGV 1 session id  2 reason  3 beat that was judged, in ms ('' for none)  4 cause (crashed, hung, lost, stopped)
-- Returns 1 when this call killed the session, 0 when it was dead before, gone, or has beaten since.

local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == 'dead' then return 0 end
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
