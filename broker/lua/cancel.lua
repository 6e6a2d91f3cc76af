-- cancel: mark a job as cancelled, and seal it; the caller then commits a `cancelled` output for what is pending.
--
-- Requests that a worker holds get their outputs from that worker. What was announced and did not come waits no more.
-- A job whose client was lost is from now on one that somebody wanted to end.
--
-- KEYS 1 job  2 closing  3 stopping  4 load  5 answers  6 answered
-- ARGV 1 job id
-- Returns 1 when the job is cancelled, 0 when it is already done, -1 when it is unknown.

local job = redis.call('HMGET', KEYS[1], 'state', 'submitted', 'done', 'user', 'reserved_requests', 'reserved_tokens')
if not job[1] then return -1 end
if job[1] == 'done' then return 0 end
redis.call('HSET', KEYS[1], 'cancelled', 1, 'state', 'running', 'client_lost', 0)
redis.call('ZADD', KEYS[3], 0, ARGV[1])
redis.call('UNLINK', KEYS[5], KEYS[6])
if job[4] and tonumber(job[5]) + job[6] > 0 then
  local user = job[4]
  redis.call('HSET', KEYS[1], 'reserved_requests', 0, 'reserved_tokens', 0)
  redis.call('HINCRBY', KEYS[4], 'requests', 0 - job[5])
  redis.call('HINCRBY', KEYS[4], 'tokens', 0 - job[6])
  local left = redis.call('HINCRBY', KEYS[4], 'requests ' .. user, 0 - job[5])
  local left_tokens = redis.call('HINCRBY', KEYS[4], 'tokens ' .. user, 0 - job[6])
  if left == 0 and left_tokens == 0 then redis.call('HDEL', KEYS[4], 'requests ' .. user, 'tokens ' .. user) end
end
if job[2] == job[3] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
  redis.call('ZADD', KEYS[2], now, ARGV[1])
end
return 1
