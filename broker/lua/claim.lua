-- claim: a worker takes up a batch that a message named.
--
-- Gives the requests that are still this batch's and have no output yet: a batch claimed again generates only what is
-- missing. A message for a batch that is gone, or was given to another session, gets nothing and is harmless.
--
-- KEYS 1 batch  2 batch requests  3 session  4 job  5 requests  6 assigned  7 committed
-- ARGV 1 batch id  2 session id
-- Returns nil when refused, else {cancelled (0|1), index, payload, index, payload, ...}.

if redis.call('HGET', KEYS[1], 'session') ~= ARGV[2] then return nil end
local state = redis.call('HGET', KEYS[3], 'state')
if not state or state == 'dead' then return nil end

redis.call('HSET', KEYS[1], 'state', 'claimed')
local taken = { tonumber(redis.call('HGET', KEYS[4], 'cancelled') or '0') }
local held = redis.call('HGETALL', KEYS[2])
for i = 1, #held, 2 do
  local index = held[i]
  local payload = redis.call('HGET', KEYS[5], index)
  local mine = redis.call('HGET', KEYS[6], index) == ARGV[1]
  if payload and mine and redis.call('GETBIT', KEYS[7], index) == 0 then
    taken[#taken + 1] = index
    taken[#taken + 1] = payload
  else
    redis.call('HDEL', KEYS[2], index)
    redis.call('HINCRBY', KEYS[3], 'inhand_requests', -1)
    redis.call('HINCRBY', KEYS[3], 'inhand_tokens', -held[i + 1])
  end
end
return taken
