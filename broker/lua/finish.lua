-- finish: end a batch whose requests all have their outputs.
--
-- The driver is woken if the session had as many batches as it may have, or ran suspects: it has room from now on, and
-- not from the last commit on.
--
-- KEYS 1 batch  2 batch requests  3 session  4 session batches  5 wake  6 waiting
-- ARGV 1 batch id  2 session id
-- Returns requests of the batch that are still open: 0 means that the batch is gone; more, that nothing was changed.

local batch = redis.call('HMGET', KEYS[1], 'session', 'isolated')
if batch[1] ~= ARGV[2] then return 0 end
local open = redis.call('HLEN', KEYS[2])
if open == 0 then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('SREM', KEYS[4], ARGV[1])
  if redis.call('EXISTS', KEYS[3]) == 1 then
    redis.call('HINCRBY', KEYS[3], 'isolated', 0 - batch[2])
    local most = tonumber(redis.call('HGET', KEYS[3], 'max_batches') or '0')
    local had_room = batch[2] == '0' and redis.call('SCARD', KEYS[4]) + 1 < most
    if not had_room and redis.call('EXISTS', KEYS[6]) == 1 then
      redis.call('LPUSH', KEYS[5], 1)
      redis.call('LTRIM', KEYS[5], 0, 0)
    end
  end
end
return open
