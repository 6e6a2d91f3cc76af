-- beat: renew a session's lease and store what it reports.
--
-- Takes along what the leader has ordered (`recall`), unless that is too old to be still right.
-- Notes when the engine last made a step, or had nothing to do: a worker that beats with work in hand and makes no
-- step hangs.
--
-- KEYS 1 session  2 sessions  3 worker  4 wake
-- ARGV 1 session id  2 time to live of the worker's name in s  then: fields (name, value, ...)
-- Returns {what to do, how many requests to give back, whether those too that have begun (0|1)}. What to do is -1 when the session is fenced
-- (dead or gone) and must stop, 1 when it is asked to drain, else 0.

local MAX_RECALL_AGE_MS = 5000
local before = redis.call('HMGET', KEYS[1], 'state', 'drain', 'steps', 'recall', 'recall_ms', 'recall_begun')
if not before[1] or before[1] == 'dead' then return { -1, 0, 0 } end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[2])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))

local after = redis.call('HMGET', KEYS[1], 'state', 'steps', 'running', 'waiting')
local idle = tonumber(after[3] or '0') + tonumber(after[4] or '0') == 0
if idle or after[2] ~= before[3] then redis.call('HSET', KEYS[1], 'progress_ms', now) end
if after[1] ~= before[1] then
  redis.call('LPUSH', KEYS[4], 1)
  redis.call('LTRIM', KEYS[4], 0, 0)
end
local recalled = 0
if before[4] then
  redis.call('HDEL', KEYS[1], 'recall', 'recall_begun')
  if now - before[5] <= MAX_RECALL_AGE_MS then recalled = tonumber(before[4]) end
end
return { tonumber(before[2] or '0'), recalled, tonumber(before[6] or '0') }
