-- abandon: seal an open job whose client is gone, and note that it is: more requests may have been to come.
--
-- A client that was heard of since it was judged keeps its job. One that comes back and seals it takes the note away.
--
-- KEYS 1 job  2 closing  3 wake  4 answers  5 answered
-- ARGV 1 job id  2 when the client was last heard of (server ms), as it was judged by
-- Returns 1 when this call sealed the job; 0 when its client was heard of, it is sealed already, or unknown.

local job = redis.call('HMGET', KEYS[1], 'state', 'touched_ms', 'submitted', 'done')
if job[1] ~= 'open' or tonumber(job[2]) ~= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'state', 'running', 'client_lost', 1)
redis.call('UNLINK', KEYS[4], KEYS[5])
if job[3] == job[4] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
  redis.call('ZADD', KEYS[2], now, ARGV[1])
end
redis.call('LPUSH', KEYS[3], 1)
redis.call('LTRIM', KEYS[3], 0, 0)
return 1
