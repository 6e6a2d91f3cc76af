-- release: take a batch back from its session; its requests without an output are pending again.
--
-- Used by recovery after a death (counts an attempt), and by a worker that gives work back (does not).
--
-- KEYS 1 batch  2 batch requests  3 session  4 session batches  5 pending  6 assigned  7 committed  8 attempts
--      9 wake
-- ARGV 1 batch id  2 session id  3 count an attempt (0|1)
-- Returns requests made pending; -1 when the batch is not this session's (any more).

if redis.call('HGET', KEYS[1], 'session') ~= ARGV[2] then
  redis.call('SREM', KEYS[4], ARGV[1])
  return -1
end

local session_alive = redis.call('EXISTS', KEYS[3]) == 1
local released = 0
local open = redis.call('HGETALL', KEYS[2])
for i = 1, #open, 2 do
  local index, cost = open[i], open[i + 1]
  if session_alive then
    redis.call('HINCRBY', KEYS[3], 'inhand_requests', -1)
    redis.call('HINCRBY', KEYS[3], 'inhand_tokens', -cost)
  end
  if redis.call('HGET', KEYS[6], index) == ARGV[1] and redis.call('GETBIT', KEYS[7], index) == 0 then
    redis.call('HDEL', KEYS[6], index)
    redis.call('ZADD', KEYS[5], index, index)
    if ARGV[3] == '1' then redis.call('HINCRBY', KEYS[8], index, 1) end
    released = released + 1
  end
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('SREM', KEYS[4], ARGV[1])
redis.call('LPUSH', KEYS[9], 1)
redis.call('LTRIM', KEYS[9], 0, 0)
return released
