-- submit: add a run of requests to a job, and create the job with the first run.
--
-- A run names its place (offset), so the same call sent twice changes nothing. A job is complete only once it is
-- sealed: `last` says that no request follows. An empty run keeps an open job alive, or seals it.
--
-- KEYS 1 job  2 requests  3 costs  4 pending  5 jobs  6 wake  7 closing  8 waiting  9 stopping
-- ARGV 1 job id  2 model  3 priority  4 offset  5 last (0|1)  6 deadline in ms from now (0 for none; counts at
--      creation only)  then, for each request: payload, cost in tokens
-- Returns requests submitted so far; -1 when the job is unknown or already sealed with fewer requests.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local offset = tonumber(ARGV[4])
local count = (#ARGV - 6) / 2

if redis.call('EXISTS', KEYS[1]) == 0 then
  if offset > 0 then return -1 end
  local deadline = 0
  if tonumber(ARGV[6]) > 0 then deadline = now + ARGV[6] end
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'model', ARGV[2], 'priority', ARGV[3], 'state', 'open',
    'submitted', 0, 'done', 0, 'failed', 0, 'dropped', 0, 'prompt_tokens', 0, 'completion_tokens', 0,
    'created_ms', now, 'touched_ms', now, 'finished_ms', 0, 'cancelled', 0,
    'deadline_ms', string.format('%.0f', deadline),
    'place', string.format('%.0f', now - ARGV[3] * 10000000000000))
  redis.call('ZADD', KEYS[5], now, ARGV[1])
  if deadline > 0 then redis.call('ZADD', KEYS[9], string.format('%.0f', deadline), ARGV[1]) end
end

local submitted = tonumber(redis.call('HGET', KEYS[1], 'submitted'))
if redis.call('HGET', KEYS[1], 'state') ~= 'open' then
  if offset + count <= submitted then return submitted end
  return -1
end
if offset > submitted then return -1 end

for i = 1, count do
  local index = offset + i - 1
  if index >= submitted then
    redis.call('HSET', KEYS[2], index, ARGV[5 + 2 * i])
    redis.call('HSET', KEYS[3], index, ARGV[6 + 2 * i])
    redis.call('ZADD', KEYS[4], index, index)
  end
end
submitted = math.max(submitted, offset + count)
redis.call('HSET', KEYS[1], 'submitted', submitted, 'touched_ms', now)
if redis.call('EXISTS', KEYS[4]) == 1 then
  local job = redis.call('HMGET', KEYS[1], 'place', 'model')
  redis.call('ZADD', KEYS[8], job[1], ARGV[1] .. ' ' .. job[2])
end

if ARGV[5] == '1' then
  redis.call('HSET', KEYS[1], 'state', 'running')
  -- The last output may have come before the seal.
  if tonumber(redis.call('HGET', KEYS[1], 'done')) == submitted then
    redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
    redis.call('ZADD', KEYS[7], now, ARGV[1])
  end
end

redis.call('LPUSH', KEYS[6], 1)
redis.call('LTRIM', KEYS[6], 0, 0)
return submitted
