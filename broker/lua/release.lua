-- release: take requests of a batch back from its session; those without an output are pending again.
--
-- Used by recovery after a death, and by a worker that gives work back. An attempt counts only where asked, and only
-- if the batch had been claimed: a request that never ran has harmed nobody. Where losses are forgiven, as many are
-- counted apart for each request before one counts as an attempt.
--
-- KEYS 1 batch  2 batch requests  3 session  4 session batches  5 pending  6 assigned  7 committed  8 attempts
--      9 wake  10 job  11 waiting  12 changes of waiting  13 losses
-- ARGV 1 batch id  2 session id  3 count an attempt (0|1)  4 job id  5 losses forgiven
--      then: request indices (none: all, and the batch ends)
-- Returns requests made pending; -1 when the batch is not this session's (any more).

local FIRST_INDEX = 6
local batch = redis.call('HMGET', KEYS[1], 'session', 'state', 'isolated')
if batch[1] ~= ARGV[2] then
  if not batch[1] then redis.call('SREM', KEYS[4], ARGV[1]) end
  return -1
end

local session_alive = redis.call('EXISTS', KEYS[3]) == 1
local count_attempt = ARGV[3] == '1' and batch[2] == 'claimed'
local forgiven = tonumber(ARGV[5])
local indices = {}
for i = FIRST_INDEX, #ARGV do indices[#indices + 1] = ARGV[i] end
if #indices == 0 then indices = redis.call('HKEYS', KEYS[2]) end

local released = 0
for _, index in ipairs(indices) do
  local cost = redis.call('HGET', KEYS[2], index)
  if cost then
    redis.call('HDEL', KEYS[2], index)
    if session_alive then
      redis.call('HINCRBY', KEYS[3], 'inhand_requests', -1)
      -- `-cost` of a zero would be sent as "-0", which Redis 7 refuses.
      redis.call('HINCRBY', KEYS[3], 'inhand_tokens', 0 - cost)
    end
    if redis.call('HGET', KEYS[6], index) == ARGV[1] and redis.call('GETBIT', KEYS[7], index) == 0 then
      redis.call('HDEL', KEYS[6], index)
      redis.call('ZADD', KEYS[5], index, index)
      if count_attempt and (forgiven == 0 or redis.call('HINCRBY', KEYS[13], index, 1) > forgiven) then
        redis.call('HINCRBY', KEYS[8], index, 1)
      end
      released = released + 1
    end
  end
end

if released > 0 then
  local job = redis.call('HMGET', KEYS[10], 'place', 'model')
  if job[1] and redis.call('ZADD', KEYS[11], job[1], ARGV[4] .. ' ' .. job[2]) == 1 then
    redis.call('XADD', KEYS[12], 'MAXLEN', '~', 10000, '*', ARGV[4], 1)
  end
end
if #ARGV < FIRST_INDEX then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('SREM', KEYS[4], ARGV[1])
  if session_alive then redis.call('HINCRBY', KEYS[3], 'isolated', 0 - batch[3]) end
end
redis.call('LPUSH', KEYS[9], 1)
redis.call('LTRIM', KEYS[9], 0, 0)
return released
