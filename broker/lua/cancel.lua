-- cancel: mark a job as cancelled, and seal it; the caller then commits a `cancelled` output for what is pending.
--
-- Requests that a worker holds get their outputs from that worker.
--
-- KEYS 1 job  2 closing  3 stopping
-- ARGV 1 job id
-- Returns 1 when the job is cancelled, 0 when it is already done, -1 when it is unknown.

local job = redis.call('HMGET', KEYS[1], 'state', 'submitted', 'done')
if not job[1] then return -1 end
if job[1] == 'done' then return 0 end
redis.call('HSET', KEYS[1], 'cancelled', 1, 'state', 'running')
redis.call('ZADD', KEYS[3], 0, ARGV[1])
if job[2] == job[3] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
  redis.call('ZADD', KEYS[2], now, ARGV[1])
end
return 1
