-- beat: renew a session's lease and store what it reports.
--
-- KEYS 1 session  2 sessions  3 worker  4 wake
-- ARGV 1 session id  2 time to live of the worker's name in s  then: fields (name, value, ...)
-- Returns -1 when the session is fenced (dead or gone) and must stop, 1 when it is asked to drain, else 0.

local before = redis.call('HMGET', KEYS[1], 'state', 'drain')
if not before[1] or before[1] == 'dead' then return -1 end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[2])
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
if redis.call('HGET', KEYS[1], 'state') ~= before[1] then
  redis.call('LPUSH', KEYS[4], 1)
  redis.call('LTRIM', KEYS[4], 0, 0)
end
return tonumber(before[2] or '0')
