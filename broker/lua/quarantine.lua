-- quarantine: keep a copy of a request that was given up, for people to look at and to try again.
--
-- The request's error output is committed separately, after this; doing both twice does no harm. Old entries, and
-- the oldest beyond the limit, go.
--
-- KEYS 1 quarantine  2 quarantine times
-- ARGV 1 entry name  2 entry  3 time to live in ms  4 most entries
-- Returns entries kept.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now, ARGV[1])
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[3])
local surplus = redis.call('ZCARD', KEYS[2]) - #old - ARGV[4]
if surplus > 0 then
  for _, name in ipairs(redis.call('ZRANGE', KEYS[2], #old, #old + surplus - 1)) do old[#old + 1] = name end
end
for _, name in ipairs(old) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return redis.call('ZCARD', KEYS[2])
