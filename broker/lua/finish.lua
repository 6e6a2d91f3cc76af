-- finish: end a batch whose requests all have their outputs.
--
-- KEYS 1 batch  2 batch requests  3 session  4 session batches
-- ARGV 1 batch id  2 session id
-- Returns requests of the batch that are still open: 0 means that the batch is gone; more, that nothing was changed.

local batch = redis.call('HMGET', KEYS[1], 'session', 'isolated')
if batch[1] ~= ARGV[2] then return 0 end
local open = redis.call('HLEN', KEYS[2])
if open == 0 then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('SREM', KEYS[4], ARGV[1])
  if redis.call('EXISTS', KEYS[3]) == 1 then redis.call('HINCRBY', KEYS[3], 'isolated', 0 - batch[2]) end
end
return open
