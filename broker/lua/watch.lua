-- watch: the supervisor of a session's process says that it is there, and will report that process's end.
--
-- KEYS 1 session
-- ARGV 1 instance that the session must be of
-- Returns the session's state, false when it is gone.

local session = redis.call('HMGET', KEYS[1], 'state', 'instance')
if session[1] and session[1] ~= 'dead' and session[2] == ARGV[1] then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'watched_ms', time[1] * 1000 + math.floor(time[2] / 1000))
end
return session[1]
