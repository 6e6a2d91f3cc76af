-- commit: store outputs of a job's requests. The first commit of a request wins; a later one is counted and dropped.
--
-- In one atomic step: the request's bit, its output in the job's stream, the job's counters, and its removal
-- from wherever it waited (pending again after a recovery, or assigned to another batch). The committing session need
-- not be alive: by the bit its late output does no harm, and may even save work.
--
-- KEYS 1 job  2 requests  3 costs  4 pending  5 assigned  6 committed  7 outputs  8 batch requests  9 session
--      10 closing  11 wake  12 attempts  13 checkpoints  14 waiting  15 load
-- ARGV 1 job id  then, for each output: index, payload, failed (0|1), prompt tokens, completion tokens
-- Returns {accepted, dropped, job done (0|1)}; nil when the job is unknown.

local SPEED_MEMORY_MS = 30000
local job = redis.call('HMGET', KEYS[1], 'submitted', 'state', 'done', 'model', 'user')
if not job[1] then return nil end
local submitted = tonumber(job[1])
local session_alive = redis.call('EXISTS', KEYS[9]) == 1
local accepted, dropped, failed, prompt_tokens, completion_tokens, freed, settled = 0, 0, 0, 0, 0, 0, 0

for i = 2, #ARGV, 5 do
  local index = ARGV[i]
  local cost = redis.call('HGET', KEYS[8], index)
  if cost then
    redis.call('HDEL', KEYS[8], index)
    freed = freed + 1
    if session_alive then
      redis.call('HINCRBY', KEYS[9], 'inhand_requests', -1)
      redis.call('HINCRBY', KEYS[9], 'inhand_tokens', 0 - cost)
    end
  end
  if tonumber(index) >= submitted or redis.call('SETBIT', KEYS[6], index, 1) == 1 then
    dropped = dropped + 1
  else
    redis.call('XADD', KEYS[7], '*', 'o', ARGV[i + 1])
    settled = settled + (redis.call('HGET', KEYS[3], index) or 0)
    redis.call('HDEL', KEYS[2], index)
    redis.call('HDEL', KEYS[3], index)
    redis.call('HDEL', KEYS[5], index)
    redis.call('HDEL', KEYS[12], index)
    redis.call('HDEL', KEYS[13], index)
    redis.call('ZREM', KEYS[4], index)
    accepted = accepted + 1
    failed = failed + ARGV[i + 2]
    prompt_tokens = prompt_tokens + ARGV[i + 3]
    completion_tokens = completion_tokens + ARGV[i + 4]
  end
end

if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('ZREM', KEYS[14], ARGV[1] .. ' ' .. job[4]) end
local done = redis.call('HINCRBY', KEYS[1], 'done', accepted)
redis.call('HINCRBY', KEYS[1], 'failed', failed)
redis.call('HINCRBY', KEYS[1], 'dropped', dropped)
redis.call('HINCRBY', KEYS[1], 'prompt_tokens', prompt_tokens)
redis.call('HINCRBY', KEYS[1], 'completion_tokens', completion_tokens)

if job[5] and accepted > 0 then
  local user = job[5]
  redis.call('HINCRBY', KEYS[15], 'requests', 0 - accepted)
  redis.call('HINCRBY', KEYS[15], 'tokens', 0 - settled)
  local left = redis.call('HINCRBY', KEYS[15], 'requests ' .. user, 0 - accepted)
  local left_tokens = redis.call('HINCRBY', KEYS[15], 'tokens ' .. user, 0 - settled)
  if left == 0 and left_tokens == 0 then redis.call('HDEL', KEYS[15], 'requests ' .. user, 'tokens ' .. user) end
  -- How fast tokens are settled, remembered for half a minute; by it a client that is refused knows how long to wait.
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local before = redis.call('HMGET', KEYS[15], 'speed_sum', 'speed_ms')
  if before[2] and now - before[2] < 10 * SPEED_MEMORY_MS then
    local sum = before[1] * math.exp((before[2] - now) / SPEED_MEMORY_MS) + settled
    redis.call('HSET', KEYS[15], 'speed_sum', tostring(sum), 'speed_ms', now)
  else
    redis.call('HSET', KEYS[15], 'speed_sum', 0, 'speed_ms', now, 'speed_since_ms', now)
  end
end

local complete = 0
if accepted > 0 and job[2] == 'running' and done == submitted then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
  redis.call('ZADD', KEYS[10], now, ARGV[1])
  complete = 1
end
if freed > 0 then
  redis.call('LPUSH', KEYS[11], 1)
  redis.call('LTRIM', KEYS[11], 0, 0)
end
return { accepted, dropped, complete }
